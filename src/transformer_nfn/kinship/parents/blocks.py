"""Tensors of a file by block, and which block of one file is which of another."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_nfn.checkpoints import TensorFiles

#: A number that is a part of a name by itself, as that of a block is.
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
#: Tensors of a lower cosine have nothing to do with each other; of few numbers, a higher one is
#: chance too, by so many standard deviations.
_RELATED, _DEVIATIONS = 0.05, 8.0


def related(cosine: float, numbers: int) -> bool:
    """Whether a cosine of so many numbers is more than chance."""
    return cosine >= max(_RELATED, min(_DEVIATIONS / math.sqrt(numbers), 0.9))


@dataclass(frozen=True)
class Place:
    """The name of a tensor, and the number of its block if it has one.

    Attributes:
        pattern: The name with {} for the first number in it.
        block: That number; None if there is none.
    """

    pattern: str
    block: int | None

    @staticmethod
    def of(name: str) -> "Place":
        """Read a name.

        Examples:
            >>> Place.of("model.layers.3.mlp.experts.5.up.weight")
            Place(pattern='model.layers.{}.mlp.experts.5.up.weight', block=3)
        """
        found = _NUMBER.search(name)
        if found is None:
            return Place(name, None)
        return Place(f"{name[: found.start()]}{{}}{name[found.end() :]}", int(found[0]))

    @property
    def name(self) -> str:
        """The name again."""
        return self.pattern.replace("{}", str(self.block), 1)

    def at(self, block: int | None) -> "Place":
        """The tensor of the same name in another block."""
        return self if self.block is None else Place(self.pattern, block)


def floats(files: TensorFiles) -> Iterator[str]:
    """The names of all tensors that hold numbers to compute with."""
    return (name for name in files if files.entry(name).dtype.is_floating_point)


def read(files: TensorFiles, name: str) -> Tensor:
    """A tensor in float32."""
    return files.read(name).float()


def match_blocks(child: TensorFiles, parent: TensorFiles) -> dict[int, int]:
    """For each block of one file the block of another that is most like it, if one is like it.

    They are compared by the largest tensor that all blocks of both have in one shape.
    """
    both = []
    for files in (child, parent):
        found: dict[str, dict[int, tuple[int, ...]]] = {}
        for name in floats(files):
            place = Place.of(name)
            if place.block is not None:
                found.setdefault(place.pattern, {})[place.block] = tuple(files.entry(name).shape)
        both.append(found)
    shapes = {
        pattern: blocks
        for pattern, blocks in both[0].items()
        if pattern in both[1] and len({*blocks.values(), *both[1][pattern].values()}) == 1
    }
    if not shapes:
        return {}
    size = {
        pattern: torch.Size(next(iter(each.values()))).numel() for pattern, each in shapes.items()
    }
    pattern = max(size, key=lambda each: (len(shapes[each]), size[each]))
    theirs = {
        number: _unit(read(parent, Place(pattern, number).name)) for number in both[1][pattern]
    }
    matched = {}
    for number in shapes[pattern]:
        mine = _unit(read(child, Place(pattern, number).name))
        cosines = {other: torch.dot(mine, row).item() for other, row in theirs.items()}
        best = max(cosines, key=lambda other: (cosines[other], other == number))
        if related(cosines[best], len(mine)):
            matched[number] = best
    return matched


def _numbers(shapes: Mapping[int, tuple[int, ...]]) -> int:
    return torch.Size(next(iter(shapes.values()))).numel()


def _unit(row: Tensor) -> Tensor:
    return row.flatten() / float(row.norm().clamp_min(1e-30))
