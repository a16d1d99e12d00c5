import json

import numpy as np
import pyarrow as pa
import pytest

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.kendall import kendall_tau, resampled_counts, tau_of_resamples
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.computing import SEEN, Finished
from transformer_nfn.bench.protocol.loading import Threshold
from transformer_nfn.bench.report.pages.page import run_commands
from transformer_nfn.bench.report.results import results_json
from transformer_nfn.bench.report.scores import LEAST_GROUPS, Comparison, comparisons
from transformer_nfn.bench.report.tables import differences_table, main_table
from transformer_nfn.jobs import ShardFolder

THRESHOLDS = [["none", 0.0], ["best 50 %", 0.5]]
HALF = pa.array([True, False] * 40)


def fake(
    model: str,
    split: int,
    noise: float,
    *,
    runs: int = 40,
    shift: int = 0,
    seed: int = 0,
    alike: int = 1,
    **changes: object,
) -> Finished:
    """A finished cell of a model that knows accuracies up to some noise.

    So many runs in a row are `alike`: of one configuration.
    """
    random = np.random.default_rng(split)  # the same truth for all models
    run = np.repeat(np.arange(runs), 2) + 1000 * split + shift
    accuracy = np.round(random.random(runs).repeat(2) * 1000) / 1000
    own = np.random.default_rng([split, *model.encode(), *([seed] if seed else [])])
    predicted = accuracy + own.normal(0, noise, 2 * runs)
    table = pa.table(
        {
            "run": run,
            "run_id": [f"r{one}" for one in run],
            "twins": [f"t{one // alike}" for one in run],
            "checkpoint": ["1", "2"] * runs,
            "epoch": [1, 2] * runs,
            "test_accuracy": accuracy,
            "predicted": predicted,
            "moved": predicted + (0 if model == "nfn" else own.normal(0, 1, 2 * runs)),
        }
    )
    record = {
        "zoo": "mnist-small",
        "folder": "mnist-small",
        "track": "independent",
        "task": "mnist",
        "model": model,
        "split": split,
        "seed": seed,
        "checkpoints": "epochs",
        "runs": None,
        "augment": None,
        "threshold": None,
        "thresholds": THRESHOLDS,
        "zoo_runs": 5 * runs,
        "data": "0" * 64,
        "tau": kendall_tau(predicted, accuracy),
        "tau_moved": 0.0,
        "parameters": None if model == "lightgbm" else 10,
        "epoch": None,
        "train_rows": 10,
        "validation_rows": 5,
        "settings": MODELS[model].settings_on(
            changes.get("task", "mnist"), changes.get("track", "independent")
        ),
        "versions": {},
        "fit_seconds": 1.0,
        "predict_seconds": 0.1,
        "test_rows": 2 * runs,
        **changes,
    }
    return Finished(record, table)


def with_predictions(cell: Finished, predicted: np.ndarray) -> pa.Table:
    place = cell.table.column_names.index("predicted")
    return cell.table.set_column(place, "predicted", pa.array(predicted))


NOISE = {"nfn": 0.05, "mlp": 0.5, "lightgbm": 0.06}
CELLS = [fake(model, split, noise) for model, noise in NOISE.items() for split in range(5)]


def compared() -> Comparison:
    (comparison,) = comparisons(CELLS, list(NOISE))
    return comparison


def test_the_mean_over_splits_lies_in_its_interval():
    comparison = compared()
    for model in NOISE:
        tau = comparison.tau(model)
        taus = [cell.record["tau"] for cell in CELLS if cell.record["model"] == model]
        assert tau.mean == pytest.approx(np.mean(taus))
        assert tau.low < tau.mean < tau.high


def test_a_clear_winner_is_ahead_and_a_tie_is_not():
    comparison = compared()
    assert comparison.ranking()[-1] == "mlp"
    assert comparison.difference("nfn", "mlp").low > 0
    assert comparison.difference("mlp", "nfn").excludes_zero
    same = comparisons([*CELLS, *(fake("forest", s, 0.05) for s in range(5))], ["nfn", "forest"])
    assert not same[0].difference("nfn", "forest").excludes_zero
    nothing = comparison.difference("nfn", "nfn")
    assert nothing == (0.0, 0.0, 0.0)


