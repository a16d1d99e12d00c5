"""How much Kendall's tau of fitted models moves when test nets are moved by the group, in float32.

    python benchmarks/core/stress.py --zoo digits-mini
    python benchmarks/core/stress.py --quick --json

Models are fitted to one split of a zoo (one is built where none is given). Then every test net is
moved by random group elements whose matrices have condition numbers up to 1,000 (and, beyond what
is promised, 10,000), rounded to float32 again. Transformer-NFN's tau must move by at most 0.002.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from transformer_nfn.bench import MODELS, divide, kendall_tau, load_examples
from transformer_nfn.bench.protocol.computing import moved_by_group
from transformer_nfn.bench.protocol.loading import task_and_track
from transformer_nfn.group import conditioned
from transformer_nfn.jobs import InProcess
from transformer_nfn.zoo import Build, Recipe
from transformer_nfn.zoo.dataset import Zoo

LIMIT = 0.002
CONDITIONS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
PROMISED = 1000.0


def largest_changes(
    zoo: str, model: str, split: int, elements: int
) -> tuple[float, dict[float, float]]:
    """Tau on the test rows, and its largest change under random elements of each condition."""
    divided = divide(zoo, load_examples(zoo, "epochs", None), split)
    task, track = task_and_track(zoo)
    predictor = MODELS[model].predictor(
        seed=split, tokens=Zoo(zoo).shape.tokens, task=task, track=track
    )
    predictor.fit(divided.train, divided.validation)
    accuracy = divided.test.accuracy
    tau = kendall_tau(predictor.predict(divided.test), accuracy)
    changes = {}
    for condition in CONDITIONS:
        moved = [
            moved_by_group(divided.test, conditioned(condition), seed=seed)
            for seed in range(elements)
        ]
        taus = [kendall_tau(predictor.predict(one), accuracy) for one in moved]
        changes[condition] = float(np.abs(np.array(taus) - tau).max())
    return tau, changes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", help="a zoo's folder; digits-mini is built if not given")
    parser.add_argument("--models", default="nfn,invariants,mlp,statnn,statistics", help="with nfn")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--elements", type=int, default=5, help="random elements a condition")
    parser.add_argument("--quick", action="store_true", help="few runs, one split, one model")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    splits = 1 if options.quick else options.splits
    elements = 2 if options.quick else options.elements
    if options.quick:
        fitting = {**MODELS["nfn"].settings["fitting"], "epochs": 5, "warmup": 1}
        MODELS["nfn"] = replace(MODELS["nfn"], settings={"fitting": fitting})
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        zoo = options.zoo
        if zoo is None:
            zoo = str(Path(folder) / "zoo")
            os.environ["XDG_CACHE_HOME"] = folder  # the copy that is read goes with the zoo
            recipe, runs = Recipe.load("digits-mini"), 128
            if options.quick:
                few = {"epochs": 2, "checkpoints": (1, 2), "train_examples": 320}
                short = recipe.training.model_copy(update=few)
                recipe, runs = recipe.model_copy(update={"training": short}), 48
            assert not Build(recipe, zoo, runs=runs).run(InProcess())
        models = ["nfn"] if options.quick else options.models.split(",")
        for model in models:
            results = [largest_changes(zoo, model, split, elements) for split in range(splits)]
            largest = {c: max(changes[c] for _, changes in results) for c in CONDITIONS}
            figures[model] = {
                "tau": float(np.mean([tau for tau, _ in results])),
                "largest_change": {f"{c:g}": largest[c] for c in CONDITIONS},
            }
            shown = ", ".join(f"{c:g}: {largest[c]:.4f}" for c in CONDITIONS)
            print(
                f"{model:<12} tau {figures[model]['tau']:.3f}; largest change at condition {shown}"
            )
    worst = max(
        change
        for condition, change in figures["nfn"]["largest_change"].items()  # type: ignore[attr-defined]
        if float(condition) <= PROMISED
    )
    ok = worst <= LIMIT
    print(f"Transformer-NFN moves by at most {worst:.4f} up to {PROMISED:g}, promised {LIMIT}")
    if options.json:
        targets = {"nfn_largest_change": LIMIT}
        print(json.dumps({"figures": figures, "worst": worst, "targets": targets, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
