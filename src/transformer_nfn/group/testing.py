"""Checks for layers of your own: is it equivariant, is it invariant?"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from transformer_nfn.group.element import GroupElement
from transformer_nfn.group.kinds import MatrixSampler
from transformer_nfn.group.sampling import random_element
from transformer_nfn.space import WeightBatch

#: Relative errors that rounding explains, for elements of condition number 10.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}


def relative_error(got: WeightBatch | Tensor, expected: WeightBatch | Tensor) -> float:
    """|got - expected| / |expected|, for weights the largest of these over the tensors.

    Not-a-number and infinite values count as an infinite error.
    """
    if isinstance(got, WeightBatch) and isinstance(expected, WeightBatch):
        return max(relative_error(got[name], expected[name]) for name in expected.tensors)
    if not (isinstance(got, Tensor) and isinstance(expected, Tensor)):
        raise TypeError(f"cannot compare {type(got).__name__} with {type(expected).__name__}")
    if got.shape != expected.shape:
        raise AssertionError(f"shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
    distance = torch.linalg.vector_norm(got.double() - expected.double()).item()
    size = torch.linalg.vector_norm(expected.double()).item()
    if distance == 0:
        return 0.0
    error = distance / size if size > 0 else float("inf")
    return error if error < float("inf") else float("inf")


def assert_equivariant(
    layer: Callable[[WeightBatch], WeightBatch],
    batch: WeightBatch,
    *,
    generator: torch.Generator,
    samples: int = 3,
    tolerance: float | None = None,
    matrices: MatrixSampler | None = None,
) -> None:
    """Check layer(gU) = g layer(U) for random g, another for each network and block.

    Examples:
        >>> import torch
        >>> from transformer_nfn.group import assert_equivariant
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
        >>> generator = torch.manual_seed(0)
        >>> batch = WeightBatch.random(
        ...     spec, networks=2, blocks=3, generator=generator, dtype=torch.float64
        ... )
        >>> assert_equivariant(lambda U: U.map(lambda W: 2 * W), batch, generator=generator)
        >>> assert_equivariant(  # ReLU is for tensors without a linear axis  # doctest: +ELLIPSIS
        ...     lambda U: U.map(torch.relu), batch, generator=generator
        ... )
        Traceback (most recent call last):
        ...
        AssertionError: not equivariant: relative error ... in Q, ... in O exceeds 1.0e-10

    Raises:
        AssertionError: With the relative error of each tensor that exceeds the tolerance.
    """
    bound = TOLERANCE[batch.dtype] if tolerance is None else tolerance
    for g in _random_elements(batch, samples, generator, matrices):
        got, expected = layer(g(batch)), g(layer(batch))
        errors = {name: relative_error(got[name], expected[name]) for name in expected.tensors}
        worst = [f"{error:.1e} in {name}" for name, error in errors.items() if not error <= bound]
        if worst:
            raise AssertionError(
                f"not equivariant: relative error {', '.join(worst)} exceeds {bound:.1e}"
            )


def assert_invariant(
    function: Callable[[WeightBatch], Tensor],
    batch: WeightBatch,
    *,
    generator: torch.Generator,
    samples: int = 3,
    tolerance: float | None = None,
    matrices: MatrixSampler | None = None,
) -> None:
    """Check function(gU) = function(U) for random g, another for each network and block.

    Raises:
        AssertionError: With the relative error if it exceeds the tolerance.
    """
    bound = TOLERANCE[batch.dtype] if tolerance is None else tolerance
    expected = function(batch)
    for g in _random_elements(batch, samples, generator, matrices):
        error = relative_error(function(g(batch)), expected)
        if not error <= bound:
            raise AssertionError(f"not invariant: relative error {error:.1e} exceeds {bound:.1e}")


def _random_elements(
    batch: WeightBatch, samples: int, generator: torch.Generator, matrices: MatrixSampler | None
) -> Iterator[GroupElement]:
    """Elements for a batch, with another one for each network and block."""
    for _ in range(samples):
        yield random_element(
            batch.spec,
            networks=batch.networks,
            blocks=batch.blocks,
            generator=generator,
            matrices=matrices,
        )