def test_pairing_makes_differences_sharper():
    """Two models that err alike differ by less than each is uncertain."""
    alike = []
    for cell in (fake("mlp", split, 0.5) for split in range(5)):
        noise = np.random.default_rng(7).normal(0, 0.02, len(cell.table))
        table = with_predictions(cell, cell.column("predicted") + noise)
        alike.append(Finished({**cell.record, "model": "forest"}, table))
    (comparison,) = comparisons([*CELLS, *alike], ["mlp", "forest"])
    gap, alone = comparison.difference("mlp", "forest"), comparison.tau("mlp")
    assert gap.high - gap.low < 0.3 * (alone.high - alone.low)


def test_a_threshold_takes_only_rows_that_reach_it():
    """A planted leak: predictions that are right only below the threshold must not help above."""
    cells = []
    for cell in CELLS[:5]:
        accuracy = cell.column("test_accuracy")
        noise = np.random.default_rng(0).random(len(accuracy))
        lying = np.where(accuracy >= 0.5, noise + 1.0, accuracy)
        table = with_predictions(cell, lying)
        cells.append(Finished(cell.record, table))
    (comparison,) = comparisons(cells, ["nfn"])
    assert comparison.tau("nfn").mean > 0.5
    above = comparison.tau("nfn", Threshold("best 50 %", 0.5))
    assert abs(above.mean) < 0.2
    expected = [
        kendall_tau(
            cell.column("predicted")[cell.column("test_accuracy") >= 0.5],
            cell.column("test_accuracy")[cell.column("test_accuracy") >= 0.5],
        )
        for cell in cells
    ]
    assert above.mean == pytest.approx(np.mean(expected))


def test_models_tested_on_other_rows_are_not_compared():
    with pytest.raises(BenchError, match="other rows"):
        comparisons([*CELLS[:5], *(fake("mlp", s, 0.1, shift=1) for s in range(5))], ["nfn", "mlp"])


def test_only_splits_that_all_models_have_are_compared():
    (comparison,) = comparisons(CELLS[:8], list(NOISE))
    assert comparison.splits == [0, 1, 2]


def test_augmented_and_retrained_cells_stand_apart():
    odd = [fake("nfn", 0, 0.1, augment=10.0), fake("nfn", 0, 0.1, threshold=0.5)]
    assert len(comparisons(odd, ["nfn"])) == 0
    assert len(comparisons(odd, ["nfn"], augment=10.0)) == 1
    assert len(comparisons(odd, ["nfn"], threshold=0.5)) == 1


def test_the_ceiling_is_above_all_models_that_are_not_perfect():
    ceiling = compared().ceiling()
    assert ceiling is not None
    assert compared().tau("nfn").mean < ceiling < 1


def test_the_change_under_the_group():
    comparison = compared()
    assert comparison.change_under_group("nfn") == (0.0, 0.0)
    mean, largest = comparison.change_under_group("lightgbm")
    assert mean < -0.3
    assert largest >= -mean


def of_two(runs: int, good: float, bad: float) -> Comparison:
    """Two models on five splits of so many test runs each."""
    cells = [
        fake(model, split, noise, runs=runs)
        for model, noise in (("forest", good), ("nfn", bad))
        for split in range(5)
    ]
    (comparison,) = comparisons(cells, ["forest", "nfn"])
    return comparison


def test_an_order_is_claimed_only_where_the_difference_shows_it():
    clear = of_two(40, 0.05, 0.5)
    assert clear.order("forest", "nfn") == "ahead"
    assert clear.order("nfn", "forest") == "behind"
    alike = of_two(40, 0.2, 0.21)
    assert {alike.order("forest", "nfn"), alike.order("nfn", "forest")} == {"not told apart"}


def test_no_order_is_claimed_from_a_handful_of_runs():
    few = of_two(3, 0.02, 5.0)
    assert few.configurations(splits=few.splits) == 15 < LEAST_GROUPS
    assert few.difference("forest", "nfn").low > 0  # which bootstraps of few runs are quick to say
    assert few.order("forest", "nfn") == "not told apart"
    assert "ahead" not in differences_table(few)


def uneven() -> list[Finished]:
    """Five splits of one model; of the other two, one of them with three seeds."""
    noise = {"forest": 0.1, "nfn": 0.5}
    found = [("forest", split, 0) for split in range(5)]
    found += [("nfn", split, seed) for split, seed in ((0, 0), (0, 1), (0, 2), (1, 0))]
    return [fake(model, split, noise[model], seed=seed) for model, split, seed in found]


