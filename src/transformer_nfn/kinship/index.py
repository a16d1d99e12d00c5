"""Fingerprints of many files, as arrays: who is near a file, and who is kin among all.

A million fingerprints of 7 parts take 0.9 GB, and as much again while kin are sought.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_nfn.kinship.distances import Kinship, Stack
from transformer_nfn.kinship.fingerprinting import Fingerprint
from transformer_nfn.kinship.forest import EMPTY, Forest, Growth, whole_trees
from transformer_nfn.kinship.joining import Links, kin_pairs, pairs_before
from transformer_nfn.kinship.sketch.finding import SketchStack
from transformer_nfn.kinship.sketch.making import Sketch

#: What passes steps on, given how much there is in all, and shows how far they are.
Watch = Callable[[Iterator[int], int], Iterable[int]]


class Shelf(NamedTuple):
    """The fingerprints of one shape.

    Attributes:
        files: Their numbers among all.
        stack: What they are.
    """

    files: Int[np.ndarray, " n"]
    stack: Stack


class SketchShelf(NamedTuple):
    """The sketches of one kind: numbers of their files among all, and what they are."""

    files: Int[np.ndarray, " n"]
    stack: SketchStack


class Neighbour(NamedTuple):
    """A file near another: its number, median distance of the parts, and what it is to it."""

    file: int
    distance: float
    kinship: Kinship


@dataclass(frozen=True, eq=False)
class Index:
    """Fingerprints of many files; only those of one shape are compared, and sketches of one kind.

    Attributes:
        paths: The files.
        dtypes: How each is stored.
        shelves: The fingerprints, by shape.
        sketches: The sketches, by kind; files of several depths and vocabularies have one.
    """

    paths: Sequence[str]
    dtypes: Sequence[str]
    shelves: Mapping[str, Shelf]
    sketches: Mapping[str, SketchShelf] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> list[str]:
        """The shape of each file."""
        shapes = [""] * len(self)
        for shape, shelf in self.shelves.items():
            for file in shelf.files:
                shapes[file] = shape
        return shapes

    @staticmethod
    def of(prints: Sequence[Fingerprint]) -> "Index":
        """Of some fingerprints, in their order."""
        files: dict[str, list[int]] = {}
        for number, one in enumerate(prints):
            files.setdefault(one.shape, []).append(number)
        shelves = {
            shape: Shelf(np.array(some), Stack.of([prints[number] for number in some]))
            for shape, some in files.items()
        }
        paths, dtypes = [one.path for one in prints], [one.dtype for one in prints]
        return Index(paths, dtypes, shelves, shelve_sketches([one.sketch for one in prints]))

    def __len__(self) -> int:
        return len(self.paths)

    def nearest(self, one: Fingerprint, count: int = 10) -> list[Neighbour]:
        """The files nearest to a fingerprint: copies, kin, then strangers of the same shape."""
        found: dict[int, Neighbour] = {}
        if (shelf := self.shelves.get(one.shape)) is not None:
            for number, far, kind in shelf.stack.nearest(one, count):
                file = int(shelf.files[number])
                found[file] = Neighbour(file, far, kind)
        if one.sketch is not None and (same := self.sketches.get(one.sketch.kind)) is not None:
            kin = same.stack.kin_of(one.sketch)
            for number, far in zip(kin.second, kin.distance, strict=True):
                file = int(same.files[number])
                known = found.get(file)
                if known is None or known.kinship is Kinship.STRANGER:
                    found[file] = Neighbour(file, float(far), Kinship.KIN)
        kinds = list(Kinship)
        order = sorted(found.values(), key=lambda near: (kinds.index(near.kinship), near.distance))
        return order[:count]

    def pairs(self) -> list[tuple[int, int, float, Kinship]]:
        """All pairs of kin i < j by their fingerprints, in order: of few files."""
        found = []
        for files, stack in self.shelves.values():
            for block in kin_pairs(stack, np.arange(len(stack))):
                for first, second, far, copies in zip(*block.links, strict=True):
                    kind = Kinship.COPY if copies else Kinship.KIN
                    found.append((int(files[second]), int(files[first]), float(far), kind))
        return sorted(found)

    def forest(self, known: Forest = EMPTY, watch: Watch = lambda steps, _: steps) -> Forest:
        """All kin, as a forest; see `Forest`.

        Args:
            known: A forest of some of these files, and maybe of others: what it knows is not
                compared again.
            watch: Is given steps, each the number of pairs compared, and how many pairs there are
                in all; it passes the steps on, to show progress.
        """
        keys = self.keys()
        known = whole_trees(known, frozenset(keys))
        growth = Growth(keys, known)
        orders = [growth.order(files) for files, _ in self._all_shelves()]
        steps = self._compared(growth, orders)
        for _ in watch(steps, sum(pairs_before(len(order), old) for order, old in orders)):
            pass
        return Forest(frozenset(keys), growth.edges())

    def _all_shelves(self) -> "list[Shelf | SketchShelf]":
        return [*self.shelves.values(), *self.sketches.values()]

    def _compared(self, growth: Growth, orders: Sequence[tuple[np.ndarray, int]]) -> Iterator[int]:
        """Compare what is on each shelf, and say each time how many pairs were."""
        for (files, stack), (order, old) in zip(self._all_shelves(), orders, strict=True):
            if isinstance(stack, Stack):
                for block in kin_pairs(stack, order, old):
                    first, second, far, copies = block.links
                    growth.add(Links(files[first], files[second], far, copies))
                    yield block.pairs
            else:
                for count, (first, second, far) in stack.pairs(order, old):
                    none = np.zeros(len(far), dtype=bool)
                    growth.add(Links(files[first], files[second], far, none))
                    yield count

    def keys(self) -> list[bytes]:
        """A digest of each fingerprint: equal ones are bit for bit the same."""
        return self._keys  # asked for more than once, and some microseconds each

    @cached_property
    def _keys(self) -> list[bytes]:
        keys = [b""] * len(self)
        drawn = [b""] * len(self)
        for kind, (members, sketches) in self.sketches.items():
            for file, digest in zip(members, sketches.digests(), strict=True):
                drawn[file] = kind.encode() + digest
        for shape, (files, stack) in self.shelves.items():
            by_name = np.argsort(stack.names)  # whatever other files of the shape have
            starts: dict[bytes, Any] = {}
            for file, numbers, there in zip(files, stack.numbers, stack.sizes > 0, strict=True):
                has = there.tobytes()
                if has not in starts:
                    parts = sorted(compress(stack.names, there))
                    starts[has] = hashlib.blake2b(f"{shape}\n{parts}".encode(), digest_size=16)
                digest = starts[has].copy()
                digest.update(self.dtypes[file].encode())
                digest.update(drawn[file])
                digest.update(numbers[by_name[there[by_name]]].tobytes())
                keys[file] = digest.digest()
        return keys


def shelve_sketches(sketches: Sequence[Sketch | None]) -> dict[str, SketchShelf]:
    """Sketches by their kinds, of files in their order; some have none."""
    files: dict[str, list[int]] = {}
    for number, one in enumerate(sketches):
        if one is not None:
            files.setdefault(one.kind, []).append(number)
    return {
        kind: SketchShelf(
            np.array(some), SketchStack.of([one for n in some if (one := sketches[n]) is not None])
        )
        for kind, some in files.items()
    }
