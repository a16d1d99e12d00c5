import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from tests.bench.test_scores import CELLS, NOISE, commit, everything, fake
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.kind import TIERS
from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.learning import Learning, learnings
from transformer_nfn.bench.report.order import in_tier, shown_place
from transformer_nfn.bench.report.pages.asked import ByZoo, unseen_kinds
from transformer_nfn.bench.report.pages.front import front_page
from transformer_nfn.bench.report.pages.notes import filled
from transformer_nfn.bench.report.pages.page import Page
from transformer_nfn.bench.report.scores import Comparison, comparisons
from transformer_nfn.bench.report.tiers import overview_table, tier_sentences
from transformer_nfn.bench.report.within import tau_within
from transformer_nfn.bench.report.writing import write_report

NOTES = Path(__file__).parents[2] / "docs" / "results" / "notes.md"
MOST_WORDS = 900
DETAILS = ["[the paper's other tables](paper.md)", "[learning curves](learning-curves.md)"]


def words(page: str) -> int:
    """Words of a page; figures of tables count, the bars between them do not."""
    return len(page.replace("|", " ").split())


def compared(noise: dict[str, float] = NOISE, **changes: object) -> Comparison:
    cells = [fake(model, s, n, **changes) for model, n in noise.items() for s in range(3)]
    (comparison,) = comparisons(cells, list(noise))
    return comparison


def beyond(zoos: Sequence[str]) -> tuple[list[Learning], ByZoo]:
    """Learning curves, and tests on kinds of run not learned from, on zoos of both tracks."""
    cells, models = [], ("nfn", "nfn-authors", "invariants", "hyperparameters")
    for zoo, track, model in product(zoos, ("independent", "shared"), models):
        described = {"zoo": zoo, "folder": f"{zoo}-{track}", "track": track, "zoo_runs": 600}
        for size in (75, 150, 300, None):
            noise = 0.1 + 10 / (size or 600)
            cells.append(fake(model, 0, noise, train_runs=size, **described))
        kinds = ("adam", "largest-rates")
        cells += [fake(model, 0, 0.3, held_out=kind, **described) for kind in kinds]
    return learnings(cells, models), unseen_kinds(cells)


def report(cells: list[Finished], home: Path, notes: Path | None = None) -> dict[str, str]:
    """The pages of a report, by name."""
    commit(cells, home / "out")
    written = write_report(home / "out", home / "report", notes)
    pages = {
        path.name: path.read_text(encoding="utf-8") for path in written if path.suffix == ".md"
    }
    pictures = [path for path in written if path.suffix == ".png"]
    for path in pictures:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert sum(f"]({path.name})" in page for page in pages.values()) == 1
    for name, page in pages.items():
        for target in re.findall(r"\]\(([^)#]+)\)", page):
            assert (home / "report" / target).is_file() or target == "rules.md", (name, target)
    return pages


PARTS = {
    "index.md": [
        "](tracks.png)",
        "## Who is first",
        "Because nfn has 0.",
        "*noise ceiling*",
        "## What this does not show",
        "[learning curves](learning-curves.md)",
    ],
    "mnist-small-independent.md": [
        "5 splits, 400 test rows of 200 runs of 200 configurations.",
        "## Kendall's τ",
        "## Who is ahead of whom",
        "## Under the group",
        "## Cost",
        "noise ceiling",
        "tnfn bench run --zoo mnist-small --splits 5 --models ",
    ],
    "mnist-small-shared.md": [
        "tnfn zoo build mnist-small --runs 200 --seeds shared --out mnist-small-shared",
        "paper: all rows |",
    ],
    "paper.md": [
        "## Both tracks side by side",
        "| independent starts, 200 runs | shared start, 200 runs | paper (shared start, 16,000 ",
        "## Components",
        "## Channels",
        "## Ranks",
        "| Transformer-NFN, rank 2 |",
        "| Transformer-NFN [10], no rank |",
        "## Augmentation by the group",
        "## Training again above each threshold",
    ],
    "learning-curves.md": [
        "## mnist-small, independent starts, up to 200 runs",
        "--splits 5 --experiment sizes --models mlp --out out",
        "| 16,000, extrapolated |",
    ],
    "transfer.md": [
        "## mnist-small, independent starts → digits-mini, independent starts",
        "--experiment across --test-zoo digits --models lightgbm --out out",
        "tnfn zoo build digits-mini --runs 40 --out digits",
    ],
}


