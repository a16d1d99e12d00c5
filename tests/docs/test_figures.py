"""Figures that people typed into pages are those of the published results."""

import json
import re
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from transformer_nfn.bench.models.fittings import CHOSEN, NEURAL
from transformer_nfn.zoo import Recipe

ROOT = Path(__file__).parents[2]
COLUMNS = {
    "MNIST": ("mnist-small", "independent"),
    "MNIST, one start for all": ("mnist-small", "shared"),
    "independent starts": ("mnist-small", "independent"),
    "one start": ("mnist-small", "shared"),
}
#: What README calls models; elsewhere a row begins with the model's name in the code.
ROWS = {
    "ours: agreement probes, and invariants": "agreement-invariants",
    "ours: agreement probes alone": "agreement",
    "ours: a graph of heads and neurons": "heads",
    "1,000 images without labels": "consensus",
    "200 labelled images": "labels-200",
    "the same on statistics of each tensor": "statistics",
    "boosted trees and a kernel on invariants of the group": "invariants",
    "the same on hyperparameters, no weight read": "hyperparameters",
    "an MLP on all weights": "mlp",
    "the paper's Transformer-NFN": "nfn",
}
#: Rows that are no model's.
UNNAMED = ("the most that noise allows", "")


def published() -> dict[tuple[str, str, str], float]:
    """τ of each zoo, track and model: the mean over splits of the means over seeds."""
    results = json.loads((ROOT / "docs" / "results" / "results.json").read_text("utf-8"))
    taus: dict[tuple[str, str, str], dict[int, list[float]]] = defaultdict(dict)
    for record in results["records"]:
        if (record["experiment"], record.get("threshold_name")) == ("main", "none"):
            key = record["zoo"], record["track"], record["model"]
            taus[key].setdefault(record["split"], []).append(record["tau"])
    return {key: mean(map(mean, by_split.values())) for key, by_split in taus.items()}


def typed(text: str) -> list[tuple[str, str, str]]:
    """Column, row and text of every cell of the tables that have a column of `COLUMNS`."""
    found, columns = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            columns = []
        elif not columns:
            columns = cells
        elif COLUMNS.keys() & set(columns):
            found += [(column, cells[0], cell) for column, cell in zip(columns, cells, strict=True)]
    return [one for one in found if one[0] in COLUMNS]


def compared(text: str) -> list[tuple[str, str, str, float | None]]:
    """Column, model and figure of every typed one, and what was published."""
    taus = published()
    found = []
    for column, row, cell in typed(text):
        number = re.search(r"[−-]?\d\.(\d+)", cell)
        model = ROWS.get(row, row.strip("`"))
        if number is not None and row not in UNNAMED:
            tau = taus.get((*COLUMNS[column], model))
            shown = None if tau is None else round(tau, len(number[1]))
            found.append((column, model, number[0].replace("−", "-"), shown))
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/guides/rank.md", "docs/tutorials/train.md"])
def test_typed_figures_are_the_published_ones(page: str) -> None:
    figures = compared((ROOT / page).read_text("utf-8"))
    assert len(figures) >= 8
    assert [one for one in figures if one[3] is None or float(one[2]) != one[3]] == []


def test_other_figures_and_unknown_models_are_seen() -> None:
    table = "| x | MNIST | y |\n|---|---|---|\n| `nfn` | **0.999** | 0.1 |\n| mine | 0.5 | 0.2 |\n"
    nfn, mine = compared(table)
    assert nfn[:3] == ("MNIST", "nfn", "0.999")
    assert nfn[3] is not None
    assert float(nfn[2]) != nfn[3]
    assert mine == ("MNIST", "mine", "0.5", None)


def test_so_many_configurations_are_among_the_first_runs() -> None:
    """As the rules say of the sizes of learning curves."""
    rules = (ROOT / "docs" / "results" / "rules.md").read_text("utf-8").replace("\n", " ")
    recipe = Recipe.load("mnist-small")
    for track, sizes in (
        (recipe, (75, 300, 600, 1200, 2400)),
        (recipe.with_seeds("shared"), (300, 600, 1200)),
    ):
        runs = track.first_runs(sizes[-1])
        counts = [len({run.hyperparameters.twins for run in runs[:size]}) for size in sizes]
        *some, last = [f"{count:,}" for count in counts]
        assert f"{', '.join(some)} and {last}" in rules


def test_the_table_of_searches_is_of_the_published_ones() -> None:
    page = (ROOT / "docs" / "results" / "models.md").read_text("utf-8").splitlines()
    for model in NEURAL:
        shown = [f"`{model}`"]
        for (task, track), chosen in CHOSEN.items():
            if model not in chosen:
                shown += ["", "", ""]
                continue
            fits = searched(task, track)
            tau = {
                (one["fitting"]["lr"], one["fitting"]["weight_decay"]): one["tau_validation"]
                for one in fits
                if one["model"] == model
            }
            rate, decay = chosen[model]
            shown += [f"{rate:g}, {decay:g}", f"{tau[rate, decay]:.3f}", f"{tau[1e-3, 0.0]:.3f}"]
        assert f"| {' | '.join(shown)} |" in page


def searched(task: str, track: str) -> list[dict[str, Any]]:
    """All fits of the search on networks of a task with a kind of starts."""
    for path in (ROOT / "docs" / "results" / "fits").glob("*.json"):
        search = json.loads(path.read_text("utf-8"))
        if (search["task"], search["track"]) == (task, track):
            fits: list[dict[str, Any]] = search["fits"]
            return fits
    raise AssertionError(f"no search on {task}, {track}")
