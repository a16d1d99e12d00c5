"""For tests of your own: did what we did to a model change it?"""

from transformer_nfn.testing.assertions import (
    Closeness,
    assert_kin,
    assert_same_function,
    assert_within,
)
from transformer_nfn.testing.models import Model, opened

__all__ = [
    "Closeness",
    "Model",
    "assert_kin",
    "assert_same_function",
    "assert_within",
    "opened",
]
