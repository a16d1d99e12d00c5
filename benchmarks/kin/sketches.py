r"""Kin among very many sketches: all pairs, one against a million, and trained strangers.

    python benchmarks/kin/sketches.py --json
    python benchmarks/kin/sketches.py --zoo ../zoos/strangers --json
    python benchmarks/kin/sketches.py --quick --json

Made-up sketches of one kind, which is the worst case, of 6 and of 12 blocks. Planted are fine-tunes
(cosines of 0.9), distant relatives (0.7) and networks with every second block of another (0.8).
With a zoo: how often networks from starts of their own pass the first look, and the second. Times
are wall time on all cores.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kin.kinship import export_best
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.kinship import Sketch, SketchStack, sketch
from transformer_nfn.kinship.sketch.finding import FIRST

#: Planted pairs of each kind: cosine, and which blocks of the other network.
KINDS: dict[str, tuple[float, slice]] = {
    "fine-tune": (0.9, slice(None)),
    "distant": (0.7, slice(None)),
    "every second block": (0.8, slice(None, None, 2)),
}
PLANTED = 100
ALL_PAIRS_S, QUERY_S, BYTES = 120.0, 2.0, 16_000
#: Of the strangers so many may pass both looks.
PASSED = 1e-7
_DEEP = 12


def made(count: int, seed: int = 0) -> tuple[SketchStack, dict[str, set[tuple[int, int]]]]:
    """Sketches, the last ones being kin of the first, and which are."""
    rng = np.random.default_rng(seed)
    planted: dict[str, set[tuple[int, int]]] = {kind: set() for kind in KINDS}
    last = count - len(KINDS) * PLANTED
    depths = np.where(np.arange(count) % 2, _DEEP, _DEEP // 2)
    kinds = list(KINDS)
    sources = rng.integers(0, last // 2, len(KINDS) * PLANTED) * 2 + 1  # of the deep ones
    for number in range(last, count):
        depths[number] = len(range(_DEEP)[KINDS[kinds[(number - last) % len(kinds)]][1]])
    starts = np.cumsum(depths) - depths
    blocks = rng.integers(-41, 42, (depths.sum(), 384), dtype=np.int8)  # as large as 24 normal ones
    networks = rng.integers(-41, 42, (count, 448), dtype=np.int8)
    for number in range(last, count):
        kind = kinds[(number - last) % len(kinds)]
        share, which = KINDS[kind]
        of = int(sources[number - last])
        own = blocks[starts[of] : starts[of] + _DEEP][which].astype(float)
        noise = 24 * rng.standard_normal(own.shape)
        here = slice(starts[number], starts[number] + depths[number])
        blocks[here] = (share * own + (1 - share**2) ** 0.5 * noise).round().clip(-127, 127)
        planted[kind].add((number, of))
    for number in {*range(last, count), *sources.tolist()}:
        own = blocks[starts[number] : starts[number] + depths[number]].astype(float)
        networks[number, :384] = (own.sum(axis=0) / depths[number] ** 0.5).round().clip(-127, 127)
    return SketchStack(4096, networks, blocks, depths, np.full(count, 128)), planted


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    found = function()
    return time.perf_counter() - start, found


def all_pairs(count: int) -> dict[str, float]:
    """Kin among so many."""
    stack, planted = made(count)
    seconds, blocks = timed(lambda: [pairs for _, pairs in stack.pairs(np.arange(count))])
    found = {
        (int(a), int(b)) for pairs in blocks for a, b in zip(pairs.first, pairs.second, strict=True)
    }
    true = set().union(*planted.values())
    sources = dict(true)
    # Kin of one source are kin of each other, too.
    false = [(a, b) for a, b in found - true if sources.get(a) != sources.get(b, b)]
    return {
        "sketches": count,
        "seconds": seconds,
        "nanoseconds_a_pair": 1e9 * seconds / (count * (count - 1) / 2),
        "planted": len(true),
        "missed": len(true - found),
        "false": len(false),
    }


def query(count: int) -> dict[str, float]:
    """The kin of one among so many."""
    stack, planted = made(count)
    number, of = sorted(planted["distant"])[0]
    one = stack.take(np.array([number]))
    asked = Sketch("a A 4096", one.networks[0], one.blocks[0, : one.depths[0]], 128)
    seconds, found = timed(lambda: stack.kin_of(asked))
    return {
        "sketches": count,
        "seconds": seconds,
        "found": float({number, of} <= set(found.second.tolist())),
    }


def strangers(zoo: str) -> dict[str, float]:
    """Of networks from starts of their own, which pairs pass each look."""
    with tempfile.TemporaryDirectory() as home:
        found = []
        for path in export_best(zoo, Path(home) / "nets"):
            with Checkpoint(path) as checkpoint:
                one = sketch(checkpoint)
            assert one is not None
            found.append(one)
    stack = SketchStack.of(found)
    units = stack.deviations(slice(None))
    first = np.maximum.reduce([(unit @ unit.T).numpy() for unit in units])
    rows, columns = np.tril_indices(len(found), -1)
    each = [(unit @ unit.T).numpy()[rows, columns] for unit in units]
    passed = sum(len(pairs.first) for _, pairs in stack.pairs(np.arange(len(found))))
    return {
        "networks": len(found),
        "pairs": len(rows),
        "first_look": int((first[rows, columns] >= FIRST).sum()),
        "second_look": passed,
        **{
            f"deviation_of_{name}": float(part.std())
            for name, part in zip(("numbered", "orderless", "words"), each, strict=True)
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--zoo", help="independent networks, see `tnfn zoo build --seeds run`")
    parser.add_argument("--quick", action="store_true", help="5,000 and 20,000 sketches")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    many, most = (5000, 20_000) if options.quick else (100_000, 1_000_000)
    figures: dict[str, Any] = {"all_pairs": all_pairs(many), "query": query(most)}
    checks = {
        "nothing_missed": figures["all_pairs"]["missed"] == 0,
        "few_false": figures["all_pairs"]["false"] <= PASSED * many * (many - 1) / 2,
        "query_finds": figures["query"]["found"] == 1,
    }
    if not options.quick:
        checks["all_pairs_in_time"] = figures["all_pairs"]["seconds"] <= ALL_PAIRS_S
        checks["query_in_time"] = figures["query"]["seconds"] <= QUERY_S
    if options.zoo:
        figures["strangers"] = strangers(options.zoo)
        few = 0.001 * figures["strangers"]["pairs"]
        checks["few_strangers_pass"] = figures["strangers"]["second_look"] <= few
    for name, one in figures.items():
        print(name, one)
    ok = all(checks.values())
    if options.json:
        targets = {"all_pairs_s": ALL_PAIRS_S, "query_s": QUERY_S, "bytes": BYTES}
        print(json.dumps({"figures": figures, "targets": targets, "checks": checks, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
