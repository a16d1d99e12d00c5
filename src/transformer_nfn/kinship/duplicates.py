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
        lineage: Number, from 1, of the files that copies and kin link.
        network: Number, from 1, of the files that are copies of one network.
        relation: To the file that links it to those before it in the table, if one does. It says
            nothing of which came first.
        to: That file.
        distance: To it, the median of the parts.
        shape: Architecture and sizes.
        dtype: How it is stored.
    """

    path: str
    lineage: int
    network: int
    relation: Kinship | None
    to: str | None
    distance: float | None
    shape: str
    dtype: str


class Link(NamedTuple):
    """A file and the one that links it to those before it."""

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
        lineages: Of each lineage its networks, of each of these its files, by number; a file that
            has no kin is a lineage of its own. Each is linked to one that comes before it.
    """

    index: Index
    broken: Mapping[str, str]
    unsupported: Mapping[str, str]
    lineages: Sequence[Sequence[Sequence[Link]]]

    @property
    def groups(self) -> list[list[int]]:
        """Files of each network."""
        return [[link.file for link in net] for lineage in self.lineages for net in lineage]

    @property
    def order(self) -> list[int]:
        """Numbers of all files, lineages and networks together."""
        return [file for group in self.groups for file in group]

    @property
    def unsupported_copies(self) -> dict[str, str]:
        """Of files that no family reads those with the tensors of one before them: that file."""
        return copies_by_digest(self.unsupported)

    def counts(self) -> dict[str, int]:
        """How many files, networks and lineages there are, and how many files are copies of one."""
        links = [link for lineage in self.lineages for net in lineage for link in net]
        return {
            "files": len(links),
            "networks": sum(len(lineage) for lineage in self.lineages),
            "lineages": len(self.lineages),
            "copies": sum(link.copy for link in links),
            "related": sum(link.of is not None and not link.copy for link in links),
            "unsupported": len(self.unsupported),
        }

    def table(self, least: int = 1) -> list[Row]:
        """A row for each file, in `order`.

        Args:
            least: Only lineages of this many files or more.
        """
        rows: list[Row] = []
        index, network = self.index, 0
        for number, lineage in enumerate(self.lineages, start=1):
            wanted = sum(map(len, lineage)) >= least
            for links in lineage:
                network += 1
                for link in links if wanted else ():
                    relation = None
                    if link.of is not None:
                        relation = Kinship.COPY if link.copy else Kinship.KIN
                    rows.append(
                        Row(
                            index.paths[link.file],
                            number,
                            network,
                            relation,
                            None if link.of is None else index.paths[link.of],
                            link.distance,
                            index.shapes[link.file],
                            index.dtypes[link.file],
                        )
                    )
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
                found[row, rows] = summaries(parts)[1]
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
    lineages = _lineages(len(index), edges)
    return Duplicates(index, dict(broken or {}), dict(unsupported or {}), lineages)


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


def _lineages(count: int, edges: _Edges) -> list[list[list[Link]]]:
    """Walk each tree from its first file, all copies of a network before what is only near."""
    seen = np.zeros(count, dtype=bool)
    lineages = []
    for start in range(count):
        if seen[start]:
            continue
        lineage = []
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
            lineage.append(group)
        lineages.append(lineage)
    return lineages
