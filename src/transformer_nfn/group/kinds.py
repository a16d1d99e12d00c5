"""What each kind of axis contributes to a group element.

A kind is a class with these methods; `KINDS` names those the group has. Another kind of axis is
another class here and another entry there: nothing else knows of them.

Shapes: a part is "n l", the axes that index it (`per`), and what the kind needs for one axis of
size s. Parts of two elements broadcast over n and l.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from transformer_nfn.space import Kind

#: Draws invertible matrices: (batch shape, size, generator) -> float64 (*batch, size, size).
MatrixSampler = Callable[[tuple[int, ...], int, torch.Generator], Tensor]


class KindAction(Protocol):
    """The group of one axis."""

    def part_shape(self, size: int) -> tuple[int, ...]:
        """Shape of a part after n, l and the axes that index it."""
        ...

    def identity(self, outer: tuple[int, ...], size: int) -> Tensor:
        """The element that does nothing, for each outer index."""
        ...

    def sample(
        self,
        outer: tuple[int, ...],
        size: int,
        generator: torch.Generator,
        matrices: MatrixSampler,
    ) -> Tensor:
        """A random element for each outer index."""
        ...

    def compose(self, first: Tensor, second: Tensor) -> Tensor:
        """The part that acts as `first` and then `second`."""
        ...

    def inverse(self, part: Tensor) -> Tensor:
        """The part that undoes `part`."""
        ...

    def act(self, vectors: Tensor, part: Tensor, dual: bool) -> Tensor:
        """Move the last axis of `vectors`, "n l per vectors s"."""
        ...


class Permuted:
    """Index tensors p of the last axis: out[i] = in[p[i]], as the paper's [gW]_i = [W]_π(i)."""

    def part_shape(self, size: int) -> tuple[int, ...]:
        """One index for each entry."""
        return (size,)

    def identity(self, outer: tuple[int, ...], size: int) -> Tensor:
        """The identical permutation."""
        return torch.arange(size).expand(*outer, size)

    def sample(
        self,
        outer: tuple[int, ...],
        size: int,
        generator: torch.Generator,
        matrices: MatrixSampler,
    ) -> Tensor:
        """Uniform over all permutations."""
        return torch.rand((*outer, size), generator=generator).argsort(dim=-1)

    def compose(self, first: Tensor, second: Tensor) -> Tensor:
        """first[second]: out[i] = mid[second[i]] = in[first[second[i]]]."""
        return torch.take_along_dim(first, second, dim=-1)

    def inverse(self, part: Tensor) -> Tensor:
        """The inverse permutation."""
        return part.argsort(dim=-1)

    def act(self, vectors: Tensor, part: Tensor, dual: bool) -> Tensor:
        """Gather along the last axis; a permutation matrix is its own inverse transpose."""
        return torch.take_along_dim(vectors, part.unsqueeze(-2), dim=-1)


class Linear:
    """Matrices G: vectors · G, and vectors · G⁻ᵀ on the dual axis.

    The paper's M is G_kᵀ (it writes W^(Q) Mᵀ and W^(K) M⁻¹), its N is G_v.
    """

    def part_shape(self, size: int) -> tuple[int, ...]:
        """One matrix."""
        return (size, size)

    def identity(self, outer: tuple[int, ...], size: int) -> Tensor:
        """The identity matrix."""
        return torch.eye(size, dtype=torch.float64).expand(*outer, size, size)

    def sample(
        self,
        outer: tuple[int, ...],
        size: int,
        generator: torch.Generator,
        matrices: MatrixSampler,
    ) -> Tensor:
        """From the given sampler."""
        return matrices(outer, size, generator)

    def compose(self, first: Tensor, second: Tensor) -> Tensor:
        """Vectors · first · second."""
        return first @ second

    def inverse(self, part: Tensor) -> Tensor:
        """The inverse matrix."""
        return _inverse(part)

    def act(self, vectors: Tensor, part: Tensor, dual: bool) -> Tensor:
        """Multiply from the right in the wider of both dtypes, so that only storing rounds."""
        dtype = torch.promote_types(vectors.dtype, part.dtype)
        matrix = part.to(dtype)
        if dual:
            matrix = _inverse(matrix).mT
        return (vectors.to(dtype) @ matrix).to(vectors.dtype)


def _inverse(matrix: Tensor) -> Tensor:
    """In float32 at least: torch inverts nothing coarser."""
    wide = torch.promote_types(matrix.dtype, torch.float32)
    inverse: Tensor = torch.linalg.inv(matrix.to(wide))
    return inverse.to(matrix.dtype)


