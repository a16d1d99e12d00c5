"""A zoo of people's own networks: what it takes, what it refuses, and what can be done with it."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.bench.conftest import own_cache, write_zoo  # noqa: F401 - a fixture
from tests.bench.small import SHAPE, small_examples
from tests.cli.run import tnfn
from transformer_nfn.bench import BenchError, Cell, experiment_cells, fit_and_save, load_predictor
from transformer_nfn.bench.protocol.loading import divide, load_examples, track_of
from transformer_nfn.bench.protocol.readable import check_known
from transformer_nfn.bench.ranking import rank_files
from transformer_nfn.zoo import StoreError, export, gather, verify
from transformer_nfn.zoo.dataset import TensorShape, Zoo, ok


def write_accuracies(path: Path, rows: list[tuple], group: bool = False) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["path", "accuracy"] + ["group"] * group)
        lines.writerows(rows)
    return path


def plain_nets(folder: Path, count: int = 60, **changes) -> list[tuple[str, float]]:
    """Networks of names of their own, whose accuracy grows with the size of their weights."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(count):
        scale = 0.1 + (number * 7 % count) / count
        tensors = {
            "tok.emb": torch.randn(5, 8, generator=generator) * scale,
            "layers.0.wq.weight": torch.randn(8, 8, generator=generator) * scale,
            "out.bias": torch.randn(3, generator=generator) * scale,
            "steps": torch.tensor(number),  # a counter: no weight
        }
        save_file(tensors | changes.get(str(number), {}), folder / f"net{number:02d}.safetensors")
        rows.append((f"net{number:02d}.safetensors", round(0.2 + 0.7 * scale / 1.1, 6)))
    return rows


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A zoo of plain tensors, and the folder it was made of; only to be read."""
    home = tmp_path_factory.mktemp("plain")
    table = write_accuracies(home / "a.csv", plain_nets(home / "nets"))
    made = gather(home / "nets", table, home / "zoo")
    assert made == (60, 60, 0, 0, False)
    return home / "zoo", home / "nets"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Nets that `zoo export` wrote, of 60 runs of three epochs, gathered again."""
    home = tmp_path_factory.mktemp("exported")
    zoo = Zoo(write_zoo(home / "first", small_examples(60)))
    files = export(zoo, ok, home / "nets")
    accuracy = zoo.table(ok)["test_accuracy"].to_pylist()
    rows = [(file.name, value) for file, value in zip(files, accuracy, strict=True)]
    made = gather(home / "nets", write_accuracies(home / "a.csv", rows), home / "zoo")
    assert made == (180, 60, 0, 0, True)
    return home / "zoo", home / "nets"


def test_rows_are_the_files_and_verify(plain):
    zoo, nets = Zoo(plain[0]), plain[1]
    assert isinstance(zoo.shape, TensorShape)
    assert list(zoo.shape.stored) == ["layers.0.wq.weight", "out.bias", "tok.emb"]
    assert [one.problems for one in verify(zoo)] == [[]]
    table = zoo.table()
    assert set(table["optimizer"].to_pylist()) == {"unknown"}
    assert np.isnan(table["lr"].to_numpy()).all()
    assert set(table["seed"].to_pylist()) == {-1}
    with (plain[0] / "files.csv").open() as file:
        paths = {row["run_id"]: row["path"] for row in csv.DictReader(file)}
    cached = zoo.cached()
    for number in (0, 30, 59):
        path = paths[cached.table["run_id"][number].as_py()]
        tensors = load_file(nets / path)
        expected = torch.cat([tensors[name].flatten() for name in zoo.shape.stored])
        assert np.array_equal(cached.weights[number], expected.numpy())


def test_folds_are_filled_evenly_and_every_split_works(plain):
    table = Zoo(plain[0]).table()
    assert np.bincount(table["fold"].to_numpy()).tolist() == [6] * 10
    for split in range(5):
        divided = divide(str(plain[0]), load_examples(str(plain[0]), "epochs", None), split)
        assert [len(side) for side in (divided.train, divided.validation, divided.test)] == [
            42,
            6,
            12,
        ]
    assert track_of(Zoo(plain[0])) == "independent"


