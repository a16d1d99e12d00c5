import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from safetensors import safe_open
from typer.main import get_command
from typer.testing import CliRunner

from tests.zoo.conftest import plant, write_tiny
from tests.zoo.test_published import line, save, state_of, write_csv
from transformer_nfn import zoo as zoo_room
from transformer_nfn.cli.main import app, main, with_default_address
from transformer_nfn.zoo import DataError, RecipeError, StoreError, calibrate
from transformer_nfn.zoo import build as build_module
from transformer_nfn.zoo.dataset import Zoo

COMMANDS = sorted(get_command(app).commands["zoo"].commands)


def tnfn(*arguments: object) -> Result:
    """A command in this process; our own errors come as exceptions, which `main` would print."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def well(*arguments: object) -> Result:
    result = tnfn(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def first_build(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("zoos") / "tiny"
    return folder, well("zoo", "build", recipe, "--out", folder)


@pytest.fixture
def folder(first_build: tuple[Path, Result]) -> Path:
    """A zoo, only to be read."""
    return first_build[0]


# --------------------------------------------------------------------------------- help, errors


def test_the_commands_are_those_of_the_documentation():
    more = {"card", "export", "from-checkpoints", "import", "info", "publish", "verify"}
    assert set(COMMANDS) == {"build", "plan"} | more


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_has_an_example(command):
    text = well("zoo", command, "--help").stdout
    assert f"Example: tnfn zoo {command} " in text
    assert "--json" in text


def test_the_help_names_the_rooms_and_the_commands():
    assert "zoo" in well("--help").stdout
    text = well("zoo", "--help").stdout
    assert all(command in text for command in COMMANDS)


def test_an_unknown_recipe_is_one_line_and_no_traceback():
    # The installed command itself.
    command = [Path(sys.executable).with_name("tnfn"), "zoo", "plan", "mnist"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: no recipe 'mnist': give one of digits-mini,")


def run_main(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["tnfn", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


def test_the_command_alone_shows_its_help(monkeypatch, capsys):
    assert run_main(monkeypatch) in (0, 2)  # click's and typer's ideas of it differ
    printed = capsys.readouterr()
    assert "Usage: " in printed.out + printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["plan", "nothing"], "no recipe 'nothing'"),
        (["build", "{}/tiny.toml", "--out", "{}/x", "--runs", "35"], "asked for 35"),
        (["build", "{}/tiny.toml", "--out", "{}/x", "--data", "{}"], "mnist"),
        (["plan", "{}/tiny.toml", "--data", "{}"], "mnist"),
        (["info", "{}/x"], "is no zoo"),
        (["verify", "{}/x"], "is no zoo"),
        (["card", "{}/x"], "is no zoo"),
        (["export", "{}/x", "--out", "{}/nets"], "is no zoo"),
        (["publish", "{}/x", "--out", "{}/hub"], "is no zoo"),
    ],
)
def test_an_error_that_the_user_can_mend_is_one_line(
    monkeypatch, capsys, tmp_path, arguments, text
):
    write_tiny(tmp_path, ('"digits"', '"mnist"'))
    filled = [argument.replace("{}", str(tmp_path)) for argument in arguments]
    assert run_main(monkeypatch, "zoo", *filled) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert text in line
    assert not (tmp_path / "x").exists()


def test_an_error_of_ours_is_not_hidden(monkeypatch, folder):
    def broken(_: Zoo) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(zoo_room, "summarize", broken)
    monkeypatch.setattr(sys, "argv", ["tnfn", "zoo", "info", str(folder)])
    with pytest.raises(ValueError, match="planted"):
        main()


def test_the_errors_are_those_of_the_rooms(tmp_path):
    for error, arguments in (
        (RecipeError, ["plan", "nothing"]),
        (StoreError, ["info", tmp_path]),
        (DataError, ["plan", "mnist-small", "--data", tmp_path]),
    ):
        assert isinstance(tnfn("zoo", *arguments).exception, error)


def test_a_wrong_option_is_a_usage_error(recipe, tmp_path):
    for arguments in (
        ["plan", recipe, "--seeds", "wrong"],
        ["build", recipe, "--out", tmp_path / "x", "--seeds", "wrong"],
        ["build", recipe],
        ["plan", recipe, "--cpus", "0"],
        ["nothing"],
    ):
        result = tnfn("zoo", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
    seeds = tnfn("zoo", "plan", recipe, "--seeds", "wrong").stderr
    assert all(word in seeds for word in ("--seeds", "run", "shared"))
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["build", "x", "--ray"], ["build", "x", "--ray=local"]),
        (["build", "x", "--ray", "--json"], ["build", "x", "--ray=local", "--json"]),
        (["build", "x", "--ray", "auto"], ["build", "x", "--ray", "auto"]),
        (["build", "x", "--ray=auto"], ["build", "x", "--ray=auto"]),
        (["build", "x"], ["build", "x"]),
        ([], []),
    ],
)
def test_ray_alone_is_a_cluster_on_this_machine(arguments, expected):
    assert with_default_address(arguments) == expected


# ---------------------------------------------------------------------------------------- plan


@pytest.fixture
def quick(monkeypatch) -> None:
    """A calibration of a moment."""
    short = lambda recipe, task: calibrate(recipe, task, seconds=0.05)  # noqa: E731 - for a moment
    monkeypatch.setattr(zoo_room, "calibrate", short)


@pytest.mark.usefixtures("quick")
def test_a_plan_counts_runs_groups_rows_bytes_and_steps(recipe):
    planned = json.loads(well("zoo", "plan", recipe, "--json").stdout)
    assert (planned["recipe"], planned["runs"], planned["groups"]) == ("tiny", 10, 5)
    assert planned["rows"] == 30
    assert planned["bytes"] == pytest.approx(30 * 4 * 1690, rel=0.1)
    # 5 runs with 96 examples in batches of 32, 5 with 67 of them; 2 epochs.
    assert planned["steps"] == 2 * (5 * 3 + 5 * 2)
    # Validation after each epoch, test at three checkpoints.
    assert planned["evaluated"] == 10 * (2 * 32 + 3 * 32)
    assert planned["steps_a_second_on_one_core"] > 0
    assert (planned["cpus"], planned["gpus"]) == (1, 0)


@pytest.mark.usefixtures("quick")
def test_a_plan_is_a_plan_of_the_chosen_runs(recipe):
    few, many = (
        json.loads(well("zoo", "plan", recipe, "--runs", runs, "--json").stdout) for runs in (1, 34)
    )
    assert (few["runs"], few["groups"], few["steps"]) == (1, 1, 6)
    assert (many["runs"], many["rows"]) == (34, 102)
    text = well("zoo", "plan", recipe, "--seeds", "shared", "--cpus", 2).stdout
    assert "tiny: 10 runs in 5 groups" in text
    assert "on 2 such cores" in text


def test_workers_share_the_time_of_a_plan(recipe, monkeypatch):
    speed = zoo_room.Speed(steps=0.01, evaluated=1e9)
    monkeypatch.setattr(zoo_room, "calibrate", lambda recipe, task: speed)
    one, two, gpu = (
        json.loads(well("zoo", "plan", recipe, "--json", *options).stdout)
        for options in ([], ["--cpus", 2], ["--gpus", 2, "--gpu-speed", 10])
    )
    assert one["seconds"] == one["seconds_on_one_core"] == 5_000
    assert (two["seconds"], two["seconds_on_one_core"]) == (2_500, 5_000)
    assert (gpu["seconds"], gpu["cpus"], gpu["gpus"]) == (250, 0, 2)


# --------------------------------------------------------------------------------------- build


def test_a_build_says_what_it_built_and_where_the_card_is(first_build):
    folder, result = first_build
    assert f"{folder}: 10 runs, 30 rows in 5 shards" in result.stdout
    assert "README.md" in result.stdout
    assert "tiny: runs 10/10" in result.stderr
    assert {"README.md", "accuracy.png", "builds", "data", "zoo.json"} <= {
        path.name for path in folder.iterdir()
    }


def test_the_same_command_again_trains_nothing(recipe, folder, monkeypatch):
    before = {path.name: path.read_bytes() for path in (folder / "data").glob("*.parquet")}
    monkeypatch.setattr(build_module, "train_job", None)
    result = well("zoo", "build", recipe, "--out", folder, "--json")
    figures = json.loads(result.stdout)
    assert (figures["runs"], figures["rows"], figures["failed_groups"]) == (10, 30, 0)
    assert "10 of 10 runs are there already" in result.stderr
    assert {p.name: p.read_bytes() for p in (folder / "data").glob("*.parquet")} == before


def test_a_build_goes_on_after_ctrl_c_and_is_extended(recipe, folder, tmp_path, monkeypatch):
    out, train, calls = tmp_path / "zoo", build_module.train_job, []

    def interrupted(job: object) -> object:
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(job)
        return train(job)

    with monkeypatch.context() as patched:
        patched.setattr(build_module, "train_job", interrupted)
        result = tnfn("zoo", "build", recipe, "--out", out)
    assert result.exit_code == 130
    assert "the same command continues" in result.stderr
    assert len(Zoo(out).names()) == 2
    resumed = well("zoo", "build", recipe, "--out", out)
    assert "5 of 10 runs are there already" in resumed.stderr
    assert Zoo(out).table() == Zoo(folder).table()
    more = json.loads(well("zoo", "build", recipe, "--out", out, "--runs", 12, "--json").stdout)
    assert (more["runs"], len(more["builds"])) == (12, 3)


def test_the_other_track_does_not_go_into_the_same_folder(recipe, folder, tmp_path):
    result = tnfn("zoo", "build", recipe, "--out", folder, "--seeds", "shared")
    assert isinstance(result.exception, StoreError)
    options = ["--out", tmp_path / "shared", "--seeds", "shared", "--runs", 3]
    well("zoo", "build", recipe, *options)
    assert len(set(Zoo(tmp_path / "shared").table().column("seed").to_pylist())) == 1
    assert len(set(Zoo(folder).table().column("seed").to_pylist())) == 10


def fail_groups(monkeypatch, bad: set[int]) -> None:
    """Groups with one of these runs fail."""
    train = build_module.train_job

    def failing(job: build_module.GroupJob) -> object:
        if bad & set(job.group.numbers):
            raise ArithmeticError("planted")
        return train(job)

    monkeypatch.setattr(build_module, "train_job", failing)


def test_a_group_that_fails_is_reported_and_the_zoo_has_the_others(recipe, tmp_path, monkeypatch):
    fail_groups(monkeypatch, {1})
    result = tnfn("zoo", "build", recipe, "--out", tmp_path / "zoo", "--json")
    assert result.exit_code == 1
    figures = json.loads(result.stdout)
    assert (figures["runs"], figures["failed_groups"]) == (8, 1)
    for text in ("adam-f700", "ArithmeticError: planted", "the same command would fail again"):
        assert text in result.stderr


def test_a_build_of_which_all_groups_fail_is_an_error(recipe, tmp_path, monkeypatch):
    fail_groups(monkeypatch, set(range(10)))
    result = tnfn("zoo", "build", recipe, "--out", tmp_path / "zoo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("ArithmeticError: planted") == 1
    assert "and 2 more" in result.stderr
    assert len(list((tmp_path / "zoo" / "failures").glob("*.log"))) == 5


def test_if_all_that_was_missing_fails_the_failure_is_said_and_the_zoo_stays(
    recipe, tmp_path, monkeypatch
):
    out = tmp_path / "zoo"
    well("zoo", "build", recipe, "--out", out, "--runs", 6)
    before = Zoo(out).table()
    fail_groups(monkeypatch, set(range(6, 10)))
    result = tnfn("zoo", "build", recipe, "--out", out)
    assert result.exit_code == 1
    assert "ArithmeticError: planted" in result.stderr
    assert Zoo(out).table() == before


# --------------------------------------------------------------------- info, verify, card, export


def test_info_shows_counts_as_text_and_as_json(folder):
    figures = json.loads(well("zoo", "info", folder, "--json").stdout)
    assert (figures["runs"], figures["rows"], figures["shards"]) == (10, 30, 5)
    assert figures["status"] == {"ok": 27, "diverged": 3}
    lines = well("zoo", "info", folder).stdout.splitlines()
    assert [line.split()[-1] for line in lines if line.startswith("rows ")] == ["30"]
    assert len(lines) == len(figures)


def test_a_sound_zoo_is_verified_with_exit_code_0(folder):
    assert "30 rows in 5 shards, all sound" in well("zoo", "verify", folder).stdout
    figures = json.loads(well("zoo", "verify", folder, "--json").stdout)
    assert figures == {"rows": 30, "shards": 5, "problems": {}}


@pytest.fixture
def own(recipe: Path, tmp_path: Path) -> Path:
    """A zoo that a test may change."""
    well("zoo", "build", recipe, "--out", tmp_path / "own", "--runs", 2)
    return tmp_path / "own"


def test_a_damaged_zoo_is_found_with_exit_code_1(own):
    zoo = Zoo(own)
    name = zoo.names()[-1]
    plant(zoo, name, lambda rows: rows[0].update(lr=0.5))
    result = tnfn("zoo", "verify", own)
    assert result.exit_code == 1
    assert f"{name}: row 0 " in result.stdout
    assert "1 with problems" in result.stdout
    result = tnfn("zoo", "verify", own, "--json")
    assert result.exit_code == 1
    assert list(json.loads(result.stdout)["problems"]) == [name]


def test_the_card_is_written_again(own):
    (own / "README.md").unlink()
    (own / "accuracy.png").write_bytes(b"")
    figures = json.loads(well("zoo", "card", own, "--json").stdout)
    assert figures == {"zoo": str(own), "written": ["README.md", "accuracy.png", "layout.json"]}
    assert "| runs | 2 |" in (own / "README.md").read_text("utf-8")
    assert (own / "accuracy.png").stat().st_size > 1_000
    assert "README.md" in well("zoo", "card", own).stdout


def test_export_writes_the_chosen_networks(folder, tmp_path):
    options = ["--run", 3, "--run", 7, "--checkpoint", "best", "--out", tmp_path / "nets"]
    figures = json.loads(well("zoo", "export", folder, *options, "--json").stdout)
    assert figures == {
        "folder": str(tmp_path / "nets"),
        "files": 2,
        "first": "run000003-best.safetensors",
    }
    with safe_open(tmp_path / "nets" / figures["first"], "pt") as file:
        assert file.metadata()["run"] == "3"
    assert "2" in well("zoo", "export", folder, *options).stdout


def test_export_takes_the_networks_above_an_accuracy(folder, tmp_path):
    accuracies = Zoo(folder).table().column("test_accuracy").drop_null().to_pylist()
    for least in (0.0, sorted(accuracies)[20]):
        options = ["--min-accuracy", least, "--out", tmp_path / str(least), "--json"]
        figures = json.loads(well("zoo", "export", folder, *options).stdout)
        assert figures["files"] == sum(accuracy >= least for accuracy in accuracies)


def test_an_export_of_nothing_says_so(folder, tmp_path):
    for options in (["--run", 99], ["--run", 0], ["--min-accuracy", 1.1]):
        result = tnfn("zoo", "export", folder, *options, "--out", tmp_path)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no row of" in result.stderr


def test_the_published_zoo_is_imported_and_a_missing_file_is_a_row(tmp_path):
    rows = [line(0), line(1), line(2)]
    write_csv(tmp_path / "published", rows)
    for row in rows[:2]:
        save(tmp_path / "published" / str(row["ckpt_file"]), state_of())
    command = (
        "zoo",
        "import",
        tmp_path / "published",
        "--task",
        "mnist",
        "--out",
        tmp_path / "out",
    )
    figures = json.loads(well(*command, "--json").stdout)
    assert figures["status"] == {"ok": 2, "unreadable": 1}
    assert (tmp_path / "out" / "README.md").is_file()
    assert json.loads(well(*command, "--json").stdout)["rows"] == 3  # again: nothing to do
    well("zoo", "verify", tmp_path / "out")