def test_a_costly_model_may_have_fewer_splits():
    (comparison,) = comparisons(uneven(), ["forest", "nfn"], uneven=True)
    (even,) = comparisons(uneven(), ["forest", "nfn"])
    assert (even.splits, even.every_split) == ([0, 1], [0, 1])
    assert (comparison.splits, comparison.every_split) == ([0, 1], [0, 1, 2, 3, 4])
    assert len(comparison.by_split("forest")) == 5
    assert comparison.tau("nfn") == even.tau("nfn")
    assert comparison.tau("forest").mean == np.mean(comparison.by_split("forest"))
    assert comparison.tau("forest") != even.tau("forest")
    # What is said of two is of the splits that both have.
    assert comparison.difference("forest", "nfn") == even.difference("forest", "nfn")
    assert (comparison.configurations(splits=[0, 1]), comparison.configurations()) == (80, 200)
    assert comparison.pooled("nfn")[0].shape == (160,)
    assert comparison.pooled("forest")[0].shape == (400,)
    assert "| Transformer-NFN (2 splits) |" in differences_table(comparison)
    assert "splits)" not in differences_table(even)


def test_an_order_is_claimed_by_the_configurations_that_both_have_seen():
    cells = [fake("forest", split, 0.02, runs=15) for split in range(3)]
    both = [*cells, fake("nfn", 0, 5.0, runs=15)]
    (comparison,) = comparisons(both, ["forest", "nfn"], uneven=True)
    assert comparison.configurations() > LEAST_GROUPS
    assert comparison.order("forest", "nfn") == "not told apart"


def test_the_first_is_so_in_the_splits_that_all_have():
    """On its own five splits nfn looks better than forest; where both were tested it is worse."""
    cells = [fake("nfn", split, 1.0 if split < 2 else 0.01) for split in range(5)]
    cells += [fake("forest", split, 0.3) for split in (0, 1)]
    (comparison,) = comparisons(cells, ["forest", "nfn"], uneven=True)
    assert comparison.tau("nfn").mean > comparison.tau("forest").mean
    assert comparison.ranking() == ["forest", "nfn"]
    assert comparison.order("forest", "nfn") == "ahead"
    assert main_table(comparison, "mnist").splitlines()[2].startswith("| Random forest (2 splits)")


def test_models_without_a_split_in_common_are_shown_and_not_compared():
    cells = [fake("nfn", 0, 0.1), fake("nfn", 1, 0.1), fake("forest", 2, 0.1)]
    (comparison,) = comparisons(cells, ["forest", "nfn"], uneven=True)
    assert comparison.splits == comparison.splits_of("forest", "nfn") == []
    assert sorted(comparison.ranking()) == ["forest", "nfn"]
    assert comparison.order("forest", "nfn") == "not told apart"
    assert differences_table(comparison).count("no split in common") == 1


def test_two_builds_of_a_zoo_are_not_compared():
    """The ids of runs are alike, what came of the runs is not."""
    other = fake("forest", 0, 0.1)
    place = other.table.column_names.index("test_accuracy")
    moved = pa.array(np.roll(other.column("test_accuracy"), 2))
    rebuilt = Finished(other.record, other.table.set_column(place, "test_accuracy", moved))
    with pytest.raises(BenchError, match="another build of that zoo"):
        comparisons([fake("nfn", 0, 0.1), rebuilt], ["forest", "nfn"])


def test_commands_name_the_splits_where_they_are_not_the_first():
    cells = [fake("nfn", split, 0.1) for split in (1, 2)] + [fake("forest", 3, 0.1)]
    (comparison,) = comparisons(cells, ["forest", "nfn"], uneven=True)
    assert run_commands("zoo", comparison, "out") == [
        "tnfn bench run --zoo zoo --splits 1,2 --models nfn --out out",
        "tnfn bench run --zoo zoo --splits 3, --models forest --out out",
    ]


def test_commands_say_how_often_each_model_was_fitted():
    (comparison,) = comparisons(uneven(), ["forest", "nfn"], uneven=True)
    assert run_commands("zoo", comparison, "out") == [
        "tnfn bench run --zoo zoo --splits 5 --models forest --out out",
        "tnfn bench run --zoo zoo --splits 2 --models nfn --out out",
        "tnfn bench run --zoo zoo --splits 1 --seeds 3 --models nfn --out out",
    ]