def test_a_group_is_a_run_and_stays_on_one_side(tmp_path):
    rows = plain_nets(tmp_path / "nets", 40)
    grouped = [(*row, f"family{number // 4}") for number, row in enumerate(rows)]
    table = write_accuracies(tmp_path / "a.csv", grouped, group=True)
    assert gather(tmp_path / "nets", table, tmp_path / "zoo").runs == 10
    found = Zoo(tmp_path / "zoo").table().to_pylist()
    with (tmp_path / "zoo" / "files.csv").open() as file:
        paths = {(r["run_id"], r["checkpoint"]): r["path"] for r in csv.DictReader(file)}
    family = {row[0]: row[2] for row in grouped}
    by_family: dict[str, set] = {}
    for row in found:
        key = family[paths[row["run_id"], row["checkpoint"]]]
        by_family.setdefault(key, set()).add((row["run"], row["run_id"], row["twins"], row["fold"]))
    assert all(len(one) == 1 for one in by_family.values())
    assert len({fold for one in by_family.values() for *_, fold in one}) == 10


def test_checkpoints_of_an_exported_run_are_one_run_and_keep_what_is_known(exported):
    zoo = Zoo(exported[0])
    assert zoo.shape == SHAPE
    assert set(zoo.table()["optimizer"].to_pylist()) == {"sgd", "sgdm", "adam", "rmsprop"}
    sizes = zoo.table().group_by("run").aggregate([("epoch", "count")])
    assert set(sizes["epoch_count"].to_pylist()) == {3}
    models = {cell.model for cell in experiment_cells("main", str(exported[0]), splits=[0])}
    assert {"nfn", "invariants", "hyperparameters", "agreement"} <= models


