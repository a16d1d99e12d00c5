"""Names of files steer neither a terminal nor rich nor matplotlib nor a spreadsheet."""

import ast
import json
import shutil
from collections.abc import Iterator
from csv import writer
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from pyarrow import csv

import transformer_nfn
from benchmarks.safety.fuzzing.models import PREDICTOR
from tests.checkpoints import made
from tests.cli.run import tnfn
from tests.security.positions import sound_predictor
from tests.zoo.conftest import built, write_tiny
from transformer_nfn.cli.main import app
from transformer_nfn.hub import list_items
from transformer_nfn.zoo import Recipe

#: A title for the window, a bell, C1, DEL, turned writing, an end of a line and of a paragraph,
#: markup, a formula of a spreadsheet and of TeX.
HOSTILE = "=x\x1b]0;t\x07\x9b1m\x7f\u202e\u2066\u2028\u2029\r\n[red]$\\frac{$"

Words = list[object]


def steering(text: str) -> list[str]:
    """What does not belong on a terminal."""
    return [one for one in text if one != "\n" and not one.isprintable()]


def test_the_check_can_fail() -> None:
    assert len(steering(HOSTILE)) == 9
    assert not steering("a\nb")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything has a hostile name."""
    home = tmp_path_factory.mktemp("home") / HOSTILE
    for number in range(4):
        made.zoo_net(home / "nets" / f"{HOSTILE}{number}.safetensors", "residual", number)
    nets = sorted((home / "nets").iterdir())
    shutil.copy(nets[0], home / "nets" / f"{HOSTILE}9.safetensors")
    (home / "some").mkdir()
    shutil.copy(nets[1], home / "some")
    (home / "some" / f"{HOSTILE}.safetensors").write_bytes(b"no")
    net = made.save(made.model("gpt2"), home / "gpt2")
    (home / "bad" / "model.safetensors").parent.mkdir()
    shutil.copy(net / "model.safetensors", home / "bad")
    (home / "bad" / "config.json").write_text(json.dumps({"n_head": HOSTILE, HOSTILE: 1}))
    (home / "model").mkdir()
    for name, content in zip(PREDICTOR, sound_predictor(), strict=True):
        (home / "model" / name).write_bytes(content)
    with (home / "accuracies.csv").open("w", newline="") as file:
        table = writer(file)
        table.writerow(["path", "accuracy", "group"])
        table.writerows([one.name, 0.5, HOSTILE] for one in nets)
    with (home / "predictions.csv").open("w", newline="") as file:
        table = writer(file)
        table.writerows([["run_id", "checkpoint", "predicted"], [HOSTILE, HOSTILE, 0.5]])
    built(Recipe.load(write_tiny(home, ("runs = 10", "runs = 2"))), home / "zoo")
    return home


def lines(home: Path, out: Path) -> dict[str, list[Words]]:
    """For each command some lines, with options that are sound and names that are not."""
    nets = sorted((home / "nets").iterdir())
    out = out / HOSTILE
    missing = home / "missing"
    cells: Words = ["--zoo", home / "missing", "--models", "invariants"]
    return {
        "inspect": [[nets[0]], [missing], [home / "bad"], [home / "some"], [f"none://{HOSTILE}"]],
        "families": [[], ["llama"], [HOSTILE]],
        "same": [[nets[0], nets[1]], [nets[0], nets[-1]], [nets[0], missing]],
        "explain": [[nets[0], "--from", nets[1]], [nets[0], "--from", missing]],
        "kin": [[nets[0], nets[1]], [nets[0], nets[-1]], [nets[0], missing]],
        "convert": [[nets[0], "--out", out / "c"], [missing, "--out", out / "c"]],
        "reparam": [[nets[0], "--out", out / "r"], [nets[0], "--out", home / "nets"]],
        "apply": [[missing, nets[0], "--out", out / "a"], [nets[0], nets[1], "--out", out / "a"]],
        "verify": [[missing, nets[0], nets[1]], [nets[0], nets[0], nets[1]]],
        "fingerprint": [
            [nets[0]],
            [home / "some"],
            [home / "some", "--out", out / "prints/"],
            [home / "nets", "--out", out / "nets/"],
            [nets[0], "--out", out / "p.jsonl"],
            [nets[0], "--out", out / "p.none"],
        ],
        "dedup": [
            [home / "nets"],
            [home / "some"],
            [missing],
            [out / "nets"],
            ["--to", out, missing],
        ],
        "nearest": [[nets[0], out / "nets"], [missing, out / "nets"], [nets[0], missing]],
        "audit": [[home / "nets"], [home / "some"], [missing]],
        "rank": [
            ["--model", home / "model", home / "nets"],
            ["--model", home / "model", home / "nets", "--out", out / "ranks/"],
            ["--model", missing, nets[0]],
            ["--model", home / "model", missing],
        ],
        "zoo plan": [[missing]],
        "zoo build": [[home / "tiny.toml", "--out", home / "zoo"], [missing, "--out", out / "z"]],
        "zoo import": [[missing, "--task", "mnist", "--out", out / "z"]],
        "zoo from-checkpoints": [
            [home / "nets", home / "accuracies.csv", "--out", out / "gathered"],
            [home / "some", home / "accuracies.csv", "--out", out / "gathered"],
            [home / "nets", missing, "--out", out / "gathered"],
            [missing, home / "accuracies.csv", "--out", out / "gathered"],
        ],
        "zoo info": [[home / "zoo"], [missing]],
        "zoo verify": [[home / "zoo"], [home / "model"]],
        "zoo card": [[home / "zoo"], [missing]],
        "zoo publish": [[home / "zoo", "--out", out / "hub"], [missing, "--out", out / "hub"]],
        "zoo export": [
            [home / "zoo", "--out", out / "e", "--run", 0],
            [home / "zoo", "--out", out / "e", "--checkpoint", HOSTILE],
        ],
        "bench models": [[]],
        "bench plan": [cells],
        "bench run": [[*cells, "--out", out / "cells"]],
        "bench report": [[missing]],
        "bench fit": [["--zoo", missing, "--model", HOSTILE, "--name", HOSTILE]],
        "bench rows": [[missing, "--out", out / "r.csv"], [home / "zoo", "--out", out / "r.csv"]],
        "bench score": [
            [missing, "--zoo", home / "zoo"],
            [home / "accuracies.csv", "--zoo", home / "zoo"],
            [home / "predictions.csv", "--zoo", home / "zoo"],
        ],
    }


def commands(app: typer.Typer = app, before: str = "") -> Iterator[str]:
    for command in app.registered_commands:
        assert command.callback is not None
        yield before + (command.name or command.callback.__name__.replace("_", "-"))
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{before}{group.name} ")


def test_every_command_is_in_the_table(home: Path, tmp_path: Path) -> None:
    assert set(lines(home, tmp_path)) == set(commands())


@pytest.mark.parametrize("command", list(commands()))
def test_no_command_prints_a_name_as_it_is(
    command: str,
    home: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TNFN_MODELS", str(home))  # where saved models are, by their names
    monkeypatch.chdir(tmp_path)
    (tmp_path / HOSTILE).mkdir()
    if command in ("dedup", "nearest"):
        prints = f"{tmp_path / HOSTILE / 'nets'}/"
        assert tnfn(capsys, "fingerprint", home / "nets", "--out", prints).code == 0
    wrong: list[Words] = [[f"--{HOSTILE}"], [HOSTILE, HOSTILE, HOSTILE]]  # of the command line
    for number, words in enumerate(lines(home, tmp_path)[command]):
        for more in ([], ["--json"], *([] if number else wrong)):
            ended = tnfn(capsys, *command.split(), *words, *more)
            assert not steering(ended.out + ended.err), (words, more, ended)
            assert "Traceback" not in ended.err, ended
            if more == ["--json"] and ended.code == 0 and ended.out.strip():
                for line in ended.out.splitlines():
                    json.loads(line)
        shutil.rmtree(tmp_path / HOSTILE / "e", ignore_errors=True)


def test_names_are_shown_and_markup_is_not_obeyed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = tnfn(capsys, "dedup", home / "nets").out
    assert said.count("=x\\x1b]0;t\\x07\\x9b1m\\x7f\\u202e\\u2066\\u2028\\u2029\\r\\n[red]$") >= 5


def test_pictures_are_drawn(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = home / "gpt2"
    other = tmp_path / HOSTILE
    assert tnfn(capsys, "reparam", net, "--out", other / f"{HOSTILE}.safetensors").code == 0
    pictures = [tmp_path / "heads.png", tmp_path / "kin.svg"]
    same = tnfn(capsys, "same", net, other / f"{HOSTILE}.safetensors", "--plot", pictures[0])
    assert same.code == 0, same
    assert tnfn(capsys, "dedup", home / "nets", "--plot", pictures[1]).code == 0
    assert all(picture.stat().st_size > 1000 for picture in pictures)


def test_a_table_of_names_is_no_table_of_formulas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["=1+1.safetensors", "@a.safetensors", "'=1.safetensors", "plain.safetensors"]
    for number, name in enumerate(names):
        made.zoo_net(Path(name), "residual", number)
    ended = tnfn(capsys, "dedup", *names, "--to", "kin.csv")
    assert ended.code == 0, ended
    as_text = csv.ConvertOptions(column_types={"path": pa.string()})
    found = csv.read_csv("kin.csv", convert_options=as_text)["path"].to_pylist()
    safe = ["'=1+1.safetensors", "'@a.safetensors", "''=1.safetensors", names[3]]
    assert sorted(found) == sorted(safe)
    listed = list_items([str(tmp_path / "kin.csv")])["path"].to_pylist()
    assert sorted(listed) == sorted(str(tmp_path / name) for name in names)


def test_nothing_else_writes_to_a_terminal() -> None:
    """Of the command line, only `terminal.py` echoes; what rich prints is a table or `styled`."""
    root = Path(transformer_nfn.__file__).parent
    found = []
    for path in sorted((root / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                argument = ast.unparse(node.args[0]).partition("(")[0] if node.args else ""
                if name.endswith((".echo", ".secho", ".write")) or name == "print":
                    found.append((path.name, name))
                elif name.endswith(".print") and argument not in ("table", "panel", "styled"):
                    found.append((path.name, f"{name}({argument})"))
    assert set(found) == {("terminal.py", "typer.echo")}