def test_a_report_has_every_page_and_every_part(tmp_path: Path) -> None:
    notes = tmp_path / "notes.md"
    notes.write_text("## Why\n\nBecause nfn has {tau:mnist-small/shared/nfn}.\n", encoding="utf-8")
    pages = report(everything(), tmp_path, notes)
    assert set(pages) == set(PARTS)
    for name, parts in PARTS.items():
        for part in parts:
            assert part in pages[name], (name, part)
    assert "paper:" not in pages["mnist-small-independent.md"]  # the paper has one start for all


def test_variants_that_are_costly_may_all_be_fitted_to_fewer_runs(tmp_path: Path) -> None:
    """Then they stand beside their like, not beside fits to more runs or to the fewest."""
    names = ("nfn-3", "nfn-5", "nfn-10-10")
    fewer = [fake(name, 0, 0.1, train_runs=100) for name in (*names, "nfn")]
    fewest = [fake(name, 0, 0.1, train_runs=50) for name in ("nfn-3", "nfn")]
    moved = [fake("mlp", 0, bound, augment=bound, train_runs=100) for bound in (1.0, 10.0)]
    unmoved = fake("mlp", 0, 0.5, train_runs=100)
    # To the whole zoo: of another size, and not in the place of that to fewer runs.
    whole = fake("mlp", 0, 0.1, augment=1.0)
    few = [*fewer, *fewest, *moved, unmoved]
    page = report([*CELLS, fake("nfn-3", 0, 0.2), *few, whole], tmp_path)["paper.md"]
    channels = page[page.index("## Channels") : page.index("## Augmentation")]
    named = "--models nfn-3,nfn-5,nfn,nfn-10-10 "  # not the two that were not fitted
    assert f"--splits 1 --train-runs 100 --experiment channels {named}" in channels
    for title in ("Transformer-NFN [10], all parts", "Transformer-NFN [10, 10]"):
        assert f"| {title} (100 runs) |" in channels
    assert channels.count("(100 runs) |") == 4
    assert "(50 runs)" not in channels
    ((_, original, one, ten, *more),) = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page[page.index("## Augmentation") :].splitlines()
        if line.startswith("| MLP (100 runs)")
    ]
    assert len({original, one, ten}) == 3
    assert more == ["0.879 / 0.830 / 0.833 / 0.833"]  # the paper's, which are of AG News
    assert "| in the paper, AG News: original / ±1 / ±10 / ±100 |" in page
    assert "--experiment augmentation --models mlp " in page  # as no other was fitted


def test_variants_of_other_rows_have_a_part_of_their_own(tmp_path: Path) -> None:
    both = [fake(m, 0, 0.1, checkpoints=c) for m in ("nfn-3", "nfn") for c in ("best", "epochs")]
    page = report(both, tmp_path)["paper.md"]
    for heading in ("starts, channels", "starts, best, channels"):
        assert page.count(f"### mnist-small, independent {heading}\n") == 1
    assert page.count("--checkpoints best --experiment channels") == 1
    assert "| in the paper, AG News |" in page[page.index("## Channels") :]  # it has none on MNIST


def test_augmentation_on_other_rows_has_a_part_of_its_own(tmp_path: Path) -> None:
    both = [
        fake("mlp", 0, noise, checkpoints=c, augment=bound)
        for c, noises in (("best", (0.1, 0.2)), ("epochs", (0.3, 0.4)))
        for noise, bound in zip(noises, (None, 1.0), strict=True)
    ]
    page = report(both, tmp_path)["paper.md"]
    rows = [line for line in page.splitlines() if line.startswith("| MLP |")]
    taus = {
        f"{compared_to.tau('mlp').mean:.3f}"
        for bound in (None, 1.0)
        for compared_to in comparisons(both, ["mlp"], augment=bound)
    }
    assert len(taus) == 4
    assert {cell.split()[0] for row in rows for cell in row.strip("|").split("|")[1:3]} == taus
    assert "### mnist-small, independent starts, best, augmented\n" in page
    assert "Balanced" not in page