def test_the_same_files_again_are_the_same_zoo_and_others_are_refused(plain, tmp_path):
    rows = plain_nets(tmp_path / "nets")
    first = write_accuracies(tmp_path / "a.csv", rows)
    gather(tmp_path / "nets", first, tmp_path / "zoo")
    gather(tmp_path / "nets", write_accuracies(tmp_path / "b.csv", rows[::-1]), tmp_path / "zoo")
    digests = [Zoo(one).table()["digest"].to_pylist() for one in (tmp_path / "zoo", plain[0])]
    assert digests[0] == digests[1]
    other = write_accuracies(tmp_path / "c.csv", [(rows[0][0], 0.9), *rows[1:]])
    with pytest.raises(StoreError, match="holds another zoo"):
        gather(tmp_path / "nets", other, tmp_path / "zoo")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"out.bias": torch.zeros(4)}, r"net03.* has out\.bias of \(4,\), not of \(3,\)"),
        ({"more": torch.zeros(4)}, r"net03.* 1 unknown \['more'\]"),
    ],
)
def test_a_network_of_another_kind(change, says, tmp_path):
    rows = plain_nets(tmp_path / "nets", 8, **{"3": change})
    with pytest.raises(StoreError, match=says):
        gather(tmp_path / "nets", write_accuracies(tmp_path / "a.csv", rows), tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


def test_a_network_with_nan_is_a_row_without_weights(tmp_path):
    rows = plain_nets(tmp_path / "nets", 8, **{"3": {"out.bias": torch.full((3,), torch.nan)}})
    made = gather(tmp_path / "nets", write_accuracies(tmp_path / "a.csv", rows), tmp_path / "zoo")
    assert (made.networks, made.diverged) == (8, 1)
    assert [one.problems for one in verify(Zoo(tmp_path / "zoo"))] == [[]]
    assert len(Zoo(tmp_path / "zoo").cached().table) == 7


def test_half_precision_is_read_as_float32(tmp_path):
    (tmp_path / "nets").mkdir()
    rows = []
    for number, kind in enumerate((torch.float16, torch.bfloat16, torch.float64)):
        file = tmp_path / "nets" / f"{number}.safetensors"
        save_file({"a": (torch.arange(4.0) + number).to(kind)}, file)
        rows.append((file.name, 0.5))
    gather(tmp_path / "nets", write_accuracies(tmp_path / "a.csv", rows), tmp_path / "zoo")
    weights = Zoo(tmp_path / "zoo").cached().weights
    assert sorted(weights.tolist()) == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("path,accuracy\n", "names no file"),
        ("path\nnet00.safetensors\n", "no column accuracy"),
        ("path,accuracy\nnet00.safetensors,83\n", r"'83', not a number from 0 to 1 \(0.83"),
        ("path,accuracy\nnet00.safetensors,nan\n", "from 0 to 1"),
        ("path,accuracy\nnet00.safetensors,\n", "from 0 to 1"),
        ("path,accuracy\nnet00.safetensors,1\nnet00.safetensors,1\n", "1 paths are named twice"),
        ("path,accuracy\nnet98.safetensors,1\nnet99.safetensors,1\n", "2 paths are no files in"),
        ("path,accuracy\n../nets/net00.safetensors,1\n", "1 paths are not given as paths below"),
        ("path,accuracy\n/etc/passwd,1\n", "1 paths are not given as paths below"),
        ("path,accuracy\nnet00.safetensors,1\ncopy.safetensors,1\n", "hold the same weights"),
        ("path,accuracy\nnoise.safetensors,1\n", "noise.safetensors cannot be read"),
        ("path,accuracy\ncounters.safetensors,1\n", "is no network that is read"),
    ],
)
def test_tables_that_are_refused(text, says, tmp_path):
    plain_nets(tmp_path / "nets", 2)
    first = (tmp_path / "nets" / "net00.safetensors").read_bytes()
    (tmp_path / "nets" / "copy.safetensors").write_bytes(first)
    (tmp_path / "nets" / "noise.safetensors").write_bytes(bytes(100))
    save_file({"steps": torch.tensor(1)}, tmp_path / "nets" / "counters.safetensors")
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=says):
        gather(tmp_path / "nets", tmp_path / "a.csv", tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


def test_models_that_need_blocks_are_refused_and_left_out(plain):
    zoo = str(plain[0])
    models = {cell.model for cell in experiment_cells("main", zoo, splits=[0])}
    assert models == {"statistics", "xgboost", "lightgbm", "forest"}
    with pytest.raises(BenchError, match="only the tensors are known; xgboost, lightgbm"):
        check_known([Cell(zoo=zoo, model="nfn", split=0)])
    with pytest.raises(BenchError, match="how they were trained, which is not known"):
        check_known([Cell(zoo=zoo, model="hyperparameters", split=0)])
    with pytest.raises(StoreError, match="not what blocks they make"):
        Zoo(zoo).rows()


@pytest.mark.parametrize("all_runs", [False, True])
def test_a_model_is_fitted_and_ranks_the_files(all_runs, plain, tmp_path):
    cell = Cell(zoo=str(plain[0]), model="statistics", split=0)
    record = fit_and_save(cell, tmp_path / "model", all_runs=all_runs)
    assert record["tau"] > 0.7
    assert record["tau_moved"] is None
    assert (record["train_rows"], record["validation_rows"]) == (54 if all_runs else 42, 6)
    card = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert ("this model has seen them too" in card) == all_runs
    saved = load_predictor(tmp_path / "model")
    ranked = rank_files(saved, sorted(plain[1].glob("*.safetensors")))
    assert len(ranked) == 60
    best, worst = ranked[0], ranked[-1]
    size = {p.path: load_file(p.path)["tok.emb"].std() for p in (best, worst)}
    assert size[best.path] > size[worst.path]
    save_file({"a": torch.zeros(3)}, tmp_path / "other.safetensors")
    (other,) = rank_files(saved, [tmp_path / "other.safetensors"])
    assert "has other tensors: 3 are missing" in other.warning


def test_all_runs_trains_on_the_test_runs_and_not_on_the_validation_runs(
    plain, tmp_path, monkeypatch
):
    from transformer_nfn.bench.models.featured import FeaturePredictor

    seen = []
    fit = FeaturePredictor.fit

    def watched(self, train, validation, **options):
        seen.append([set(side.table["run_id"].to_pylist()) for side in (train, validation)])
        fit(self, train, validation, **options)

    monkeypatch.setattr(FeaturePredictor, "fit", watched)
    cell = Cell(zoo=str(plain[0]), model="statistics", split=0)
    fit_and_save(cell, tmp_path / "model", all_runs=True)
    (first, held), (again, held_again) = seen
    every = set(Zoo(plain[0]).table()["run_id"].to_pylist())
    assert held == held_again
    assert first < again == every - held


def test_the_commands(exported, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TNFN_MODELS", str(tmp_path / "models"))
    rows = plain_nets(tmp_path / "nets")
    table = write_accuracies(tmp_path / "a.csv", rows[1:])
    words = ["zoo", "from-checkpoints", tmp_path / "nets", table, "--out", tmp_path / "zoo"]
    found = json.loads(tnfn(capsys, *words, "--json").out)
    assert (found["networks"], found["unlabelled"], found["blocks"]) == (59, 1, False)
    assert "license" not in (tmp_path / "zoo" / "README.md").read_text(encoding="utf-8")
    assert tnfn(capsys, "zoo", "info", tmp_path / "zoo").code == 0
    zoo = ["--zoo", tmp_path / "zoo", "--model", "statistics", "--name", "mine", "--all-runs"]
    fitted = json.loads(tnfn(capsys, "bench", "fit", *zoo, "--json").out)
    assert fitted["tau_moved"] is None
    assert fitted["train_rows"] + fitted["validation_rows"] == 59
    ranked = json.loads(tnfn(capsys, "rank", "--model", "mine", tmp_path / "nets", "--json").out)
    assert len(ranked["ranked"]) == 60
    many = tnfn(capsys, "rank", "--model", "mine", tmp_path / "nets", "--out", tmp_path / "many")
    assert many.code == 0, many
    ended = tnfn(capsys, "bench", "fit", "--zoo", tmp_path / "zoo", "--model", "nfn", "--name", "n")
    assert ended.code == 1
    assert "only the tensors are known" in ended.err
    run = ["--zoo", tmp_path / "zoo", "--models", "statistics,forest", "--splits", "1"]
    ended = tnfn(capsys, "bench", "run", *run, "--out", tmp_path / "bench")
    assert ended.code == 0, ended
    page = (tmp_path / "bench" / "report" / "zoo-independent.md").read_text(encoding="utf-8")
    assert "Under the group" not in page
    assert "# zoo: zoo, 59 runs, which no recipe of this package builds" in page


def test_a_hostile_description_of_tensors_is_refused():
    from pydantic import ValidationError

    for tensors in ((("a", (2**24, 2)),), (("a", (1,)), ("a", (1,))), (), (("a", (0,)),)):
        with pytest.raises(ValidationError):
            TensorShape(tensors=tensors)


def test_runs_of_one_configuration_stay_on_one_side(tmp_path):
    """Files say how their networks were trained: other seeds of one recipe are near-twins."""
    examples = small_examples(12, epochs=(1,))
    alike = {"optimizer": "adam", "lr": 1e-3, "l2": 1e-7, "dropout": 0.0, "train_fraction": 1.0}
    (tmp_path / "nets").mkdir()
    rows = []
    for number in range(12):
        made = alike | {"init_std": 0.1 * (1 + number // 3), "seed": 7, "epoch": 1}
        metadata = {name: str(value) for name, value in made.items()}
        metadata |= {"net": SHAPE.model_dump_json(), "run_id": f"run{number}"}
        tensors = {
            name: examples.weights[number, at : at + int(np.prod(dims))].reshape(dims).clone()
            for name, (at, dims) in SHAPE.stored.items()
        }
        save_file(tensors, tmp_path / "nets" / f"{number}.safetensors", metadata)
        rows.append((f"{number}.safetensors", 0.05 * number))
    table = write_accuracies(tmp_path / "a.csv", rows)
    assert gather(tmp_path / "nets", table, tmp_path / "zoo").runs == 4
    found = Zoo(tmp_path / "zoo").table().to_pylist()
    sides = {(round(row["init_std"], 3), row["fold"], row["twins"]) for row in found}
    assert len(found) == 12
    assert len(sides) == 4