def told_apart(splits: int, runs: int, times: int = 100) -> float:
    """How often the interval of the difference of two equally good models excludes 0."""
    random, found = np.random.default_rng(0), 0
    run = np.repeat(np.arange(runs), 3)
    for _ in range(times):
        gap = np.zeros(200)
        for split in range(splits):
            accuracy = random.random(runs).repeat(3) + 0.05 * random.random(3 * runs)
            counts = resampled_counts(run, 200, np.random.default_rng(split))
            for sign in (1, -1):
                noise = random.normal(0, 0.3, runs).repeat(3) + random.normal(0, 0.05, 3 * runs)
                gap += sign * tau_of_resamples(accuracy + noise, accuracy, run, counts)
        found += np.quantile(gap, 0.025) > 0 or np.quantile(gap, 0.975) < 0
    return found / times


def test_the_least_number_of_runs_keeps_the_promise_of_the_interval():
    assert told_apart(1, 2) > 0.1
    assert told_apart(4, LEAST_GROUPS // 4) <= 0.05
    assert told_apart(1, LEAST_GROUPS) <= 0.06


# ------------------------------------------------------------------------------------- report


def commit(cells: list[Finished], out) -> None:
    for number, cell in enumerate(cells):
        metadata = {b"transformer_nfn.bench": json.dumps(cell.record).encode()}
        ShardFolder(f"{out}/cells").commit(
            f"{number}.parquet", cell.table.replace_schema_metadata(metadata), row_group_size=1000
        )


def everything() -> list[Finished]:
    shared = [
        fake(m, s, n, track="shared", folder="mnist-small-shared")
        for m, n in NOISE.items()
        for s in range(5)
    ]
    names = ("nfn-3", "nfn-3-3", "nfn-rank-2", "nfn-encoder", "nfn-classifier")
    variants = [fake(m, 0, 0.1) for m in names]
    augmented = [fake(m, 0, 0.1, augment=b) for m in NOISE for b in (1.0, 10.0, 100.0)]
    again = [fake(m, 0, 0.1, runs=20, threshold=0.5, zoo_runs=200) for m in NOISE]
    sizes = [fake("mlp", s, 1.0, train_runs=n) for n in (75, 150) for s in range(5)]
    other = {"test_zoo": "digits-mini", "test_track": "independent", "test_folder": "digits"}
    across = [fake("lightgbm", s, 0.2, **other, test_zoo_runs=40) for s in range(5)]
    across = [one._replace(table=one.table.append_column(SEEN, HALF)) for one in across]
    return [*CELLS, *shared, *variants, *augmented, *again, *sizes, *across]


def test_who_is_ahead_of_whom():
    known = [fake("hyperparameters", s, 0.5) for s in range(5)]
    (comparison,) = comparisons([*CELLS, *known], [*NOISE, "hyperparameters"])
    lines = {
        line.split("|")[1].strip(): line for line in differences_table(comparison).splitlines()
    }
    assert lines["MLP"].count("behind") == 1
    assert lines["MLP"].count("not told apart") == 1
    assert lines["LightGBM"].endswith("ahead |")
    assert lines["Hyperparameters"].endswith("|  |  |")


def test_results_have_a_record_for_each_cell_and_threshold():
    records = json.loads(results_json(everything()))["records"]
    main = [one for one in records if one["experiment"] == "main"]
    assert len(main) == 2 * 3 * 5 * 2  # tracks, models, splits, thresholds
    for one in records:
        assert {"zoo", "track", "model", "threshold", "seed", "tau", "tau_moved"} <= set(one)
    experiments = {one["experiment"] for one in records}
    assert experiments == {"main", "variants", "augmentation", "thresholds", "sizes", "across"}
    assert {one["train_runs"] for one in records if one["experiment"] == "sizes"} == {75, 150}
    assert {one["test_zoo"] for one in records if one["experiment"] == "across"} == {"digits-mini"}


def test_the_best_is_bold_and_the_second_in_italics():
    comparison = compared()
    lines = main_table(comparison, "mnist").splitlines()
    for place, mark in ((0, "**"), (1, "*")):
        model = comparison.ranking()[place]
        tau = comparison.tau(model).mean
        assert lines[2 + place].startswith(f"| {MODELS[model].title} | {mark}{tau:.3f}")


# ------------------------------------------------------------------------- near-twins and seeds


def test_intervals_are_over_configurations_not_over_runs():
    """Runs of one configuration err alike here: they are not independent evidence."""

    def cells(alike: int) -> list[Finished]:
        made = []
        for split in range(3):
            cell = fake("mlp", split, 0.0, alike=alike)
            accuracy = cell.column("test_accuracy").reshape(-1, 8).mean(axis=1).repeat(8)
            place = cell.table.column_names.index("test_accuracy")
            table = cell.table.set_column(place, "test_accuracy", pa.array(accuracy))
            error = np.random.default_rng(split).normal(0, 0.3, len(accuracy) // 8).repeat(8)
            again = Finished(cell.record, table)
            made.append(Finished(cell.record, with_predictions(again, accuracy + error)))
        return made

    widths = []
    for alike in (1, 4):
        (comparison,) = comparisons(cells(alike), ["mlp"])
        tau = comparison.tau("mlp")
        assert tau.low < tau.mean < tau.high
        widths.append(tau.high - tau.low)
        assert comparison.configurations(splits=comparison.splits) == 3 * 40 // alike
    assert widths[1] > 1.5 * widths[0]


def seeded(noise: float, seeds: int, splits: int = 3) -> Comparison:
    cells = [fake("mlp", s, noise, seed=k) for k in range(seeds) for s in range(splits)]
    (comparison,) = comparisons(cells, ["mlp"])
    return comparison


def test_a_comparison_averages_over_the_seeds_of_a_split():
    three = seeded(0.3, 3)
    alone = [seeded(0.3, 3).by_seed("mlp", split) for split in range(3)]
    assert [len(taus) for taus in alone] == [3, 3, 3]
    assert three.by_split("mlp") == pytest.approx([np.mean(taus) for taus in alone])
    assert len({*alone[0]}) == 3
    few = [fake("mlp", s, 0.3, seed=k) for k, s in ((0, 0), (1, 0), (0, 1))]
    (uneven,) = comparisons([*few, fake("nfn", 0, 0.1), fake("nfn", 1, 0.1)], ["mlp", "nfn"])
    assert [uneven.seeds("mlp", s) for s in (0, 1)] == [[0, 1], [0]]
    assert uneven.seeds("nfn", 0) == [0]
    assert uneven.difference("nfn", "mlp").mean > 0


def test_an_interval_covers_seeds_as_well():
    """Two fits that have nothing in common: the luck of a fit is as large as can be."""
    good, bad = fake("mlp", 0, 0.01), fake("mlp", 0, 50.0, seed=1)
    (one,) = comparisons([good], ["mlp"])
    (both,) = comparisons([good, bad], ["mlp"])
    narrow, wide = one.tau("mlp"), both.tau("mlp")
    assert narrow.high - narrow.low < 0.1
    assert wide.low < 0.2
    assert wide.high > 0.8
    assert wide.mean == pytest.approx((good.record["tau"] + bad.record["tau"]) / 2)
    assert both.difference("mlp", "mlp") == (0.0, 0.0, 0.0)


def test_results_have_a_record_for_each_seed():
    cells = [fake("mlp", 0, 0.3, seed=seed) for seed in range(3)]
    records = json.loads(results_json(cells))["records"]
    whole = [one for one in records if one["threshold_name"] == "none"]
    assert [one["seed"] for one in whole] == [0, 1, 2]
    assert [one["tau"] for one in whole] == [round(c.record["tau"], 6) for c in cells]


def test_thresholds_are_shown_that_leave_rows_out_and_marked_where_enough_remain():
    bounds = [
        ["none", 0.0],
        ["≥ 20 %", 0.2],
        ["best 50 %", 0.5],
        ["best 25 %", 0.9],
        ["lowest", 0.0],
    ]
    cells = [fake(model, 0, noise, thresholds=bounds) for model, noise in NOISE.items()]
    lowest = float(cells[0].column("test_accuracy").min())
    bounds[-1][1] = lowest
    (one,) = comparisons(cells, list(NOISE))
    header, _, *rows = (
        line.strip("| ").split(" | ") for line in main_table(one, "mnist").splitlines()
    )
    assert header == ["model", "all rows", "≥ 20 %", "best 50 % (≥ 50.0 %)", "best 25 % (≥ 90.0 %)"]
    title, *counts = rows[-1]
    assert title == "configurations"
    accuracy, twins = (cells[0].column(name) for name in ("test_accuracy", "twins"))
    told = [len(set(twins[accuracy >= bound].tolist())) for bound in (0.0, 0.2, 0.5, 0.9)]
    assert [int(count) for count in counts] == told
    assert told[2] >= LEAST_GROUPS > told[3] > 0
    marked = [[cell.startswith("*") for cell in row[1:]].count(True) for row in rows[:2]]
    assert marked == [3, 3]
    assert not any(row[4].startswith("*") for row in rows[:3])
