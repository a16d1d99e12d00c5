"""Cells that fail are a line each reason, with the tracebacks in files."""

import sys
from pathlib import Path

import pytest

from tests.cli.run import tnfn
from transformer_nfn.bench.protocol import computing
from transformer_nfn.cli.failures import tell_failures
from transformer_nfn.jobs import Failed


@pytest.mark.usefixtures("plain_pictures")
def test_a_cell_that_fails_is_one_line_and_a_log(zoo_folder, tmp_path, capsys, monkeypatch):
    whole = computing.prepared

    def broken(cell: computing.Cell) -> object:
        if cell.split:
            raise ArithmeticError("planted\nin two lines")
        return whole(cell)

    monkeypatch.setattr(computing, "prepared", broken)
    words = ["--zoo", zoo_folder, "--out", tmp_path / "out", "--models", "hyperparameters"]
    ended = tnfn(capsys, "bench", "run", *words, "--splits", 3, "--json")
    assert ended.code == 1
    assert "Traceback" not in ended.err
    *_, line, last = ended.err.splitlines()
    names = "small: hyperparameters, split 1; small: hyperparameters, split 2"
    assert line == f"error: {names}: ArithmeticError: planted in two lines"
    assert last == (
        f"2 cells failed, tracebacks are in {tmp_path}/out/failures; the same command would fail "
        "again"
    )
    logs = sorted((tmp_path / "out" / "failures").glob("*.log"))
    assert [log.name[:17] for log in logs] == ["hyperparameters-1", "hyperparameters-2"]
    assert "Traceback" in logs[0].read_text()
    assert "ArithmeticError: planted" in logs[0].read_text()
    assert (tmp_path / "out" / "report" / "index.md").is_file()  # of what did not fail


def tell(failures: list[Failed[str]], out: Path) -> None:
    tell_failures(failures, str(out), "jobs", name=str.upper, file=str)


def test_another_try_is_advised_only_where_it_may_help(tmp_path, capsys):
    tell([Failed("a", "Traceback ...", "wrong")], tmp_path)
    assert "the same command would fail again" in capsys.readouterr().err
    tell([Failed("a", "died 3 times", "died 3 times", died=True)], tmp_path)
    assert "run the same command again" in capsys.readouterr().err


def test_many_that_fail_alike_are_one_line(tmp_path, capsys):
    tell([Failed(letter, "long", "wrong") for letter in "abcdef"] + [Failed("g", "x")], tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["error: A; B; C and 3 more: wrong", "error: G: x"]
    assert len(list((tmp_path / "failures").glob("*.log"))) == 7
    tell([], tmp_path)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("model", "package"), [("xgboost", "xgboost"), ("agreement", "lightgbm"), ("forest", "sklearn")]
)
def test_a_missing_package_is_said_before_any_work(
    model, package, zoo_folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, package, None)
    words = ["--zoo", zoo_folder, "--out", tmp_path / "out", "--models", f"statnn,{model}"]
    ended = tnfn(capsys, "bench", "run", *words)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert f"error: {model} needs {package}: `pip install" in ended.err
    assert not (tmp_path / "out").exists()