def test_fits_above_thresholds_on_other_rows_have_a_part_of_their_own(tmp_path: Path) -> None:
    both = [
        fake("mlp", 0, noise, checkpoints=c, threshold=bound)
        for c, noise in (("best", 0.1), ("epochs", 0.4))
        for bound in (None, 0.5)
    ]
    page = report(both, tmp_path)["paper.md"]
    rows = [line for line in page.splitlines() if line.startswith("| MLP |")]
    assert len(rows) == len(set(rows)) == 2
    for heading in ("starts, trained again", "starts, best, trained again"):
        assert page.count(f"### mnist-small, independent {heading}\n") == 1


def test_pages_without_anything_to_say_are_not_written(tmp_path: Path) -> None:
    pages = report(CELLS, tmp_path)
    assert set(pages) == {"index.md", "mnist-small-independent.md"}
    assert "learning-curves.md" not in pages["index.md"]


@pytest.mark.usefixtures("plain_pictures")
def test_the_first_page_stays_short_with_many_models_and_zoos(tmp_path: Path) -> None:
    """All models on four zoos and both tracks, in another order on each; the page's own notes."""
    names = ("mnist-small", "agnews-small", "digits-mini", "mnist-good")
    cells = []
    for place, (zoo, track) in enumerate(product(names, ("independent", "shared"))):
        described = {"zoo": zoo, "folder": f"{zoo}-{track}", "track": track}
        for number, model in enumerate(main_models()):
            noise = 0.05 + 0.02 * ((number * (2 * place + 3)) % len(main_models()))
            cells += [fake(model, s, noise, runs=20, alike=2, **described) for s in (0, 1)]
    found = sorted(comparisons(cells, main_models()), key=shown_place)
    assert len(found) == 2 * len(names)
    notes = filled(NOTES.read_text(encoding="utf-8"), found, *beyond(names))
    page = front_page(Page(tmp_path, "bench"), found, notes, "", DETAILS)
    assert words(page) <= MOST_WORDS
    assert len(page.split()) <= MOST_WORDS
    assert page.count("![") == 1
    assert page.count("\n|---") == 1
    assert all(f"|{MODELS[model].title}" in page for model in main_models())
    assert "{" not in page


def test_the_table_goes_tier_by_tier_and_the_first_of_each_is_bold() -> None:
    noise = {"nfn": 0.3, "blockwise": 0.1, "agreement": 0.05, "hyperparameters": 0.6}
    whole = compared(noise)
    fewer = Comparison("other", "shared", {m: whole.cells[m] for m in ("nfn", "agreement")})
    header, _, *rows = overview_table([whole, fewer]).splitlines()
    first = "[mnist-small, independent](mnist-small-independent.md)"
    assert header == f"|model|{first}|[other, shared](other-shared.md)|"
    assert [row.split("|")[1] for row in rows] == [
        f"*{TIERS['weights']}*",
        "Block features (ours)",
        "Transformer-NFN",
        f"*{TIERS['queries']}*",
        "Agreement probes (ours)",
        f"*{TIERS['hyperparameters']}*",
        "Hyperparameters",
        "*noise ceiling*",
        "*splits; configurations tested*",
    ]
    assert rows[-1].endswith(f"|3; {whole.configurations()}|3; {whole.configurations()}|")
    block, nfn, probes, recipe = rows[1], rows[2], rows[4], rows[6]
    assert block == f"|Block features (ours)|**{whole.tau('blockwise').mean:.3f}**||"
    assert [cell.startswith("**") for cell in nfn.split("|")[2:4]] == [False, True]
    assert [cell.startswith("**") for cell in probes.split("|")[2:4]] == [True, True]
    assert recipe.endswith("**||")


