import io
from collections.abc import Callable, Mapping, Sequence

import matplotlib.image
import numpy as np
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.learning import Learning
from transformer_nfn.bench.report.pictures import (
    augmentation,
    by_size,
    by_threshold,
    dots,
    lines,
    namedlines,
    robustness,
    scatter,
    tracks,
)
from transformer_nfn.bench.report.pictures.namedlines import apart
from transformer_nfn.bench.report.pictures.style import panel_title
from transformer_nfn.bench.report.scores import BySplit, Comparison

EIGHT = main_models()[:8]
RUNS, EPOCHS = 20, 3
# As in a record: not sorted, one twice, and one that no row reaches.
THRESHOLDS = [["none", 0.0], ["best 50 %", 0.53], ["≥ 40 %", 0.4], ["≥ 53 %", 0.53], ["all", 1.0]]


def comparison(
    models: Sequence[str] = EIGHT,
    *,
    zoo: str = "mnist-small",
    track: str = "independent",
    splits: int = 2,
    seed: int = 0,
    noise: float = 0.05,
) -> Comparison:
    """Models of which each predicts a little worse than the one before."""
    random = np.random.default_rng(seed)
    run = np.repeat(np.arange(RUNS), EPOCHS)
    epoch = np.tile(np.arange(1, EPOCHS + 1), RUNS)
    cells: dict[str, BySplit] = {model: {} for model in models}
    for split in range(splits):
        quality = np.repeat(random.uniform(0.1, 0.9, RUNS), EPOCHS)
        accuracy = np.round(quality + 0.03 * epoch, 3)
        for number, model in enumerate(models):
            predicted = accuracy + noise * (number + 1) * random.normal(size=len(run))
            moved = predicted
            if not MODELS[model].invariant:
                moved = predicted + random.normal(size=len(run))
            table = pa.table(
                {
                    "run": run,
                    "run_id": [f"{split}-{number}" for number in run],
                    "twins": [f"{split}-{number}" for number in run],
                    "checkpoint": [str(number) for number in epoch],
                    "epoch": epoch,
                    "test_accuracy": accuracy,
                    "predicted": predicted,
                    "moved": moved,
                }
            )
            record = {"model": model, "split": split, "thresholds": THRESHOLDS}
            cells[model][split] = {0: Finished(record, table)}
    return Comparison(zoo, track, cells)


Draw = Callable[[Comparison], bytes]
PICTURES: dict[str, Draw] = {
    "tracks": lambda one: tracks([one]),
    "scatter": scatter,
    "by_threshold": by_threshold,
    "robustness": lambda one: robustness([one]),
    "augmentation": lambda one: augmentation({"original": one, "±1": one}),
}


def checked(picture: bytes) -> tuple[int, int]:
    """Height and width of a picture that is one, and not empty."""
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert 5_000 < len(picture) < 200_000
    pixels = matplotlib.image.imread(io.BytesIO(picture), format="png")
    assert pixels[..., :3].min() < 0.5
    height, width = pixels.shape[:2]
    return height, width


HOSTILE = "$\\frac{$ [a b]\x1b"


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_is_a_png_of_a_slides_width_and_follows_from_its_data(name: str) -> None:
    draw = PICTURES[name]
    whole = draw(comparison(zoo=HOSTILE))  # names of zoos are no formulas
    _, width = checked(whole)
    assert 9 * 150 <= width <= 11 * 150
    assert draw(comparison(zoo=HOSTILE)) == whole
    assert draw(comparison(zoo=HOSTILE, noise=0.2)) != whole


@pytest.mark.parametrize("name", PICTURES)
def test_one_model_with_one_split_is_enough(name: str) -> None:
    checked(PICTURES[name](comparison(["nfn"], splits=1)))


@pytest.mark.parametrize("draw", [tracks, robustness])
def test_panels_may_have_different_models(draw: Callable[[list[Comparison]], bytes]) -> None:
    agnews = comparison(["probes", "mlp"], zoo="agnews-small", seed=1)
    shared = comparison(["nfn", "mlp"], track="shared", seed=2)
    whole = comparison(["nfn", "xgboost"], seed=3)
    picture = draw([agnews, shared, whole])
    checked(picture)
    assert draw([whole, agnews, shared]) == picture  # their order is the picture's


def test_robustness_shows_the_best_of_each_group_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whatever their tiers, of which that of invariants is above that of the probes.
    shown: list[Mapping[str, Sequence[str]]] = []
    grouped = dots._grouped
    monkeypatch.setattr(dots, "_grouped", lambda groups: (shown.append(groups), grouped(groups))[1])
    robustness([comparison(["agreement", "mlp", "consensus", "invariants", "tokens"], noise=0.1)])
    assert [list(group) for group in shown[0].values()] == [
        ["agreement", "consensus", "invariants"],
        ["mlp", "tokens"],
    ]


def test_many_panels_go_into_several_lines() -> None:
    zoos = [comparison(["nfn", "mlp"], zoo=f"zoo-{number}", seed=number) for number in range(5)]
    assert checked(tracks(zoos))[0] > checked(tracks(zoos[:4]))[0]


