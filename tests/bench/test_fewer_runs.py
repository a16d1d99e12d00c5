"""Costly models that learned from fewer runs: what tables, sentences and commands say."""

import json
from pathlib import Path

import pytest

from tests.bench.test_scores import commit, fake
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.choosing import _with_all_splits
from transformer_nfn.bench.report.outside import standing
from transformer_nfn.bench.report.pages.notes import filled
from transformer_nfn.bench.report.pages.page import run_commands
from transformer_nfn.bench.report.results import results_json
from transformer_nfn.bench.report.scores import Comparison, comparisons
from transformer_nfn.bench.report.tables import differences_table, main_table
from transformer_nfn.bench.report.tiers import overview_table, tier_sentences
from transformer_nfn.bench.report.writing import write_report

TAU = ("predicted", "test_accuracy")
#: Of a tier: one of ours, and two others of which one learned from fewer runs.
SIZES = {"heads": {}, "nfn": {"noise": 0.2, "train_runs": 20}, "forest": {"noise": 2.0}}


def of_sizes(noise: float, whole: float = 0.02) -> Comparison:
    """One model fitted to all runs, another among the first 10 and the first 20."""
    cells = [fake("forest", split, whole) for split in (0, 1)]
    cells += [fake("nfn", split, 9.0, train_runs=10) for split in (0, 1)]
    cells += [fake("nfn", split, noise, train_runs=20) for split in (0, 1)]
    (comparison,) = comparisons(cells, ["forest", "nfn"], uneven=True)
    return comparison


def test_a_costly_model_may_have_learned_from_fewer_runs():
    """The most that it learned from counts, and what it had is said with each figure."""
    comparison = of_sizes(noise=0.5)
    assert [comparison.train_runs(model) for model in ("forest", "nfn")] == [None, 20]
    assert comparison.by_split("nfn")[0] == pytest.approx(
        kendall_tau(*(fake("nfn", 0, 0.5).column(c) for c in ("predicted", "test_accuracy")))
    )
    assert "| Transformer-NFN (20 runs) |" in main_table(comparison, "mnist")
    assert "(20 runs)|" in overview_table([comparison])
    assert run_commands("zoo", comparison, "out") == [
        "tnfn bench run --zoo zoo --splits 2 --models forest --out out",
        "tnfn bench run --zoo zoo --splits 2 --train-runs 20 --models nfn --out out",
    ]
    # What it learned from all runs comes first, however good.
    cells = [fake("nfn", 0, 0.1, train_runs=20), fake("nfn", 0, 5.0), fake("forest", 0, 0.1)]
    (whole,) = comparisons(cells, ["forest", "nfn"], uneven=True)
    assert whole.train_runs("nfn") is None
    # Where nothing learned from all runs, this is said too; elsewhere nothing is mixed.
    (alone,) = comparisons(cells[:1], ["nfn"], uneven=True)
    assert alone.train_runs("nfn") == 20
    (even,) = comparisons([cells[0], cells[2]], ["forest", "nfn"])
    assert even.models == ["forest"]
    # A larger series that is not finished does not take the place of a finished one.
    finished = [fake("nfn", split, 0.1, train_runs=10) for split in (0, 1)]
    (series,) = comparisons([*finished, cells[0]], ["nfn"], uneven=True)
    assert (series.train_runs("nfn"), series.splits) == (10, [0, 1])


def test_none_is_called_ahead_of_a_model_that_had_fewer_runs():
    behind = of_sizes(noise=0.5)
    assert behind.difference("forest", "nfn").low > 0
    assert behind.order("forest", "nfn") == "had more runs"
    assert behind.order("nfn", "forest") == "had fewer runs"
    assert "had fewer runs |" in differences_table(behind)
    asked = "{order:mnist-small/independent/forest/nfn} it"
    assert filled(asked, [behind]) == "higher, but with more runs, than it"
    cells = [fake(model, 0, **{"noise": 0.02, **some}) for model, some in SIZES.items()]
    (three,) = comparisons(cells, list(SIZES), uneven=True)
    assert tier_sentences([three])[0].endswith("is first, of all that had as many runs.")
    (two,) = comparisons(cells[:2], list(SIZES), uneven=True)
    assert tier_sentences([two])[0].endswith("is highest, all others had fewer runs.")
    ahead = of_sizes(noise=0.02, whole=0.5)
    assert (ahead.order("nfn", "forest"), ahead.order("forest", "nfn")) == ("ahead", "behind")
    assert "behind |" in differences_table(ahead)
    assert "fewer runs" not in differences_table(ahead)
    # Two that had equally few are compared like any other two.
    both = [fake("nfn", 0, 0.02, train_runs=20), fake("forest", 0, 2.0, train_runs=20)]
    (equal,) = comparisons(both, ["forest", "nfn"], uneven=True)
    assert equal.order("nfn", "forest") == "ahead"
    # One that had fewer runs and is ahead is named, whoever is first in the splits that all have.
    cells = [fake("heads", split, 0.3 if split else 0.001) for split in range(5)]
    cells += [fake("nfn", split, 0.05, train_runs=20) for split in range(5)]
    (crossed,) = comparisons([*cells, fake("forest", 0, 0.5)], list(SIZES), uneven=True)
    assert "behind Transformer-NFN" in tier_sentences([crossed])[0]
    cells = [fake("heads", split, 0.9 if split else 0.001, train_runs=20) for split in range(5)]
    cells += [fake("nfn", split, 0.05) for split in range(5)]
    (crossed,) = comparisons([*cells, fake("forest", 0, 0.5)], list(SIZES), uneven=True)
    assert "behind, with fewer runs, Transformer-NFN" in tier_sentences([crossed])[0]


