"""The steps of the GitHub Action, run here as a runner would run them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from benchmarks.material import breakages
from benchmarks.material.breakages import Model
from benchmarks.material.gguf_files import source

ROOT = Path(__file__).resolve().parents[2]
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())


class Ended(NamedTuple):
    code: int
    outputs: dict[str, str]
    summary: str


def run(tmp_path: Path, **inputs: str) -> Ended:
    """All steps that are scripts, but for the installation of what is here."""
    given = {name: str(about.get("default", "")) for name, about in ACTION["inputs"].items()}
    given |= inputs
    output, summary = tmp_path / "output", tmp_path / "summary"
    for file in (output, summary):
        file.write_text("")
    code = 0
    for step in ACTION["runs"]["steps"]:
        if "uses" in step or step["name"] == "Install":
            continue
        assert "${{" not in step["run"]  # or an input could bring a command of its own
        env = {
            name: given[value.removeprefix("${{ inputs.").removesuffix(" }}")]
            for name, value in step["env"].items()
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env |= {"PATH": path, "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        # As GitHub runs `shell: bash`.
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        ended = subprocess.run(words, env=os.environ | env, cwd=tmp_path, check=False)
        code = code or ended.returncode
    lines = (line.partition("=") for line in output.read_text().splitlines())
    return Ended(code, {name: value for name, _, value in lines}, summary.read_text())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    source("gemma3_text", home / "before", tie_word_embeddings=True)
    folded, broken = Model.read(home / "before"), Model.read(home / "before")
    breakages.fold(folded)
    folded.write(home / "folded")
    breakages.fold(broken, forget_offset=True)
    broken.write(home / "broken")
    return home


def test_a_fold_that_is_right_passes(models: Path, tmp_path: Path) -> None:
    words = {"first": str(models / "before"), "second": str(models / "folded")}
    ended = run(tmp_path, **words, arguments="--expect moved")
    assert ended.code == 0
    assert ended.outputs == {"answer": "equivalent", "cause": ""}
    assert ended.summary.startswith("**equivalent**, exit code 0")


def test_a_fold_that_is_wrong_fails_with_its_cause(models: Path, tmp_path: Path) -> None:
    ended = run(tmp_path, first=str(models / "before"), second=str(models / "broken"))
    assert ended.code == 3
    assert ended.outputs == {"answer": "different", "cause": "norm offset"}
    assert "use 1 + w where one is folded" in ended.summary


def test_what_is_not_there_and_what_is_no_command(models: Path, tmp_path: Path) -> None:
    ended = run(tmp_path, first=str(models / "before"), second="$(touch run)")
    assert ended.code == 1
    assert ended.outputs == {"answer": "", "cause": ""}
    ended = run(tmp_path, first="a", second="b", command="zoo; touch run")
    assert ended.code == 2
    assert not (tmp_path / "run").exists()


def test_all_lines_of_arguments_count(models: Path, tmp_path: Path) -> None:
    words = {"first": str(models / "before"), "second": str(models / "before")}
    assert run(tmp_path, **words, arguments="\n--seed 1\n--expect moved\n").code == 5
    ended = run(tmp_path, **words, arguments="--help")
    assert (ended.code, ended.outputs["answer"]) == (0, "")
    ended = run(tmp_path, first="--only=body", second=words["second"], arguments=words["first"])
    assert ended.code == 2
    assert ended.summary.startswith("**a wrong command line**, exit code 2")


def test_kin(models: Path, tmp_path: Path) -> None:
    ended = run(
        tmp_path, first=str(models / "broken"), second=str(models / "before"), command="kin"
    )
    assert (ended.code, ended.outputs["answer"]) == (0, "derived")