def test_it_is_said_who_is_first() -> None:
    ahead = compared({"blockwise": 0.02, "nfn": 0.5, "mlp": 0.6})
    assert tier_sentences([ahead]) == ["**weights only**: Block features (ours) is first."]
    behind = compared({"blockwise": 0.5, "nfn": 0.02}, zoo="other")
    alike = compared({"blockwise": 0.2, "nfn": 0.2}, zoo="third")
    (said,) = tier_sentences([ahead, behind])
    assert said.endswith("(ours) is first on mnist-small; Transformer-NFN is first on other.")
    both = compared({"blockwise": 0.02, "nfn": 0.5}, track="shared")
    (said,) = tier_sentences([ahead, both, behind])
    assert "is first on mnist-small;" in said
    worse = compared({"blockwise": 0.5, "nfn": 0.02}, track="shared")
    (said,) = tier_sentences([ahead, worse])
    assert "is first on mnist-small (independent);" in said
    assert "Transformer-NFN is first on mnist-small (shared)" in said
    best = MODELS[alike.ranking()[0]].title
    assert best in tier_sentences([alike])[0]
    assert tier_sentences([alike])[0].endswith(" is highest.")
    ours = compared({"agreement": 0.02, "agreement-noise": 0.9})
    assert tier_sentences([ours])[0].endswith("(ours) is first, all are ours.")