def test_a_fit_among_fewer_runs_has_one_record():
    cells = [fake("forest", 0, 0.1), fake("nfn", 0, 0.1, train_runs=20)]
    cells += [fake("nfn", 0, 0.1, train_runs=10)]
    found = json.loads(results_json(cells))["records"]
    told = [(r["experiment"], r["model"], r.get("train_runs")) for r in found if "epoch" in r]
    assert sorted(told, key=str) == [
        ("main", "forest", None),
        ("main", "nfn", 20),
        ("sizes", "nfn", 10),
    ]


def outside(split: int) -> Finished:
    """Predictions that were made elsewhere."""
    told = {"tier": "weights", "sha256": "0" * 64}
    cell = fake("forest", split, 0.3, outside=told)
    return cell._replace(record={**cell.record, "model": "mine"})


def test_predictions_from_outside_stand_beside_them():
    mine, costly = outside(0), fake("tokens", 0, 0.1, train_runs=20)
    # Neither fewer runs than that, nor a zoo that has grown since, nor another experiment counts.
    others = [fake("tokens", 0, 5.0, **some) for some in ({"train_runs": 10}, {"augment": 1.0})]
    others += [fake("tokens", 0, 5.0, zoo_runs=100)]
    placed = {one.model: one.order for one in standing(mine, [costly, *others])}
    assert placed == {"mine": None, "tokens": "behind"}


def test_their_splits_are_among_those_that_all_have():
    cells = [fake("forest", split, 0.1) for split in range(5)]
    cells += [fake("tokens", split, 0.1, train_runs=20) for split in (1, 2)]
    cells += [fake("tokens", split, 0.1, augment=1.0) for split in range(5)]
    mine = [outside(1), outside(2)]
    assert _with_all_splits([*cells, *mine]) == ([*cells, *mine], {})
    kept, missing = _with_all_splits([*cells, mine[0]])
    assert (len(kept), missing) == (len(cells), {"mine": [2]})


def page(name: str, cells: list[Finished], home: Path) -> str:
    commit(cells, home / "out")
    write_report(home / "out", home / "report")
    return (home / "report" / name).read_text("utf-8")


@pytest.mark.usefixtures("plain_pictures")
def test_commands_of_curves_fit_nothing_costly_to_a_whole_zoo(tmp_path: Path) -> None:
    sizes = [(10, 1.0), (20, 0.5)]
    cells = [fake("tokens", s, noise, train_runs=n) for n, noise in sizes for s in (1, 2)]
    cells += [fake("mlp", s, noise, train_runs=n) for n, noise in sizes for s in range(5)]
    cells += [fake("mlp", s, 0.1) for s in range(5)]
    curves = page("learning-curves.md", cells, tmp_path)
    lines = [line for line in curves.splitlines() if "bench run" in line]
    assert [line.partition(" --splits ")[2] for line in lines] == [
        "5 --experiment sizes --models mlp --out out",
        "1,2 --train-runs 10 --models tokens --out out",
        "1,2 --train-runs 20 --models tokens --out out",
    ]
    first, zoo = (
        tmp_path / "report" / f"{name}.md" for name in ("index", "mnist-small-independent")
    )
    assert "(2; 20 runs)|" in first.read_text("utf-8")
    for text in (first.read_text("utf-8"), zoo.read_text("utf-8")):
        assert "that was fitted to more is never called ahead of it" in " ".join(text.split())


@pytest.mark.usefixtures("plain_pictures")
def test_figures_of_other_experiments_are_of_the_same_splits(tmp_path: Path) -> None:
    """A costly model with fewer splits takes nothing from tables that it is not in."""
    cells = [fake(model, s, 0.1) for model in ("nfn", "mlp") for s in range(3)]
    cells += [fake("tokens", 1, 0.1)]
    again = [fake(m, s, 0.1, threshold=0.5) for m in ("nfn", "mlp") for s in (0, 2)]
    moved = [fake(m, s, 0.2, augment=1.0) for m in ("nfn", "mlp") for s in range(3)]
    moved += [fake("tokens", s, 0.2, augment=1.0) for s in (1, 2)]
    paper = page("paper.md", [*cells, *again, *moved], tmp_path)
    retrained = paper.partition("## Training again")[2]
    assert "Splits: 0, 2." in retrained
    rows = [line for line in retrained.splitlines() if line.startswith("|") and " → " in line]
    assert [row.split("|")[1].strip() for row in rows] == ["Transformer-NFN", "MLP"]
    asked = [fake(m, s, 0.4, question="gap") for m in ("nfn", "mlp") for s in (0, 2)]
    both = [kendall_tau(*(fake("mlp", s, 0.1).column(c) for c in TAU)) for s in (0, 2)]
    questions = page("questions.md", [*cells, *asked], tmp_path / "asked")
    assert "Splits: 0, 2." in questions
    assert f"| MLP | {sum(both) / 2:.3f} [" in questions
    mean = sum(kendall_tau(*(fake("mlp", s, 0.1).column(c) for c in TAU)) for s in (1, 2)) / 2
    augmented = paper.partition("## Augmentation")[2]
    assert "Splits: 1, 2." in augmented  # those of all models that were augmented
    assert f"| MLP | {mean:.3f} [" in augmented
