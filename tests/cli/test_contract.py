"""What scripts may rely on: exit codes, and `--json` by its schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from benchmarks.material import breakages
from benchmarks.material.breakages import Model
from benchmarks.material.families import make
from benchmarks.material.gguf_files import source
from tests.cli.run import tnfn
from transformer_nfn.identity import Answer
from transformer_nfn.kinship import Relation

ROOT = Path(__file__).resolve().parents[2]


def schema(command: str) -> dict[str, Any]:
    text = (ROOT / "docs" / "schemas" / f"{command}.schema.json").read_text()
    found: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("models")
    source("llama", home / "a", tie_word_embeddings=True)
    source("llama", home / "stranger", tie_word_embeddings=True, seed=1)
    make("bert", home / "bert")
    make("t5", home / "t5")
    for name, change in (("folded", breakages.fold), ("transposed", breakages.transposed)):
        model = Model.read(home / "a")
        change(model) if change is breakages.fold else change(model, None)
        model.write(home / name)
    Model.read(home / "a").write(home / "again", shards=2)
    zeroed = Model.read(home / "a")
    zeroed.tensors["model.norm.weight"] = torch.zeros_like(zeroed.tensors["model.norm.weight"])
    zeroed.write(home / "zeroed")
    (home / "broken.safetensors").write_bytes(b"no tensors")
    return home


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("same", "a", "a"), 0),
        (("same", "a", "folded", "--expect", "moved"), 0),
        (("same", "a", "again"), 0),
        (("same", "a", "again", "--expect", "moved"), 5),
        (("same", "a", "transposed"), 3),
        (("same", "a", "stranger", "--no-cause"), 3),
        (("same", "zeroed", "a"), 3),  # which differs by infinitely much
        (("same", "t5", "t5", "--only", "encoder"), 0),
        (("same", "a", "bert"), 4),
        (("same", "a", "broken.safetensors"), 1),
        (("same", "a", "gone"), 1),
        (("same", "a"), 2),
        (("same", "a", "a", "--expect", "nothing"), 2),
        (("kin", "folded", "a"), 0),
        (("kin", "a", "stranger"), 3),
        (("kin", "a", "bert", "--disguised"), 4),
        (("kin", "a", "broken.safetensors"), 1),
        (("kin", "a"), 2),
    ],
)
def test_exit_codes_and_schema(
    words: tuple[str, ...],
    code: int,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    ended = tnfn(capsys, *words, "--json")
    assert ended.code == code
    if code in (1, 2):  # nothing for a program to read, and a line or two for a person
        assert ended.out == ""
        assert "Traceback" not in ended.err
        assert ended.err.strip()
        return
    jsonschema.validate(json.loads(ended.out, parse_constant=no_json), schema(words[0]))


def no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def test_schemas_know_every_answer() -> None:
    assert schema("same")["properties"]["answer"]["enum"] == [one.value for one in Answer]
    assert schema("kin")["properties"]["answer"]["enum"] == [one.value for one in Relation]
    causes = schema("same")["properties"]["cause"]["properties"]["name"]["enum"]
    assert set(causes) == {*breakages.BREAKAGES, "shard"}
