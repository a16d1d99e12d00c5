"""Random group elements."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.group.element import GroupElement
from transformer_nfn.group.kinds import KINDS, MatrixSampler
from transformer_nfn.space import BlockSpec


def conditioned(condition: float) -> MatrixSampler:
    """Orthogonal × diagonal × orthogonal, singular values log-uniform in [κ^-½, κ^½].

    The condition number is bounded by κ and, for matrices of size 2 and more, equal to it: the
    largest and smallest singular values are set to the bounds.
    """
    if not condition >= 1:
        raise ValueError(f"a condition number is at least 1, got {condition}")

    def draw(
        shape: tuple[int, ...], size: int, generator: torch.Generator
    ) -> Float[Tensor, "... s s"]:
        exponent = torch.rand((*shape, size), generator=generator, dtype=torch.float64) - 0.5
        if size > 1:
            exponent[..., 0], exponent[..., 1] = 0.5, -0.5
        left, right = (_orthogonal(shape, size, generator) for _ in range(2))
        return left * torch.pow(condition, exponent).unsqueeze(-2) @ right

    return draw


def uniform(bound: float) -> MatrixSampler:
    """Entries uniform in [-bound, bound], as in the paper's augmentation experiment.

    Such matrices reach condition numbers of 10^4 and more; in float32 that is visible.
    """

    def draw(
        shape: tuple[int, ...], size: int, generator: torch.Generator
    ) -> Float[Tensor, "... s s"]:
        entries = torch.rand((*shape, size, size), generator=generator, dtype=torch.float64)
        return (2 * entries - 1) * bound

    return draw


def random_element(
    spec: BlockSpec,
    *,
    networks: int = 1,
    blocks: int = 1,
    generator: torch.Generator,
    matrices: MatrixSampler | None = None,
) -> GroupElement:
    """A random element for each network and block.

    Examples:
        >>> import torch
        >>> from transformer_nfn.group import random_element
        >>> from transformer_nfn.space import PAPER, BlockSpec
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
        >>> random_element(spec, generator=torch.manual_seed(0))
        GroupElement(n=1, l=1, parts h k v r a, BlockSpec(paper, D=4, heads=2, D_k=2, D_v=3, D_A=5))

    Args:
        spec: The declared block and its sizes.
        networks: How many networks; 1 serves a batch of any number.
        blocks: How many blocks each network has.
        generator: The source of randomness.
        matrices: How to draw from GL; `conditioned(10)` if not given.
    """
    matrices = matrices or conditioned(10.0)
    parts = {}
    for label, axis in spec.block.axes.items():
        if axis.kind in KINDS:
            outer = (networks, blocks, *(spec.size(o) for o in axis.per))
            parts[label] = KINDS[axis.kind].sample(outer, spec.size(label), generator, matrices)
    return GroupElement(spec, parts)


def _orthogonal(
    shape: tuple[int, ...], size: int, generator: torch.Generator
) -> Float[Tensor, "... s s"]:
    """Uniform over O(s): QR of a normal matrix, with the signs of R's diagonal moved into Q."""
    normal = torch.randn((*shape, size, size), generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(normal)
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    rotation: Tensor = q * signs.unsqueeze(-2)
    return rotation
