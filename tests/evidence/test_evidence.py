"""Bills of materials are valid by the published schema, and say what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from benchmarks.material.breakages import Model
from tests.checkpoints import made
from tests.cli.test_zoo import tnfn


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("nets")
    made.save(made.model("gpt2"), home / "base")
    made.save(made.model("gpt2", seed=1), home / "stranger")
    tuned = Model.read(home / "base")
    for name, tensor in tuned.tensors.items():
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
        tuned.tensors[name] = tensor + 0.02 * tensor.std() * noise
    tuned.write(home / "tuned", shards=2)
    tnfn("reparam", home / "base", "--seed", 1, "--out", home / "moved")
    return home


def bill(path: Path) -> dict[str, Any]:
    text = path.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    [model] = found["components"]
    assert model["type"] == "machine-learning-model"
    assert found["metadata"]["tools"]["components"][0]["name"] == "transformer-nfn"
    return dict(model)


def said(model: dict[str, Any]) -> dict[str, str]:
    return {p["name"].removeprefix("transformer-nfn:"): p["value"] for p in model["properties"]}


def test_a_model_that_comes_from_another(home: Path, tmp_path: Path) -> None:
    bom, card = tmp_path / "bom.json", tmp_path / "card.md"
    tnfn("kin", home / "tuned", home / "base", "--bom", bom, "--card", card)
    model = bill(bom)
    assert model["name"] == "tuned"
    assert [file["name"] for file in model["components"]] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "config.json",
    ]
    [ancestor] = model["pedigree"]["ancestors"]
    assert ancestor["name"] == "base"
    # As sha256sum prints it.
    import hashlib

    digest = hashlib.sha256((home / "base" / "model.safetensors").read_bytes()).hexdigest()
    assert ancestor["components"][0]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    facts = said(model)
    assert facts["answer"] == "derived"
    assert float(facts["log10_p"]) < -6
    assert facts["says"].startswith("consistent with: tuned comes from base (derived, p at")
    assert facts["compared-with-sha256:model.safetensors"] == digest
    lines = card.read_text().splitlines()
    assert lines[0] == 'base_model: "base"'
    assert lines[1].startswith("# consistent with: tuned comes from base")
    assert all(line.startswith("# ") for line in lines[1:])


def test_strangers_have_no_ancestor(home: Path, tmp_path: Path) -> None:
    bom, card = tmp_path / "bom.json", tmp_path / "card.md"
    assert (
        tnfn("kin", home / "stranger", home / "base", "--bom", bom, "--card", card).exit_code == 3
    )
    model = bill(bom)
    assert list(model["pedigree"]) == ["notes"]
    assert said(model)["says"].startswith("not seen: any kinship of stranger with base")
    assert "base_model" not in card.read_text()


def test_the_same_function(home: Path, tmp_path: Path) -> None:
    bom = tmp_path / "bom.json"
    assert tnfn("same", home / "base", home / "moved", "--bom", bom).exit_code == 0
    model = bill(bom)
    assert model["name"] == "moved"
    assert model["pedigree"]["ancestors"][0]["name"] == "base"
    assert said(model)["says"].startswith("consistent with: moved computes what base does")
    words = ("same", home / "base", home / "stranger", "--bom", bom)
    assert "exists already" in str(tnfn(*words).exception)
    bom.unlink()
    assert tnfn(*words).exit_code == 3
    model = bill(bom)
    assert "ancestors" not in model["pedigree"]
    assert said(model)["says"].startswith("not seen: stranger computes")


def test_names_cannot_break_out(home: Path, tmp_path: Path) -> None:
    base = tmp_path / 'a"\nbase_model: b\x1b[31m\u2028base_model: c\u2028#\x85d: e\udcff'
    (home / "base").rename(base)
    try:
        bom, card = tmp_path / "bom.json", tmp_path / "card.md"
        tnfn("kin", home / "tuned", base, "--bom", bom, "--card", card)
        assert bill(bom)["pedigree"]["ancestors"][0]["name"] == base.name
        text = card.read_text()
        assert text.isascii()
        assert [line for line in text.splitlines() if line.startswith("base_model")] == [
            f"base_model: {json.dumps(base.name)}"
        ]
        assert "\x1b" not in text
    finally:
        base.rename(home / "base")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--bom", "nowhere/bom.json"), "is no folder"),
        (("--bom", "bom.xml"), "should end in .json"),
        (("--card", "card.pdf"), "should end in .md"),
    ],
)
def test_where_to_write_is_checked_first(home: Path, words: tuple[str, str], why: str) -> None:
    assert why in str(tnfn("kin", home / "tuned", home / "base", *words).exception)