def test_what_is_not_told_apart_from_the_first_of_its_tier_is_in_italics() -> None:
    some = compared({"forest": 0.2, "nfn": 0.2, "mlp": 0.2, "heads": 0.9, "agreement": 0.9})
    rows = {row.split("|")[1]: row.split("|")[2] for row in overview_table([some]).splitlines()}
    marks = {name: text.count("*") // 2 for name, text in rows.items()}
    first, *alike = (MODELS[model].title for model in some.ranking(models=["forest", "nfn", "mlp"]))
    assert marks[first] == marks["Agreement probes (ours)"] == 2
    assert [marks[title] for title in alike] == [1, 1]
    assert marks["Graph of heads (ours)"] == 0


def test_the_first_may_be_behind_in_more_splits() -> None:
    """In the split that all of the tier have heads is first; in the five of both it is not."""
    cells = [fake("heads", split, 0.1 if split == 0 else 2.0) for split in range(5)]
    cells += [fake("mlp", split, 0.3) for split in range(5)] + [fake("forest", 0, 1.0)]
    (one,) = comparisons(cells, ["heads", "mlp", "forest"], uneven=True)
    (said,) = tier_sentences([one])
    assert said.endswith("(ours) is highest, but in the splits of each pair behind MLP.")


def test_tiers_without_a_model_of_ours_are_told_as_such_and_of_one_model_nothing_is_said() -> None:
    said = tier_sentences([compared({"agreement": 0.1, "consensus": 0.2, "confidence": 0.9})])
    assert said == [f"**{TIERS['inputs']}**: Consensus is first; none of these is ours."]


# -------------------------------------------------------------------------------------- notes


def test_it_is_said_where_intervals_cover_the_luck_of_a_fit(tmp_path: Path) -> None:
    """Where a model has several seeds in a split; several splits do not make them wider."""
    cells = [fake("nfn", 0, 0.1), fake("mlp", 0, 0.3), fake("nfn", 1, 0.1)]
    other = [fake(model, 0, 0.1, zoo="other", folder="other") for model in ("nfn", "mlp")]

    def page(*more: Finished) -> str:
        found = comparisons([*cells, *other, *more], ["nfn", "mlp"], uneven=True)
        return front_page(Page(tmp_path, "bench"), found, "", "", [])

    assert "The luck of a fit is not covered." in page()
    seeds = [fake("nfn", 1, 0.1, seed=1), fake("mlp", 0, 0.1, seed=1, zoo="other", folder="other")]
    assert (
        "covered, in part, only for models with several seeds: Transformer-NFN on mnist-small; "
        "MLP on other." in page(*seeds)
    )
    both = [fake("mlp", 0, 0.1, seed=1)]
    assert "several seeds: Transformer-NFN on mnist-small; MLP." in page(*seeds, *both)
    assert "several seeds: Transformer-NFN and MLP on mnist-small." in page(seeds[0], *both)
    track = fake("nfn", 0, 0.1, track="shared")
    only = page(*seeds, track)
    assert "Transformer-NFN on mnist-small (independent); MLP on other." in only


def test_placeholders_become_figures() -> None:
    one = compared({"nfn": 0.1, "mlp": 0.6, "agreement": 0.05}, alike=2)
    place = "mnist-small/independent"
    within = tau_within(one, "nfn")
    assert within is not None
    expected = {
        f"tau:{place}/nfn": f"{one.tau('nfn').mean:.3f}",
        f"moved:{place}/mlp": f"{one.tau('mlp', column='moved').mean:.3f}",
        f"within:{place}/nfn": f"{within.mean:.3f}",
        f"place:{place}/mlp": "2 of 2",
        f"order:{place}/mlp/nfn": "behind",
        f"order:{place}/nfn/mlp": "ahead of",
        f"order:{place}/nfn/nfn": "not told apart from",
        f"first:{place}/weights": "Transformer-NFN",
        f"first:{place}/queries": "Agreement probes",
        f"ceiling:{place}": f"{one.ceiling():.3f}",
    }
    for asked, said in expected.items():
        assert filled(f"a {{{asked}}} b", [one]) == f"a {said} b"
    assert filled(f"{{interval:{place}/nfn}}", [one]).startswith(f"{one.tau('nfn').mean:.3f} [")
    assert filled(f"{{gap:{place}/nfn/mlp}}", [one]).startswith("+0.")
    grown, unseen = beyond(["mnist-small"])
    curve = grown[0].curves["nfn"].at(16_000)
    assert len(one.splits) > 1
    said = f"{curve.mean:.3f} [{curve.low:.2f}, {curve.high:.2f}] (1 split)"
    assert filled(f"{{grown:{place}/nfn}}", [one], grown, unseen) == said
    adam = unseen["mnist-small", "independent"]["adam"].tau("nfn")
    said = f"{adam.mean:.3f} [{adam.low:.2f}, {adam.high:.2f}] (1 split)"
    assert filled(f"{{unseen:{place}/nfn/adam}}", [one], grown, unseen) == said
    two = [fake("nfn", split, 0.1, held_out="adam") for split in (0, 1)]
    (two_splits,) = comparisons(two, ["nfn"], held_out="adam")
    more = {("mnist-small", "independent"): {"adam": two_splits}}
    assert filled(f"{{unseen:{place}/nfn/adam}}", [one], (), more).endswith("] (2 splits)")
    (alone,) = comparisons([fake("nfn", 0, 0.1)], ["nfn"])  # of one split too
    assert "split" not in filled(f"{{grown:{place}/nfn}}", [alone], grown, unseen)
    assert "split" not in filled(f"{{unseen:{place}/nfn/adam}}", [alone], grown, unseen)
    assert filled("{braces} and $\\frac{1}{2}$ {: stay }", [one]) == (
        "{braces} and $\\frac{1}{2}$ {: stay }"
    )


@pytest.mark.parametrize(
    "asked",
    [
        "tau:mnist-small/independent/nfm",
        "tau:mnist-small/shared/nfn",
        "tau:mnist-small/independent",
        "tau:mnist-small/independent/nfn/mlp",
        "tau:",
        "mean:mnist-small/independent/nfn",
        "first:mnist-small/independent/queries",
        "first:mnist-small/independent/nfn",
        "grown:mnist-small/independent/nfn",
        "unseen:mnist-small/independent/nfn/adam",
        "unseen:mnist-small/independent/nfm/adam",
        "unseen:mnist-small/independent/adam/nfn",
        "within:mnist-small/independent/nfn",  # every configuration was trained once
    ],
)
def test_an_unknown_placeholder_is_named(asked: str) -> None:
    with pytest.raises(BenchError, match=re.escape(f"the notes ask for {{{asked}}}")):
        filled(f"It has {{{asked}}}.", [compared()])


def test_nothing_is_written_where_notes_ask_for_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("{tau:gone/shared/nfn}", encoding="utf-8")
    commit(CELLS, tmp_path / "out")
    with pytest.raises(BenchError, match="gone/shared/nfn"):
        write_report(tmp_path / "out", tmp_path / "report", tmp_path / "notes.md")
    assert not (tmp_path / "report").exists()


def test_a_note_has_no_typed_figure() -> None:
    """τ in notes comes from placeholders: a typed one would be stale after the next run."""
    assert re.findall(r"(?<![\w.])0\.\d+", NOTES.read_text(encoding="utf-8")) == []


def test_models_of_a_tier_are_ranked() -> None:
    assert in_tier(compared({"nfn": 0.5, "agreement": 0.1, "mlp": 0.01}), "weights") == [
        "mlp",
        "nfn",
    ]


def test_nothing_finished_is_said(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no finished cells"):
        write_report(tmp_path, tmp_path)
