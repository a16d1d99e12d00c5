from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.bench.test_scores import fake, with_predictions
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.pages.page import Page
from transformer_nfn.bench.report.pages.zoo import zoo_page
from transformer_nfn.bench.report.scores import LEAST_GROUPS, Comparison, comparisons
from transformer_nfn.bench.report.within import (
    ceiling_within,
    groups_within,
    tau_within,
    within_table,
)


def compared(cells: list[Finished]) -> Comparison:
    (comparison,) = comparisons(cells, list(dict.fromkeys(c.record["model"] for c in cells)))
    return comparison


def by_pairs(comparison: Comparison, model: str) -> float:
    """τ-b over pairs of rows of one configuration and one checkpoint, pair by pair."""
    agree = untied_x = untied_y = 0.0
    for split in comparison.splits:
        rows = comparison.cells[model][split][0].table.to_pylist()
        for a, b in combinations(rows, 2):
            if a["twins"] == b["twins"] and a["checkpoint"] == b["checkpoint"]:
                x = np.sign(a["predicted"] - b["predicted"])
                y = np.sign(a["test_accuracy"] - b["test_accuracy"])
                agree, untied_x, untied_y = agree + x * y, untied_x + abs(x), untied_y + abs(y)
    return float(agree / np.sqrt(untied_x * untied_y))


def test_it_is_of_pairs_within_a_configuration_and_a_checkpoint():
    comparison = compared([fake("mlp", split, 0.3, alike=3) for split in range(3)])
    tau = tau_within(comparison, "mlp")
    assert tau is not None
    assert tau.mean == pytest.approx(by_pairs(comparison, "mlp"))
    assert tau.low < tau.mean < tau.high
    configurations, pairs = groups_within(comparison, comparison.every_split)
    runs = [Counter((np.arange(40) + 1000 * split) // 3) for split in range(3)]
    assert configurations == sum(count > 1 for counted in runs for count in counted.values())
    assert pairs > 2 * configurations  # two checkpoints, and up to three pairs of runs


def test_what_knows_the_recipe_alone_knows_nothing_of_it():
    """A planted leak: predictions that are equal within a configuration order none of its runs."""
    cells = []
    for split in range(3):
        cell = fake("hyperparameters", split, 0.0, alike=2)
        mean = cell.column("test_accuracy").reshape(-1, 4).mean(axis=1).repeat(4)
        cells.append(Finished(cell.record, with_predictions(cell, mean)))
    comparison = compared([*cells, *(fake("nfn", s, 0.1, alike=2) for s in range(3))])
    assert comparison.tau("hyperparameters").mean > 0.4
    known, read = (tau_within(comparison, one) for one in ("hyperparameters", "nfn"))
    assert known is not None
    assert read is not None
    assert (known.mean, known.low, known.high) == (0.0, 0.0, 0.0)
    assert read.mean > 0.6
    lines = (within_table(comparison) or "").splitlines()
    count, _ = groups_within(comparison, comparison.every_split)
    assert lines[2].startswith("| Transformer-NFN | 0.")
    assert f" | {count} | " in lines[2]
    assert lines[3].startswith(f"| Hyperparameters | 0.000 [0.00, 0.00] | {count} | 0.")
    ceiling = ceiling_within(comparison)
    assert ceiling is not None
    assert read.mean < ceiling <= 1
    assert lines[4] == f"| noise ceiling | {ceiling:.3f} |  | {comparison.ceiling():.3f} |"


def test_nothing_is_said_where_every_configuration_was_trained_once():
    comparison = compared([fake("mlp", split, 0.3) for split in range(2)])
    assert tau_within(comparison, "mlp") is None
    assert ceiling_within(comparison) is None
    assert within_table(comparison) is None
    assert groups_within(comparison, [0, 1]) == (0, 0)


def test_nothing_is_said_of_few_configurations():
    """By the splits of the model: others may have been tested on more."""
    cells = [fake("mlp", split, 0.3, runs=24, alike=2) for split in range(2)]
    cells.append(fake("nfn", 0, 0.3, runs=24, alike=2))
    (comparison,) = comparisons(cells, ["mlp", "nfn"], uneven=True)
    assert groups_within(comparison, [0, 1])[0] >= LEAST_GROUPS > groups_within(comparison, [0])[0]
    assert tau_within(comparison, "mlp") is not None
    assert tau_within(comparison, "nfn") is None
    assert "Transformer-NFN" not in (within_table(comparison) or "")


def test_runs_without_a_twin_do_not_count():
    cells = [fake("mlp", split, 0.3, alike=3) for split in range(3)]
    alone = []
    for cell in cells:
        odd = cell.column("run") % 3 == 0
        twins = np.where(odd, cell.column("run_id"), cell.column("twins"))
        place = cell.table.column_names.index("twins")
        table = cell.table.set_column(place, "twins", pa.array(twins.tolist()))
        alone.append(Finished(cell.record, table))
    comparison = compared(alone)
    tau = tau_within(comparison, "mlp")
    assert tau is not None
    assert tau.mean == pytest.approx(by_pairs(comparison, "mlp"))
    splits = comparison.every_split
    assert groups_within(comparison, splits)[1] < groups_within(compared(cells), splits)[1]


@pytest.mark.usefixtures("plain_pictures")
@pytest.mark.parametrize("control", [0.1, None])
def test_where_the_control_orders_runs_of_one_configuration_nothing_is_concluded(
    control: float | None, tmp_path: Path
) -> None:
    cells = [fake("nfn", split, 0.1, alike=2) for split in range(3)]
    recipe = [fake("hyperparameters", split, control or 0.0, alike=2) for split in range(3)]
    if control is None:
        recipe = [Finished(one.record, with_predictions(one, same_in_twins(one))) for one in recipe]
    page = zoo_page(Page(tmp_path, "bench"), compared([*cells, *recipe]))
    assert "Hyperparameters are the\ncontrol" in page
    assert ("Here the control fails" in page) == (control is not None)


def same_in_twins(cell: Finished) -> np.ndarray:
    """What a model says that knows nothing but the configuration."""
    names, place = np.unique(cell.table["twins"].to_pylist(), return_inverse=True)
    return np.arange(len(names))[place].astype(float)