class Rotary:
    """Complex numbers c, one for each pair (j, j + s/2): vectors · c, vectors / c̄ on the dual axis.

    Rotary positions multiply the pair j of a query at position t by e^(iθ_j t), and the score is
    the real part of Σ_j q_j k̄_j e^(iθ_j (t - t')). It stays as it is exactly if q_j k̄_j does.
    """

    def part_shape(self, size: int) -> tuple[int, ...]:
        """A real and an imaginary part for each pair."""
        return (size // 2, 2)

    def identity(self, outer: tuple[int, ...], size: int) -> Tensor:
        """All ones."""
        one = torch.tensor([1.0, 0.0], dtype=torch.float64)
        return one.expand(*outer, size // 2, 2)

    def sample(
        self,
        outer: tuple[int, ...],
        size: int,
        generator: torch.Generator,
        matrices: MatrixSampler,
    ) -> Tensor:
        """Lengths from the given sampler, angles uniform."""
        shape = (*outer, size // 2)
        angle = torch.rand(shape, generator=generator, dtype=torch.float64) * (2 * torch.pi)
        length = matrices(shape, 1, generator)[..., 0, 0].abs()
        return torch.view_as_real(torch.polar(length, angle))

    def compose(self, first: Tensor, second: Tensor) -> Tensor:
        """The product of the numbers."""
        return torch.view_as_real(torch.view_as_complex(first) * torch.view_as_complex(second))

    def inverse(self, part: Tensor) -> Tensor:
        """One divided by the number."""
        return torch.view_as_real(torch.view_as_complex(part).reciprocal())

    def act(self, vectors: Tensor, part: Tensor, dual: bool) -> Tensor:
        """Multiply each pair, in the wider of both dtypes."""
        dtype = torch.promote_types(vectors.dtype, part.dtype)
        number = torch.view_as_complex(part.to(dtype).contiguous())
        if dual:
            number = number.conj().reciprocal()
        re, im = vectors.to(dtype).chunk(2, dim=-1)
        moved = torch.complex(re, im) * number.unsqueeze(-2)
        return torch.cat([moved.real, moved.imag], dim=-1).to(vectors.dtype)


class Scaled:
    """Positive numbers λ: vectors · λ, vectors / λ on the dual axis."""

    def part_shape(self, size: int) -> tuple[int, ...]:
        """One number for each entry."""
        return (size,)

    def identity(self, outer: tuple[int, ...], size: int) -> Tensor:
        """All ones."""
        return torch.ones((*outer, size), dtype=torch.float64)

    def sample(
        self,
        outer: tuple[int, ...],
        size: int,
        generator: torch.Generator,
        matrices: MatrixSampler,
    ) -> Tensor:
        """Sizes of numbers from the given sampler."""
        return matrices((*outer, size), 1, generator)[..., 0, 0].abs()

    def compose(self, first: Tensor, second: Tensor) -> Tensor:
        """The product."""
        return first * second

    def inverse(self, part: Tensor) -> Tensor:
        """One divided by each number."""
        return part.reciprocal()

    def act(self, vectors: Tensor, part: Tensor, dual: bool) -> Tensor:
        """Scale each entry, in the wider of both dtypes."""
        dtype = torch.promote_types(vectors.dtype, part.dtype)
        scale = part.to(dtype).unsqueeze(-2)
        return (vectors / scale if dual else vectors * scale).to(vectors.dtype)


class Signed:
    """Signs, one for each pair (j, j + s/2); the same on the dual axis."""

    def part_shape(self, size: int) -> tuple[int, ...]:
        """One sign for each pair."""
        return (size // 2,)

    def identity(self, outer: tuple[int, ...], size: int) -> Tensor:
        """All ones."""
        return torch.ones((*outer, size // 2), dtype=torch.float64)

    def sample(
        self,
        outer: tuple[int, ...],
        size: int,
        generator: torch.Generator,
        matrices: MatrixSampler,
    ) -> Tensor:
        """Each with probability one half."""
        return 1.0 - 2.0 * torch.randint(2, (*outer, size // 2), generator=generator).double()

    def compose(self, first: Tensor, second: Tensor) -> Tensor:
        """The product."""
        return first * second

    def inverse(self, part: Tensor) -> Tensor:
        """Itself."""
        return part

    def act(self, vectors: Tensor, part: Tensor, dual: bool) -> Tensor:
        """Both coordinates of a pair get its sign."""
        return vectors * torch.cat([part, part], dim=-1).to(vectors.dtype).unsqueeze(-2)


#: The kinds the group acts on; free axes have none.
KINDS: dict[Kind, KindAction] = {
    Kind.PERMUTED: Permuted(),
    Kind.LINEAR: Linear(),
    Kind.ROTARY: Rotary(),
    Kind.SIGNED: Signed(),
    Kind.SCALED: Scaled(),
}
