"""Exact search over fingerprints: all pairs, new ones, one query; and against approximate indices.

    python benchmarks/kin/index.py --json            # 1,000,000 fingerprints: 1,000 new ones only
    python benchmarks/kin/index.py --whole --json    # ... and all pairs of them
    python benchmarks/kin/index.py --quick --json

Made-up fingerprints of one shape, which is the worst case: 7 parts, as nets of two blocks have, in
random directions. Planted are copies (1e-6 off), near copies (5 % and 20 % off) and grafts, with 3
of 7 parts of another network: near copies by the median. Approximate indices are those of faiss, if
it is installed (`pip install faiss-cpu`), on all parts of a fingerprint as one vector, with 16
neighbours of each. Times are wall time on all cores.
"""

import argparse
import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from transformer_nfn.kinship import Fingerprint, Forest, Index, Shelf, Stack

PARTS, WIDTH, KINDS = 7, 16, ("copy", "near 5 %", "near 20 %", "graft")
#: Planted pairs of each kind, new fingerprints of an increment, queries.
PLANTED, NEW, QUERIES = 100, 1000, 5
NEIGHBOURS = 16
QUERY_MS, NEW_S = 2000.0, 120.0  # comfortable, of a million


def made(count: int, seed: int = 0) -> tuple[Index, dict[str, set[frozenset[int]]]]:
    """Fingerprints, the last ones being kin of the first, and which are."""
    rng = np.random.default_rng(seed)
    numbers = rng.standard_normal((count, PARTS, WIDTH))
    planted: dict[str, set[frozenset[int]]] = {}
    last = count
    for kind in KINDS:
        for _ in range(PLANTED):
            last -= 1
            source = int(rng.integers(0, count - len(KINDS) * PLANTED))
            noise = rng.standard_normal((PARTS, WIDTH))
            share = {"copy": 1e-6, "near 5 %": 0.05, "near 20 %": 0.2, "graft": 0.0}[kind]
            numbers[last] = numbers[source] + share * noise
            if kind == "graft":
                numbers[last, rng.permutation(PARTS)[:3]] = noise[:3]
            planted.setdefault(kind, set()).add(frozenset({source, last}))
    stack = Stack([f"part {i}" for i in range(PARTS)], numbers, np.full(count, 1e-4))
    paths = [str(number) for number in range(count)]
    shelf = Shelf(np.arange(count), stack)
    return Index(paths, ["float32"] * count, {"shape": shelf}), planted


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = function()
    return time.perf_counter() - start, found


def _trees(count: int, pairs: set[frozenset[int]]) -> list[int]:
    """The number of the tree that each file is in."""
    ends = np.array([sorted(pair) for pair in pairs], dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    found: list[int] = connected_components(graph, directed=False)[1].tolist()
    return found


def exact(count: int, whole: bool) -> dict[str, float]:
    """All pairs, if wanted; the last ones as if they had come later; queries."""
    index, planted = made(count)
    keys = index.keys()
    late = frozenset(keys[count - NEW :])  # all that is planted is among them
    compared = []

    def watch(steps: Iterator[int], total: int) -> Iterator[int]:
        compared.append(total)
        yield from steps

    figures: dict[str, float] = {}
    more, forest = timed(lambda: index.forest(Forest(frozenset(keys) - late, ()), watch))
    figures["new_s"], figures["new_ns_a_pair"] = more, 1e9 * more / compared[-1]
    if whole:
        seconds, all_of_it = timed(lambda: index.forest(watch=watch))
        figures["all_pairs_s"], figures["ns_a_pair"] = seconds, 1e9 * seconds / compared[-1]
        figures["new_are_the_same"] = float(set(all_of_it.edges) == set(forest.edges))
    number = {key: i for i, key in enumerate(keys)}
    found = {frozenset({number[edge.first], number[edge.second]}) for edge in forest.edges}
    # A forest may link a pair through a third that was planted beside it: what counts is who is in
    # one tree.
    true = set().union(*planted.values())
    tree = _trees(count, found)
    expected = _trees(count, true)
    query, _ = timed(lambda: [index.nearest(_print(index, n)) for n in range(QUERIES)])
    return figures | {
        "missed": sum(len({tree[end] for end in pair}) > 1 for pair in true),
        "false": sum(len({expected[end] for end in pair}) > 1 for pair in found),
        "query_ms": 1e3 * query / QUERIES,
    }


def _print(index: Index, number: int) -> Fingerprint:
    import torch

    stack = index.shelves["shape"].stack
    parts = {
        name: torch.from_numpy(row)
        for name, row in zip(stack.names, stack.numbers[number], strict=True)
    }
    return Fingerprint("query", "shape", "float32", parts)


def approximate(count: int) -> dict[str, dict[str, float]]:
    """Indices of faiss: build, 16 neighbours of each, and how many planted pairs are among them."""
    faiss = importlib.import_module("faiss")
    index, planted = made(count)
    numbers = index.shelves["shape"].stack.numbers
    flat = (numbers / np.linalg.norm(numbers, axis=2, keepdims=True)).reshape(count, -1)
    flat = np.ascontiguousarray(flat, dtype=np.float32)
    lists = int(4 * count**0.5)
    quantizer = faiss.IndexFlatL2(flat.shape[1])
    ivf = faiss.IndexIVFFlat(quantizer, flat.shape[1], lists)
    ivf.nprobe = 16
    found = {}
    for name, made_index in (("ivf", ivf), ("hnsw", faiss.IndexHNSWFlat(flat.shape[1], 16))):
        build, _ = timed(lambda m=made_index: (m.train(flat[: 64 * lists]), m.add(flat)))
        search, near = timed(lambda m=made_index: m.search(flat, NEIGHBOURS)[1])
        pairs = {
            frozenset({row, int(other)})
            for row in range(count - len(KINDS) * PLANTED, count)
            for other in near[row]
        } | {
            frozenset({source, int(other)})
            for source in {min(pair) for some in planted.values() for pair in some}
            for other in near[source]
        }
        recalls = {
            f"recall {kind}": len(some & pairs) / len(some) for kind, some in planted.items()
        }
        found[name] = {"build_s": build, "search_s": search, **recalls}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--approximate", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--whole", action="store_true", help="all pairs of more than 100,000, too")
    parser.add_argument("--quick", action="store_true", help="20,000 fingerprints")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    sizes = [10_000, 20_000] if options.quick else options.sizes
    figures: dict[str, Any] = {}
    for size in sizes:
        figures[f"exact {size}"] = exact(size, options.whole or size <= 100_000)
        print(size, json.dumps(figures[f"exact {size}"]), flush=True)
    there = importlib.util.find_spec("faiss") is not None
    for size in options.approximate if there and not options.quick else []:
        figures[f"approximate {size}"] = approximate(size)
        print(size, json.dumps(figures[f"approximate {size}"]), flush=True)
    runs = [one for name, one in figures.items() if name.startswith("exact")]
    checks = {
        "all_found": all(one["missed"] == 0 for one in runs),
        "no_false": all(one["false"] == 0 for one in runs),
        "new_are_the_same": all(bool(one.get("new_are_the_same", 1)) for one in runs),
        "query": runs[-1]["query_ms"] <= QUERY_MS,
        "new": runs[-1]["new_s"] <= NEW_S,
    }
    ok = all(checks.values())
    if options.json:
        targets = {"query_ms": QUERY_MS, "new_s": NEW_S}
        print(json.dumps({"figures": figures, "targets": targets, "checks": checks, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
