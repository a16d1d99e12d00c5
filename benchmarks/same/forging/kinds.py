"""The list of all kinds of forgeries, and what each of them is made by."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.same.forging.bases import Bases
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.measure import LENGTH

#: Changes a draft by true symmetries as it likes, and gives the difference that is the forgery:
#: tensors by their names on disk, to be scaled to a size near the line.
Sized = Callable[[Draft, torch.Generator], dict[str, Tensor]]
#: Changes a draft so that it is another function.
Discrete = Callable[[Draft, torch.Generator], None]


@dataclass(frozen=True)
class Kind:
    """A way to forge.

    Attributes:
        name: What `--kinds` calls it.
        make: The generator.
        sized: Whether it gives a difference to be scaled.
        both: Whether the first file gets all but the difference as well; None for sometimes.
        length: Tokens of the inputs that it is measured on.
        special: A case of its own that makes both files and says how far they are apart.
    """

    name: str
    make: Any
    sized: bool = False
    both: bool | None = None
    length: int = LENGTH
    special: bool = False


KINDS: dict[str, Kind] = {}


def sized(name: str, *, both: bool | None = None, length: int = LENGTH) -> Callable[[Sized], Sized]:
    """Register a generator of differences."""

    def register(make: Sized) -> Sized:
        KINDS[name] = Kind(name, make, sized=True, both=both, length=length)
        return make

    return register


def discrete(
    name: str, *, both: bool | None = False, length: int = LENGTH
) -> Callable[[Discrete], Discrete]:
    """Register a generator of forgeries that have no size."""

    def register(make: Discrete) -> Discrete:
        KINDS[name] = Kind(name, make, both=both, length=length)
        return make

    return register


def special(name: str) -> Callable[[Any], Any]:
    """Register a case that makes both files itself: (bases, case) -> Pair."""

    def register(make: Callable[[Bases, Any], Any]) -> Any:
        KINDS[name] = Kind(name, make, special=True)
        return make

    return register
