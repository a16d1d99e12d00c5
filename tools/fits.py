"""Choose how the benchmark's neural models are trained: the same search for each of them.

    tnfn zoo build mnist-tuning --out mnist-tuning
    python tools/fits.py mnist-tuning --out docs/results/fits/mnist-tuning.json [--models nfn,mlp]

Fits each model with each candidate of `bench.models.fittings` to split 0 of a zoo that is in no
table, and writes τ on validation. It can be interrupted: what is in the file is not fitted again.
The exit code is 1 if `fittings.CHOSEN` does not have what was best.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.fittings import CHOSEN, NEURAL, candidates
from transformer_nfn.bench.models.neural import Fitting
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.loading import divide, load_examples, task_and_track
from transformer_nfn.jobs import no_subnormals, track
from transformer_nfn.zoo.dataset import Zoo


def fit(url: str, model: str, fitting: Fitting) -> dict[str, Any]:
    """Fit one candidate; its figures."""
    divided = divide(url, load_examples(url, "epochs", None), 0)
    begun = time.process_time()
    settings = {**MODELS[model].settings, "fitting": fitting.model_dump()}
    tokens = Zoo(url).shape.tokens
    predictor = MODELS[model].make(seed=0, tokens=tokens, device="cpu", **settings)
    with no_subnormals():  # as in the benchmark
        predictor.fit(divided.train, divided.validation)
    tau = kendall_tau(predictor.predict(divided.validation), divided.validation.accuracy)
    return {
        "model": model,
        "fitting": fitting.model_dump(),
        "tau_validation": round(tau, 4),
        "seconds": round(time.process_time() - begun, 1),
    }


def in_order(fits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The fits of candidates in their order, whichever was finished first: of ties the first."""
    return [
        one
        for model in NEURAL
        for fitting in candidates(model)
        for one in fits
        if (one["model"], one["fitting"]) == (model, fitting.model_dump())
    ]


def best_of(fits: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Rate and decay with the highest τ, of each model whose candidates are all there."""
    best = {}
    for model in NEURAL:
        mine = [one for one in in_order(fits) if one["model"] == model]
        if len(mine) == len(candidates(model)):
            fitting = max(mine, key=lambda one: one["tau_validation"])["fitting"]
            best[model] = (fitting["lr"], fitting["weight_decay"])
    return best


def main(arguments: list[str] | None = None) -> int:
    """Fit what is missing, and say what is best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoo", help="folder of a zoo that is in no table")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--models", help="which, with commas between; those of CHOSEN if not given")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="fits at a time")
    given = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    if given.out.is_file():
        found = json.loads(given.out.read_text("utf-8"))["fits"]
    networks = task_and_track(given.zoo)
    models = given.models.split(",") if given.models else CHOSEN.get(networks, NEURAL)
    done = [(one["model"], one["fitting"]) for one in found]
    wanted = [
        (model, fitting)
        for model in models
        for fitting in candidates(model)
        if (model, fitting.model_dump()) not in done
    ]
    divided = divide(given.zoo, load_examples(given.zoo, "epochs", None), 0)
    figures = {
        "zoo": Zoo(given.zoo).name,
        "task": networks[0],
        "track": networks[1],
        "runs": len(set(divided.train.column("run"))),
        "validation_runs": len(set(divided.validation.column("run"))),
    }
    pool = ProcessPoolExecutor(given.processes, mp_context=get_context("spawn"))
    try:
        jobs = [pool.submit(fit, given.zoo, *one) for one in wanted]
        for job in track(as_completed(jobs), len(jobs), 0, "fits"):
            found.append(job.result())
            text = json.dumps({**figures, "fits": in_order(found)}, indent=1) + "\n"
            given.out.write_text(text, encoding="utf-8")
    finally:
        pool.shutdown(cancel_futures=True)
    best = best_of(found)
    for model, (rate, decay) in best.items():
        taus = [one["tau_validation"] for one in found if one["model"] == model]
        print(f"{model}: rate {rate:g}, decay {decay:g}, τ {max(taus):.3f} (of {len(taus)} tried)")
    known = CHOSEN.get(networks, {})
    other = [model for model, chosen in best.items() if chosen != known.get(model)]
    if other:
        print(f"fittings.CHOSEN has others for {', '.join(other)}: write these down there")
    return 1 if other else 0


if __name__ == "__main__":
    sys.exit(main())
