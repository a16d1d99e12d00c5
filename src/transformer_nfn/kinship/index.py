"""Fingerprints of many files, as arrays: who is near a file, and who is kin among all.

A million fingerprints of 7 parts take 0.9 GB, and as much again while kin are sought.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_nfn.kinship.distances import Kinship, Stack
from transformer_nfn.kinship.fingerprinting import Fingerprint
from transformer_nfn.kinship.forest import EMPTY, Forest, Growth, whole_trees
from transformer_nfn.kinship.joining import kin_pairs

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


class Neighbour(NamedTuple):
    """A file near another: its number, root mean square distance, and what it is to it."""

    file: int
    distance: float
    kinship: Kinship


@dataclass(frozen=True, eq=False)
class Index:
    """Fingerprints of many files; only those of one shape are compared.

    Attributes:
        paths: The files.
        dtypes: How each is stored.
        shelves: The fingerprints, by shape.
    """

    paths: Sequence[str]
    dtypes: Sequence[str]
    shelves: Mapping[str, Shelf]

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
        return Index([one.path for one in prints], [one.dtype for one in prints], shelves)

    def __len__(self) -> int:
        return len(self.paths)

    def nearest(self, one: Fingerprint, count: int = 10) -> list[Neighbour]:
        """The files nearest to a fingerprint, copies first; none of another shape."""
        shelf = self.shelves.get(one.shape)
        if shelf is None:
            return []
        near = shelf.stack.nearest(one, count)
        return [Neighbour(int(shelf.files[number]), far, kind) for number, far, kind in near]

    def pairs(self) -> list[tuple[int, int, float, Kinship]]:
        """All pairs of kin i < j with their distances, in order: of few files."""
        found = []
        for files, stack in self.shelves.values():
            for block in kin_pairs(stack, np.arange(len(stack))):
                for first, second, far, copies in zip(*block.links, strict=True):
                    kind = Kinship.COPY if copies else Kinship.NEAR
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
        by_shape = whole_trees(known, dict(zip(keys, self.shapes, strict=True)))
        growths = [
            Growth(stack, [keys[file] for file in files], by_shape.get(shape, EMPTY))
            for shape, (files, stack) in self.shelves.items()
        ]
        steps = (step for growth in growths for step in growth.steps())
        for _ in watch(steps, sum(growth.total for growth in growths)):
            pass
        return Forest(frozenset(keys), [edge for growth in growths for edge in growth.edges()])

    def keys(self) -> list[bytes]:
        """A digest of each fingerprint: equal ones are bit for bit the same."""
        return self._keys  # asked for more than once, and some microseconds each

    @cached_property
    def _keys(self) -> list[bytes]:
        keys = [b""] * len(self)
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
                digest.update(numbers[by_name[there[by_name]]].tobytes())
                keys[file] = digest.digest()
        return keys
