"""For tests of your own: did what we did to a model change it?"""

from transformer_nfn.checkpoints import Model, opened
from transformer_nfn.testing.assertions import (
    Closeness,
    assert_kin,
    assert_same_function,
    assert_within,
)

__all__ = [
    "Closeness",
    "Model",
    "assert_kin",
    "assert_same_function",
    "assert_within",
    "opened",
]
