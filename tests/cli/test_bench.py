import json
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from tests.bench.conftest import plain_pictures, without_pictures, write_zoo
from tests.bench.small import RESIDUAL, small_examples
from tests.bench.test_across import renamed
from tests.bench.test_ranking import export
from tests.cli.test_zoo import tnfn, well
from transformer_nfn.bench import saved_names
from transformer_nfn.bench.protocol import computing as cells_module
from transformer_nfn.cli.main import app

COMMANDS = [["bench", name] for name in sorted(get_command(app).commands["bench"].commands)]
CHEAP = "hyperparameters,statistics"


__all__ = ["plain_pictures"]  # a fixture


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("TNFN_MODELS", str(tmp_path_factory.mktemp("models")))


@pytest.fixture(scope="module")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 runs of three epochs; only to be read."""
    return str(write_zoo(tmp_path_factory.mktemp("zoos") / "small", small_examples(60)))


def test_the_commands_are_those_of_the_documentation():
    names = ["fit", "models", "plan", "report", "rows", "run", "score"]
    assert [name for _, name in COMMANDS] == names


@pytest.mark.parametrize("command", [*COMMANDS, ["rank"]])
def test_the_help_of_each_command_has_an_example(command):
    text = well(*command, "--help").stdout
    assert f"Example: tnfn {' '.join(command)}" in text
    assert "--json" in text


def test_the_models_are_listed():
    assert "Transformer-NFN" in well("bench", "models").stdout
    listed = json.loads(well("bench", "models", "--json").stdout)["models"]
    assert listed["probes"]["invariant"]


def run(zoo: str, out: Path, *more: str) -> dict[str, object]:
    result = well(
        "bench",
        "run",
        "--zoo",
        zoo,
        "--out",
        out,
        "--models",
        CHEAP,
        "--splits",
        2,
        "--json",
        *more,
    )
    figures: dict[str, object] = json.loads(result.stdout.splitlines()[-1])
    return figures


def test_a_run_ends_with_a_report_and_is_not_repeated(zoo_folder, tmp_path, monkeypatch):
    first = run(zoo_folder, tmp_path / "out")
    assert (first["cells"], first["computed"], first["failed"]) == (4, 4, 0)
    page = (tmp_path / "out" / "report" / "index.md").read_text(encoding="utf-8")
    assert "Statistics" in page
    drawn = (tmp_path / "out" / "report" / "tracks.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    without_pictures(monkeypatch)  # these are drawn once
    assert run(zoo_folder, tmp_path / "out")["computed"] == 0
    well("bench", "report", tmp_path / "out", "--to", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "results.json").is_file()


@pytest.mark.usefixtures("plain_pictures")
def test_a_run_across_zoos(zoo_folder, tmp_path):
    made = renamed(small_examples(20, shape=RESIDUAL, seed=1))
    other = str(write_zoo(tmp_path / "other", made, name="other"))
    options = ["--experiment", "across", "--test-zoo", other]
    models = ["--models", "hyperparameters,blockwise"]
    assert run(zoo_folder, tmp_path / "out", *options, *models)["computed"] == 4
    page = (tmp_path / "out" / "report" / "index.md").read_text(encoding="utf-8")
    assert "[transfer between zoos](transfer.md)" in page
    refused = tnfn("bench", "run", "--zoo", zoo_folder, "--out", tmp_path, *options[:2])
    assert "which needs one" in str(refused.exception)
    unreadable = ["--models", "mlp", "--splits", 1, "--no-report"]
    failed = tnfn("bench", "run", "--zoo", zoo_folder, "--out", tmp_path, *options, *unreadable)
    assert failed.exit_code == 1
    assert "mlp cannot read the networks of the test zoo" in failed.stderr


@pytest.mark.usefixtures("plain_pictures")
def test_a_run_of_several_sizes(zoo_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("transformer_nfn.bench.protocol.experiments.SIZES", (20, 40))
    figures = run(zoo_folder, tmp_path / "out", "--experiment", "sizes")
    assert figures["computed"] == 3 * 2 * 2
    again = run(zoo_folder, tmp_path / "out", "--no-report")
    assert again["computed"] == 0  # the whole zoo is among them
    page = (tmp_path / "out" / "report" / "index.md").read_text(encoding="utf-8")
    assert "[learning curves](learning-curves.md)" in page


def test_the_plan_knows_what_is_finished(zoo_folder, tmp_path):
    options = ["--zoo", zoo_folder, "--out", tmp_path, "--models", CHEAP, "--splits", 2]
    planned = json.loads(well("bench", "plan", *options, "--json").stdout)
    assert (planned["cells"], planned["missing"]) == (4, 4)
    assert planned["cpu_seconds"] > 0
    run(zoo_folder, tmp_path, "--no-report")
    assert "4 cells, 4 finished" in well("bench", "plan", *options).stdout


@pytest.mark.usefixtures("plain_pictures")
def test_a_cell_that_fails_is_reported_and_the_exit_code_says_so(
    zoo_folder,
    tmp_path,
    monkeypatch,
):
    computed = cells_module.prepared

    def broken(cell: cells_module.Cell) -> object:
        if cell.split == 1:
            raise RuntimeError("planted")
        return computed(cell)

    monkeypatch.setattr(cells_module, "prepared", broken)
    command = ["bench", "run", "--zoo", zoo_folder, "--out", tmp_path]
    command += ["--models", "hyperparameters", "--splits", 2]
    result = tnfn(*command)
    assert result.exit_code == 1
    assert "planted" in result.stderr
    assert "Traceback" not in result.stderr
    monkeypatch.setattr(cells_module, "prepared", computed)
    well(*command)


def test_a_fitted_model_ranks_files(zoo_folder, tmp_path):
    fitted = json.loads(
        well(
            "bench", "fit", "--zoo", zoo_folder, "--model", "statistics", "--name", "mine", "--json"
        ).stdout.splitlines()[-1]
    )
    assert "mine" in saved_names()
    assert fitted["tau"] > 0.5
    export(small_examples(4, seed=5), tmp_path)
    text = well("rank", "--model", "mine", tmp_path).stdout
    assert len(text.splitlines()) == 1 + 12
    ranked = json.loads(well("rank", "--model", "mine", tmp_path, "--json").stdout)["ranked"]
    predicted = [one["predicted"] for one in ranked]
    assert predicted == sorted(predicted, reverse=True)


def test_a_file_that_cannot_be_read_sets_the_exit_code(zoo_folder, tmp_path):
    well("bench", "fit", "--zoo", zoo_folder, "--model", "statistics", "--name", "mine")
    files = export(small_examples(2, seed=5).take(np.arange(2)), tmp_path)
    files[0].write_bytes(b"nonsense")
    result = tnfn("rank", "--model", "mine", tmp_path)
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr
