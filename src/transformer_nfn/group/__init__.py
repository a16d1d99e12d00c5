"""The symmetry group of a declared block: elements, their action, sampling, and test helpers."""

from transformer_nfn.group.element import GroupElement
from transformer_nfn.group.kinds import KINDS, KindAction, MatrixSampler
from transformer_nfn.group.sampling import conditioned, random_element, uniform
from transformer_nfn.group.testing import assert_equivariant, assert_invariant, relative_error

__all__ = [
    "KINDS",
    "GroupElement",
    "KindAction",
    "MatrixSampler",
    "assert_equivariant",
    "assert_invariant",
    "conditioned",
    "random_element",
    "relative_error",
    "uniform",
]
