"""What storing a number does to it: how far it may be off, and copies that are off by as much."""

import copy
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, OtherNumbers, TensorFiles
from transformer_nfn.identity.elements.digits import last_digit

#: What float64 arithmetic does to a number on its way through a comparison, relatively. It counts
#: where the stored dtype is so fine that its own rounding would be less.
ARITHMETIC = 3e-14
#: Numbers of a tensor that is kept while its roundings are made.
_SMALL = 2**16


def unit_roundoff(*checkpoints: Checkpoint) -> float:
    """Half the distance of 1 to the next number of the coarsest dtype; float64 counts as 1e-13."""
    return max(1e-13, *(torch.finfo(checkpoint.dtype).eps / 2 for checkpoint in checkpoints))


def spread(tensor: Tensor) -> Tensor:
    """The standard deviation of what rounding did to each number: it is uniform on one digit."""
    return torch.maximum(last_digit(tensor) / 12**0.5, ARITHMETIC * tensor.double().abs())


def spread_of(checkpoint: Checkpoint, *, exact_zeros: bool = False) -> Checkpoint:
    """The checkpoint with `spread` in the place of its numbers; of a stored 0 it may be 0."""
    return with_files(checkpoint, _Spread(checkpoint.files, exact_zeros))


def jittered(checkpoint: Checkpoint, *, seed: int) -> Checkpoint:
    """The same network with every stored number moved by up to half its last digit.

    A stored 0 stays: no symmetry makes a number of a row or a bias that is 0, and where a norm has
    a tiny ε a token of zeros is another one as soon as it is not.
    """
    return jittered_copies(checkpoint, [seed])[0]


def jittered_copies(checkpoint: Checkpoint, seeds: Sequence[int]) -> list[Checkpoint]:
    """The same for several seeds; what is small is read once for all of them."""
    known: dict[str, tuple[Tensor, Tensor]] = {}
    files = [_Jittered(checkpoint.files, seed, known) for seed in seeds]
    return [with_files(checkpoint, moved) for moved in files]


def with_files(checkpoint: Checkpoint, files: TensorFiles) -> Checkpoint:
    """The same network with other numbers."""
    moved = copy.copy(checkpoint)
    moved.files = files
    return moved


class _Spread(OtherNumbers):
    """How far each stored number may be off."""

    values = False

    def __init__(self, files: TensorFiles, exact_zeros: bool) -> None:
        super().__init__(files)
        self._exact_zeros = exact_zeros

    def read(self, name: str) -> Tensor:
        return self._spread(super().read(name))

    def slice(self, name: str, first: int, last: int) -> Tensor:  # and rows and chunks by it
        return self._spread(super().slice(name, first, last))

    def _spread(self, tensor: Tensor) -> Tensor:
        return spread(tensor) * (tensor != 0) if self._exact_zeros else spread(tensor)


class _Jittered(OtherNumbers):
    """Tensors as stored, and a little beside it; the same slice always in the same way."""

    def __init__(
        self, files: TensorFiles, seed: int, known: dict[str, tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__(files)
        self._seed, self._known = seed, known

    def read(self, name: str) -> Tensor:
        if name in self._known:
            return self._moved(*self._known[name], name)
        tensor = super().read(name)
        if not tensor.dtype.is_floating_point:
            return tensor
        numbers = tensor.double(), _movable(tensor)
        if tensor.numel() <= _SMALL:
            self._known[name] = numbers
        return self._moved(*numbers, name)

    def slice(self, name: str, first: int, last: int) -> Tensor:  # and rows and chunks by it
        tensor = super().slice(name, first, last)
        if not tensor.dtype.is_floating_point:
            return tensor
        return self._moved(tensor.double(), _movable(tensor), f"{name} {first}")

    def _moved(self, tensor: Tensor, digit: Tensor, place: str) -> Tensor:
        digest = hashlib.blake2b(f"{self._seed} {place}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
        share = torch.rand(tensor.shape, generator=generator, dtype=torch.float64) - 0.5
        return tensor + share * digit


def _movable(tensor: Tensor) -> Tensor:
    """By how much each number may move in all."""
    return last_digit(tensor) * (tensor != 0)
