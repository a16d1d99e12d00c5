"""Choose how the benchmark's neural models are trained: the same search for each of them.

    tnfn zoo build mnist-tuning --out mnist-tuning
    python tools/fits.py mnist-tuning --out docs/results/fits.json [--models nfn,mlp]

Fits each model with each candidate of `bench.models.fittings` to split 0 of a zoo that is in no
table, and writes τ on validation. It can be interrupted: what is in the file is not fitted again.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.fittings import CHOSEN, candidates
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.loading import divide, load_examples
from transformer_nfn.jobs import track
from transformer_nfn.zoo.dataset import Zoo


def main() -> None:
    """Fit what is missing, and say what is best."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoo", help="folder of a zoo that is in no table")
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the figures")
    parser.add_argument("--models", default=",".join(CHOSEN), help="which, with commas between")
    given = parser.parse_args()
    found: list[dict[str, Any]] = []
    if given.out.is_file():
        found = json.loads(given.out.read_text("utf-8"))["fits"]
    done = [(fit["model"], fit["fitting"]) for fit in found]
    wanted = [
        (model, fitting)
        for model in given.models.split(",")
        for fitting in candidates(model)
        if (model, fitting.model_dump()) not in done
    ]
    divided = divide(given.zoo, load_examples(given.zoo, "epochs", None), 0)
    zoo = Zoo(given.zoo)
    for model, fitting in track(iter(wanted), len(wanted), 0, "fits"):
        begun = time.process_time()
        settings = {**MODELS[model].settings, "fitting": fitting.model_dump()}
        predictor = MODELS[model].make(seed=0, tokens=zoo.shape.tokens, device="cpu", **settings)
        predictor.fit(divided.train, divided.validation)
        tau = kendall_tau(predictor.predict(divided.validation), divided.validation.accuracy)
        seconds = round(time.process_time() - begun, 1)
        found.append(
            {
                "model": model,
                "fitting": fitting.model_dump(),
                "tau_validation": round(tau, 4),
                "seconds": seconds,
            }
        )
        figures = {
            "zoo": zoo.name,
            "runs": len(set(divided.train.column("run"))),
            "validation_runs": len(set(divided.validation.column("run"))),
            "fits": found,
        }
        given.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for model in CHOSEN:
        fits = [fit for fit in found if fit["model"] == model]
        if fits:
            best = max(fits, key=lambda fit: fit["tau_validation"])
            chosen = best["fitting"]
            print(
                f"{model}: rate {chosen['lr']:g}, decay {chosen['weight_decay']:g}, "
                f"τ {best['tau_validation']:.3f} (of {len(fits)} tried)"
            )


if __name__ == "__main__":
    main()