def test_a_model_may_be_missing_for_some_bounds() -> None:
    bounds = {
        "original": comparison(["nfn", "mlp", "probes"]),
        "±1": comparison(["nfn", "probes"], seed=1),
        "±10": comparison(["nfn", "mlp"], seed=2),
    }
    checked(augmentation(bounds))


def test_all_models_of_the_main_table_can_be_drawn_together() -> None:
    whole = comparison(list(main_models()), splits=1)
    for name in ("robustness", "by_threshold"):
        checked(PICTURES[name](whole))


def test_constant_and_boundless_predictions_can_be_drawn() -> None:
    plain = comparison(["nfn", "mlp"])
    cells: dict[str, BySplit] = {"nfn": {}, "mlp": {}}
    for split in plain.splits:
        for model, value in (("nfn", np.full(RUNS * EPOCHS, 0.5)), ("mlp", np.arange(60.0) - 30)):
            finished = plain.cells[model][split][0]
            table = finished.table
            for column in ("predicted", "moved"):
                place = table.column_names.index(column)
                table = table.set_column(place, column, pa.array(value))
            cells[model][split] = {0: finished._replace(table=table)}
    for draw in PICTURES.values():
        checked(draw(Comparison("mnist-small", "shared", cells)))


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(BenchError, match="no comparison"):
        tracks([])
    with pytest.raises(BenchError, match="no comparison"):
        augmentation({})


def test_models_without_a_common_split_are_drawn_and_none_is_an_error() -> None:
    whole = comparison(["nfn", "mlp"])
    cells = {"nfn": {0: whole.cells["nfn"][0]}, "mlp": {1: whole.cells["mlp"][1]}}
    checked(scatter(Comparison("mnist-small", "shared", cells)))
    with pytest.raises(BenchError, match="no model has a finished split"):
        scatter(Comparison("mnist-small", "shared", {}))


def learning(sizes: Sequence[int], noise: float = 0.2) -> Learning:
    """Models that get better with the number of runs."""
    by_model = {}
    for number, model in enumerate(("nfn", "mlp", "invariants")):
        made = [comparison([model], noise=noise * (1 + number) * 75 / size) for size in sizes]
        cells = {str(size): one.cells[model] for size, one in zip(sizes, made, strict=True)}
        by_model[model] = Comparison("mnist-small", "shared", cells)
    return Learning("mnist-small", "shared", by_model)


def test_learning_curves_can_be_drawn() -> None:
    whole = by_size(learning((75, 150, 300)))
    _, width = checked(whole)
    assert 9 * 150 <= width <= 11 * 150
    assert by_size(learning((75, 150, 300))) == whole
    assert by_size(learning((75, 150, 300), noise=0.3)) != whole


def test_labels_keep_their_distance_their_order_and_their_bounds() -> None:
    random = np.random.default_rng(0)
    for count in (1, 2, 5, 12):
        wanted = list(random.uniform(0, 1, count) ** 3)
        places = apart(wanted, 0.08)
        ordered = np.array(places)[np.argsort(wanted)]
        assert (np.diff(ordered) > 0.08 - 1e-9).all()
        assert ordered.min() > -1e-9
        assert ordered.max() < 1 + 1e-9


def test_labels_that_are_apart_stay_where_they_are() -> None:
    assert apart([0.9, 0.1, 0.5], 0.2) == [0.9, 0.1, 0.5]
    assert apart([0.5, 0.5, 0.0], 0.25) == [0.375, 0.625, 0.0]
    assert apart([0.2] * 5, 0.9) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_names_of_zoos_are_no_formulas_elsewhere() -> None:
    zoos = [comparison(["nfn"], zoo=f"{HOSTILE}{number}") for number in range(3)]
    checked(tracks(zoos))  # narrow panels have a title of several lines
    plain = learning((75, 150))
    checked(by_size(Learning(HOSTILE, "shared", plain.by_model)))  # too few to be extrapolated
    for narrow in (False, True):
        found = panel_title(zoos[0], narrow=narrow).replace("\n", " ")
        assert found == r"\$\frac{\$ [a b]\x1b0, independent starts"


def test_thresholds_stand_where_the_rows_that_they_leave_out_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[lines.Line] = []
    monkeypatch.setattr(lines, "line_picture", lambda found, *_: drawn.extend(found) or b"")
    one = comparison()
    by_threshold(one)
    accuracy = np.concatenate([one.accuracy(split) for split in one.splits])
    shares = [100 * float((accuracy < bound).mean()) for bound in (0, 0.4, 0.53, 1.0)]
    assert len(drawn) == len(EIGHT)
    assert shares == sorted(set(shares))
    assert all(line.x == shares for line in drawn)


@pytest.mark.parametrize("order", [["nfn", "nfn-authors"], ["nfn-authors", "nfn"]])
def test_the_authors_schedule_is_hollow_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    figure = Figure()
    monkeypatch.setattr(namedlines, "drawn_png", lambda *given: given[-1](figure) or b"")
    found = [namedlines.Line(model, [0.0, 1.0], [0.5, 0.5]) for model in order]
    namedlines.line_picture(found, lambda _: None, None)
    faces = {
        model: str(line.get_mfc()) for model, line in zip(order, figure.axes[0].lines, strict=True)
    }
    assert faces["nfn-authors"] == "white" != faces["nfn"]
