"""Kin among many fingerprints as a minimum spanning forest: all that clusters need, and no more.

Ten thousand fine-tunes of one network are 50 million pairs of kin, and 9,999 edges of a tree. An
edge of copies counts as shorter than any other; so the trees are the families, what copies link is
one network, and each fingerprint is linked to the nearest of the others.

The forest of old and new fingerprints is that of the old forest's edges and of all new pairs, so
what was compared once is not compared again. A tree that lost a fingerprint may fall apart or hang
together by pairs that were left out: what is left of it is compared like new.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import inf
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from transformer_nfn.kinship.joining import Links

#: Edges that are gathered before they are thinned out again, beside some for each fingerprint.
_GATHERED = 2**20


class Edge(NamedTuple):
    """Two fingerprints that are kin, by their keys, the lower first."""

    first: bytes
    second: bytes
    distance: float
    copies: bool


class Forest(NamedTuple):
    """What is known of fingerprints that were compared.

    Attributes:
        keys: Of all that were compared.
        edges: The forest.
    """

    keys: frozenset[bytes]
    edges: Sequence[Edge]

    @staticmethod
    def empty() -> "Forest":
        """Nothing was compared."""
        return Forest(frozenset(), ())

    def is_sound(self) -> bool:
        """Whether its edges link what it holds, by finite distances and without circles."""
        ends = {end for edge in self.edges for end in (edge.first, edge.second)}
        far = [edge.distance for edge in self.edges]
        if not ends <= self.keys or not all(map(_is_distance, far)) or None in self.keys:
            return False
        if not self.keys:
            return True
        number = {key: i for i, key in enumerate(self.keys)}
        tree = _trees(len(number), *_to_links(self.edges, number)[:2])
        return int(tree.max()) + 1 == len(number) - len(self.edges)


EMPTY = Forest.empty()


def whole_trees(known: Forest, there: AbstractSet[bytes]) -> Forest:
    """What of a forest still holds: trees that have lost nothing.

    Args:
        known: A forest.
        there: The keys of all fingerprints that are there.
    """
    if not known.keys:
        return known
    keys = list(known.keys)
    number = {key: i for i, key in enumerate(keys)}
    first, second, _, _ = _to_links(known.edges, number)
    tree = _trees(len(keys), first, second)
    damaged = np.zeros(len(keys), dtype=bool)
    damaged[tree[[key not in there for key in keys]]] = True  # trees are numbered below their keys
    whole = frozenset(key for key, lost in zip(keys, damaged[tree], strict=True) if not lost)
    return Forest(whole, [edge for edge in known.edges if edge.first in whole])


class Growth:
    """The forest of some fingerprints, in the making.

    Args:
        keys: Of all of them; equal ones are bit for bit the same.
        known: Whole trees of some of these.
    """

    def __init__(self, keys: Sequence[bytes], known: Forest) -> None:
        self._keys, self._known = keys, known
        self._place = {key: node for node, key in reversed(list(enumerate(keys)))}  # each key once
        # Ties are broken by the keys: the same forest, in whatever order its nodes came.
        self._rank = np.zeros(len(keys), dtype=np.int64)
        self._rank[[self._place[key] for key in sorted(self._place)]] = np.arange(len(self._place))
        self._gathered = [_to_links(known.edges, self._place)]

    def order(self, files: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " m"], int]:
        """Places of some files, each fingerprint once and the known ones first, and how many are.

        Args:
            files: Numbers of fingerprints; places are those in this array.
        """
        once = [n for n, file in enumerate(files) if self._place[self._keys[file]] == file]
        known = [self._keys[files[n]] in self._known.keys for n in once]
        old = [n for n, is_old in zip(once, known, strict=True) if is_old]
        new = [n for n, is_old in zip(once, known, strict=True) if not is_old]
        return np.array(old + new, dtype=np.int64), len(old)

    def add(self, links: Links) -> None:
        """Some pairs, by the numbers of their fingerprints."""
        self._gathered.append(links)
        if sum(len(one.first) for one in self._gathered) > _GATHERED + 4 * len(self._keys):
            self._gathered = [thin(Links.joined(self._gathered), self._rank)]

    def edges(self) -> list[Edge]:
        """The forest of all that was added."""
        links = thin(Links.joined(self._gathered), self._rank)
        found = []
        for one, other, far, copies in zip(*links, strict=True):
            first, second = sorted((self._keys[one], self._keys[other]))
            found.append(Edge(first, second, float(far), bool(copies)))
        return found


def thin(links: Links, rank: Int[np.ndarray, " n"]) -> Links:
    """The minimum spanning forest of some pairs; copies before all others.

    Args:
        links: The pairs.
        rank: Of each fingerprint, to break ties.
    """
    if not len(links.first):
        return links
    # Imported where it is needed: it takes half a second, and most commands need none of it.
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import minimum_spanning_tree  # type: ignore[import-untyped]

    low = np.minimum(rank[links.first], rank[links.second])
    high = np.maximum(rank[links.first], rank[links.second])
    order = np.lexsort((high, low, links.distance, ~links.copies))
    # A pair may be there by its fingerprints and by its sketches: the shorter one counts.
    order = order[np.sort(np.unique(low[order] * len(rank) + high[order], return_index=True)[1])]
    weights = np.arange(1.0, len(order) + 1)  # 0 would be no edge
    ends = links.first[order], links.second[order]
    graph = coo_array((weights, ends), shape=(len(rank), len(rank)))
    chosen = order[minimum_spanning_tree(graph.tocsr()).data.astype(np.int64) - 1]
    return Links(*(column[np.sort(chosen)] for column in links))


def _trees(count: int, first: np.ndarray, second: np.ndarray) -> Int[np.ndarray, " n"]:
    """The number of the tree that each is in; of at least one."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
    found: np.ndarray = connected_components(graph, directed=False)[1]
    return found


def _is_distance(far: object) -> bool:
    return isinstance(far, float) and 0 <= far < inf


def _to_links(edges: Sequence[Edge], place: Mapping[bytes, int]) -> Links:
    return Links(
        np.array([place[edge.first] for edge in edges], dtype=np.int64),
        np.array([place[edge.second] for edge in edges], dtype=np.int64),
        np.array([edge.distance for edge in edges], dtype=np.float64),
        np.array([edge.copies for edge in edges], dtype=bool),
    )
