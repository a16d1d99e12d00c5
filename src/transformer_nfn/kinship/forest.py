"""Kin among many fingerprints as a minimum spanning forest: all that clusters need, and no more.

Ten thousand fine-tunes of one network are 50 million pairs of kin, and 9,999 edges of a tree. An
edge of copies counts as shorter than any other; so the trees are the families, what copies link is
one network, and each fingerprint hangs by its nearest link.

The forest of old and new fingerprints is that of the old forest's edges and of all new pairs, so
what was compared once is not compared again. A tree that lost a fingerprint may fall apart or hang
together by pairs that were left out: what is left of it is compared like new.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array  # type: ignore[import-untyped]
from scipy.sparse.csgraph import (  # type: ignore[import-untyped]
    connected_components,
    minimum_spanning_tree,
)

from transformer_nfn.kinship.distances import Stack
from transformer_nfn.kinship.joining import Links, kin_pairs, pairs_before

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


def whole_trees(known: Forest, shapes: Mapping[bytes, str]) -> dict[str, Forest]:
    """What of a forest still holds: trees that have lost nothing, by shape.

    Args:
        known: A forest.
        shapes: The shape of each fingerprint that is there.
    """
    if not known.keys:
        return {}
    keys = list(known.keys)
    number = {key: i for i, key in enumerate(keys)}
    first, second, _, _ = _to_links(known.edges, number)
    tree = _trees(len(keys), first, second)
    gone = np.array([key not in shapes for key in keys], dtype=bool)
    damaged = np.zeros(len(keys), dtype=bool)
    damaged[tree[gone]] = True  # trees are numbered below their fingerprints
    whole: dict[str, set[bytes]] = {}
    edges: dict[str, list[Edge]] = {}
    for key, lost in zip(keys, damaged[tree], strict=True):
        if not lost:
            whole.setdefault(shapes[key], set()).add(key)
    for edge in known.edges:
        if not damaged[tree[number[edge.first]]]:
            edges.setdefault(shapes[edge.first], []).append(edge)
    return {shape: Forest(frozenset(some), edges.get(shape, [])) for shape, some in whole.items()}


class Growth:
    """The forest of some fingerprints of one shape, in the making.

    Args:
        stack: The fingerprints.
        keys: Of all in the stack; equal ones are bit for bit the same.
        known: Whole trees of some of these.

    Attributes:
        total: How many pairs are to be compared.
    """

    def __init__(self, stack: Stack, keys: Sequence[bytes], known: Forest) -> None:
        self._stack, self._keys = stack, keys
        place = {key: node for node, key in reversed(list(enumerate(keys)))}  # each key once
        old = [node for key, node in place.items() if key in known.keys]
        new = [node for key, node in place.items() if key not in known.keys]
        self._order, self._start = np.array(old + new, dtype=np.int64), len(old)
        self.total = pairs_before(len(self._order), self._start)
        # Ties are broken by the keys: the same forest, in whatever order its nodes came.
        self._rank = np.zeros(len(keys), dtype=np.int64)
        self._rank[[place[key] for key in sorted(place)]] = np.arange(len(place))
        self._gathered = [_to_links(known.edges, place)]

    def steps(self) -> Iterator[int]:
        """Compare, and say each time how many pairs were."""
        for block in kin_pairs(self._stack, self._order, self._start):
            self._gathered.append(block.links)
            if sum(len(one.first) for one in self._gathered) > _GATHERED + 4 * len(self._order):
                self._gathered = [thin(Links.joined(self._gathered), self._rank)]
            yield block.pairs

    def edges(self) -> list[Edge]:
        """The forest, after all steps."""
        links = thin(Links.joined(self._gathered), self._rank)
        found = []
        for one, other, far, copies in zip(*links, strict=True):
            first, second = sorted((self._keys[one], self._keys[other]))
            found.append(Edge(first, second, float(far), bool(copies)))
        return found


def thin(links: Links, rank: Int[np.ndarray, " n"]) -> Links:
    """The minimum spanning forest of some pairs, each given once; copies before all others.

    Args:
        links: The pairs.
        rank: Of each fingerprint, to break ties.
    """
    if not len(links.first):
        return links
    low = np.minimum(rank[links.first], rank[links.second])
    high = np.maximum(rank[links.first], rank[links.second])
    order = np.lexsort((high, low, links.distance, ~links.copies))
    weights = np.empty(len(order))
    weights[order] = np.arange(1, len(order) + 1)  # 0 would be no edge
    graph = coo_array((weights, (links.first, links.second)), shape=(len(rank), len(rank)))
    chosen = order[minimum_spanning_tree(graph.tocsr()).data.astype(np.int64) - 1]
    return Links(*(column[np.sort(chosen)] for column in links))


def _trees(count: int, first: np.ndarray, second: np.ndarray) -> Int[np.ndarray, " n"]:
    """The number of the tree that each is in; of at least one."""
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
