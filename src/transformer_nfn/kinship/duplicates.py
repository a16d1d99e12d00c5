"""Copies in disguise: which of many files are the same network, and which are its kin."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from transformer_nfn.jobs import Executor
from transformer_nfn.kinship.digests import copies_by_digest
from transformer_nfn.kinship.distances import Kinship, summaries
from transformer_nfn.kinship.fingerprinting import Fingerprint
from transformer_nfn.kinship.folders import Track, find_checkpoints, fingerprints
from transformer_nfn.kinship.forest import Forest
from transformer_nfn.kinship.index import Index


class Row(NamedTuple):
    """One file in the table.

    Attributes:
        path: The file.
        family: Number of the family: files linked by copies and kin.
        group: Number of the group of copies: files that are one network.
        kinship: To the file that links it to those before it in the table; a stranger if none does.
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


class Link(NamedTuple):
    """A file and the one that it hangs by."""

    file: int
    of: int | None
    distance: float | None
    copy: bool


@dataclass(frozen=True)
class Duplicates:
    """What was found.

    Attributes:
        index: Fingerprints of all files that could be read.
        broken: Files that could not, and why.
        unsupported: Files that no family reads, with a digest of their tensors.
        families: Of each family its groups of copies, of each of these its files, by number; a file
            without kin is a family alone. Each hangs by one that comes before it.
    """

    index: Index
    broken: Mapping[str, str]
    unsupported: Mapping[str, str]
    families: Sequence[Sequence[Sequence[Link]]]

    @property
    def groups(self) -> list[list[int]]:
        """Files of each network."""
        return [[link.file for link in group] for family in self.families for group in family]

    @property
    def order(self) -> list[int]:
        """Numbers of all files, families and groups together."""
        return [file for group in self.groups for file in group]

    @property
    def unsupported_copies(self) -> dict[str, str]:
        """Of files that no family reads those with the tensors of one before them: that file."""
        return copies_by_digest(self.unsupported)

    def counts(self) -> dict[str, int]:
        """How many files, networks and families there are, and how many files are copies of one."""
        links = [link for family in self.families for group in family for link in group]
        return {
            "files": len(links),
            "networks": sum(len(family) for family in self.families),
            "families": len(self.families),
            "copies": sum(link.copy for link in links),
            "kin": sum(link.of is not None and not link.copy for link in links),
            "unsupported": len(self.unsupported),
        }

    def table(self, least: int = 1) -> list[Row]:
        """A row for each file, in `order`.

        Args:
            least: Only families of so many files or more.
        """
        rows: list[Row] = []
        index, number = self.index, 0
        for family_number, family in enumerate(self.families):
            wanted = sum(map(len, family)) >= least
            for group in family:
                for link in group if wanted else ():
                    kind = Kinship.COPY if link.copy else Kinship.KIN
                    rows.append(
                        Row(
                            index.paths[link.file],
                            family_number,
                            number,
                            Kinship.STRANGER if link.of is None else kind,
                            None if link.of is None else index.paths[link.of],
                            link.distance,
                            index.shapes[link.file],
                            index.dtypes[link.file],
                        )
                    )
                number += 1
        return rows

    def matrix(self, files: Sequence[int]) -> Float[np.ndarray, "n n"]:
        """Median distances of all pairs of some files, for a picture; NaN between shapes."""
        found = np.full((len(files), len(files)), np.nan)
        row_of = {file: row for row, file in enumerate(files)}
        for members, stack in self.index.shelves.values():
            here = np.array([n for n, file in enumerate(members) if int(file) in row_of], dtype=int)
            rows = np.array([row_of[int(file)] for file in members[here]], dtype=int)
            for row, number in zip(rows, here, strict=True):
                parts = stack.between(np.full(len(here), number), here)
                found[row, rows] = summaries(parts)[2]
        return found


def dedup(
    folder: str | Path, executor: Executor | None = None, track: Track = lambda outcomes: outcomes
) -> Duplicates:
    """Find copies in disguise and kin among all checkpoints under a folder.

    Args:
        folder: Where to look.
        executor: Where fingerprints are computed; in this process if None.
        track: See `fingerprints`.

    Raises:
        CheckpointError: If the folder has no checkpoints.
    """
    found = fingerprints(find_checkpoints(folder), executor, track)
    return group_copies(found.done, found.broken, found.digests)


def group_copies(
    prints: Index | Sequence[Fingerprint],
    broken: Mapping[str, str] | None = None,
    unsupported: Mapping[str, str] | None = None,
    forest: Forest | None = None,
) -> Duplicates:
    """Group files by kinship; fingerprints of one shape and sketches of one kind are compared.

    Args:
        prints: Their fingerprints.
        broken: Files that have none, and why.
        unsupported: Files that no family reads, with a digest of their tensors.
        forest: Of these fingerprints, if it is there already.
    """
    index = prints if isinstance(prints, Index) else Index.of(prints)
    edges = _between_files(index, forest or index.forest())
    families = _families(len(index), edges)
    return Duplicates(index, dict(broken or {}), dict(unsupported or {}), families)


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


#: For each file the others that it is linked to: their numbers, distances, and which are copies.
_Edges = dict[int, list[tuple[int, float, bool]]]


def _between_files(index: Index, forest: Forest) -> _Edges:
    """The forest's edges, and those between files whose fingerprints are the same."""
    edges: _Edges = {}

    def link(one: int, other: int, distance: float, copy: bool) -> None:
        edges.setdefault(one, []).append((other, distance, copy))
        edges.setdefault(other, []).append((one, distance, copy))

    first: dict[bytes, int] = {}
    for file, key in enumerate(index.keys()):
        if first.setdefault(key, file) != file:
            link(first[key], file, 0.0, True)
    for edge in forest.edges:
        link(first[edge.first], first[edge.second], edge.distance, edge.copies)
    return edges


def _families(count: int, edges: _Edges) -> list[list[list[Link]]]:
    """Walk each tree from its first file, all copies of a network before what is only near."""
    seen = np.zeros(count, dtype=bool)
    families = []
    for start in range(count):
        if seen[start]:
            continue
        family = []
        entries = deque([Link(start, None, None, False)])
        while entries:
            group: list[Link] = []
            copies = deque([entries.popleft()])
            while copies:
                group.append(copies.popleft())
                file = group[-1].file
                seen[file] = True
                for other, distance, copy in sorted(edges.get(file, ())):
                    if not seen[other]:  # a tree: nothing is met twice
                        where = copies if copy else entries
                        where.append(Link(other, file, distance, copy))
            family.append(group)
        families.append(family)
    return families
