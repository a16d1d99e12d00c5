"""Copies in disguise: which files of a folder are the same network, and which are its kin."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Float

from transformer_nfn.identity.distances import Kinship, Stack, summaries
from transformer_nfn.identity.finding import Track, find_checkpoints, fingerprints
from transformer_nfn.identity.fingerprinting import Fingerprint
from transformer_nfn.jobs import Executor


@dataclass(frozen=True)
class Row:
    """One file in the table.

    Attributes:
        path: The file.
        family: Number of the family: files linked by copies and near copies.
        group: Number of the group of copies.
        kinship: To the nearest file before it in the table; a stranger if there is none.
        of: That file.
        distance: To it, root mean square.
        shape: Architecture and sizes.
        dtype: How it is stored.
    """

    path: str
    family: int
    group: int
    kinship: Kinship
    of: str | None
    distance: float | None
    shape: str
    dtype: str


@dataclass(frozen=True)
class Duplicates:
    """What was found.

    Attributes:
        prints: Fingerprints of all files that could be read.
        broken: Files that could not, and why.
        groups: Groups of copies, as numbers into `prints`; a file without a copy is one alone.
        families: Groups, by number, that are linked by near copies.
        links: All pairs that are no strangers: numbers, rms distance, kinship.
    """

    prints: Sequence[Fingerprint]
    broken: dict[str, str]
    groups: list[list[int]]
    families: list[list[int]]
    links: list[tuple[int, int, float, Kinship]] = field(repr=False)

    @property
    def order(self) -> list[int]:
        """Numbers of all files, families and groups together."""
        return [one for family in self.families for group in family for one in self.groups[group]]

    def table(self) -> list[Row]:
        """A row for each file, in `order`."""
        nearest: dict[int, dict[int, tuple[float | None, Kinship]]] = {}
        for i, j, size, link in self.links:
            nearest.setdefault(i, {})[j] = nearest.setdefault(j, {})[i] = size, link
        rows: list[Row] = []
        before: set[int] = set()
        for family_number, family in enumerate(self.families):
            for group in family:
                for one in self.groups[group]:
                    known = {n: v for n, v in nearest.get(one, {}).items() if n in before}
                    of = min(known, key=lambda n: known[n][0] or 0.0, default=None)
                    this = self.prints[one]
                    far, kind = known[of] if of is not None else (None, Kinship.STRANGER)
                    name = None if of is None else self.prints[of].path
                    rows.append(
                        Row(
                            this.path, family_number, group, kind, name, far, this.shape, this.dtype
                        )
                    )
                    before.add(one)
        return rows

    def matrix(self) -> Float[np.ndarray, "n n"]:
        """Median distances of all pairs in `order`, for a picture; NaN between shapes."""
        chosen = [self.prints[one] for one in self.order]
        found = np.full((len(chosen), len(chosen)), np.nan)
        places: dict[str, list[int]] = {}
        for number, one in enumerate(chosen):
            places.setdefault(one.shape, []).append(number)
        for members in places.values():
            stack = Stack([chosen[number] for number in members])
            for row, number in enumerate(members):
                found[number, members] = summaries(stack.rows(row))[2]
        return found


def dedup(
    folder: str | Path, executor: Executor | None = None, track: Track = lambda outcomes: outcomes
) -> Duplicates:
    """Find copies in disguise and near copies among all checkpoints under a folder.

    Args:
        folder: Where to look.
        executor: Where fingerprints are computed; in this process if None.
        track: See `fingerprints`.

    Raises:
        CheckpointError: If the folder has no checkpoints.
    """
    prints, broken = fingerprints(find_checkpoints(folder), executor, track)
    return group_copies(prints, broken)


def group_copies(prints: Sequence[Fingerprint], broken: dict[str, str] | None = None) -> Duplicates:
    """Group fingerprints; only those of one shape are compared, so n² is that of a shape's n."""
    links: list[tuple[int, int, float, Kinship]] = []
    numbered = sorted(enumerate(prints), key=lambda pair: pair[1].shape)
    for _, bucket in groupby(numbered, key=lambda pair: pair[1].shape):
        members, same_shape = zip(*bucket, strict=True)
        for i, j, far, kind in Stack(same_shape).pairs():
            links.append((members[i], members[j], far, kind))
    copies = [(i, j) for i, j, _, kind in links if kind is Kinship.COPY]
    groups = linked(len(prints), copies)
    group_of = {one: number for number, group in enumerate(groups) for one in group}
    kin = [(group_of[i], group_of[j]) for i, j, _, _ in links]
    families = linked(len(groups), kin)
    groups = [groups[number] for family in families for number in family]
    ends = [0, *accumulate(len(family) for family in families)]
    ordered = [list(range(*pair)) for pair in pairwise(ends)]
    return Duplicates(prints, dict(broken or {}), groups, ordered, links)


def linked(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The connected components of a graph, each in order, by their first members.

    Example:
        >>> linked(5, [(3, 1), (1, 4)])
        [[0], [1, 3, 4], [2]]
    """
    parent = list(range(count))

    def root(one: int) -> int:
        while parent[one] != one:
            parent[one] = parent[parent[one]]
            one = parent[one]
        return one

    for a, b in pairs:
        first, second = sorted((root(a), root(b)))
        parent[second] = first
    found: dict[int, list[int]] = {}
    for one in range(count):
        found.setdefault(root(one), []).append(one)
    return list(found.values())
