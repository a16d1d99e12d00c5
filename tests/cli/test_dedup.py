import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints import made
from tests.cli.test_zoo import tnfn
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.kinship import Fingerprint, distance, fingerprint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net twice, once another, and a file that is none."""
    home = tmp_path_factory.mktemp("nets")
    first = made.save(made.model("gpt2"), home / "step-1")
    with Checkpoint(first) as checkpoint:
        rewrite(checkpoint, [], home / "step-2")
    made.save(made.model("gpt2", seed=1), home / "step-10")
    (home / "broken.safetensors").write_bytes(b"no")
    return home


@pytest.mark.parametrize("command", ["fingerprint", "dedup", "audit"])
def test_the_help_has_an_example(command: str) -> None:
    assert f"Example: tnfn {command}" in tnfn(command, "--help").stdout


def test_dedup_shows_copies_and_names_what_it_cannot_read(folder: Path) -> None:
    result = tnfn("dedup", folder)
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["1", "1", "step-2", "copy", "of", "step-1", "0.0e+00", "float32"] in lines
    assert "3 files, 2 networks in 2 lineages; 1 copy, 0 related" in result.stdout
    assert "broken.safetensors" in result.stderr


@pytest.mark.parametrize("results", [False, True])
def test_files_that_no_family_reads_are_counted_in_a_line(results: bool, tmp_path: Path) -> None:
    home = tmp_path / "nets"
    made.zoo_net(home / "net.safetensors")
    tensors = {"a.weight": torch.randn(3, 4)}
    save_file(tensors, home / "one.safetensors")
    save_file({"b.weight": tensors["a.weight"]}, home / "two.safetensors")
    more = ["--out", tmp_path / "prints"] if results else []
    said = tnfn("dedup", home, *more).stdout
    assert "2 more files of architectures that are not read" in said
    assert "1 with the tensors of another" in said
    assert "two.safetensors has the tensors of one.safetensors" in said
    found = json.loads(tnfn("dedup", home, "--json", *more).stdout)
    assert found["unsupported"] == 2
    assert [Path(path).stem for path in found["unsupported_copies"]] == ["two"]


def test_a_tree_is_written_as_text_and_as_a_picture(folder: Path, tmp_path: Path) -> None:
    for suffix in (".dot", ".mmd", ".png"):
        assert tnfn("dedup", folder, "--tree", tmp_path / f"tree{suffix}").exit_code == 0
    assert (tmp_path / "tree.dot").read_text().splitlines() == [
        "graph kin {",
        "  rankdir=LR; node [shape=box];",
        '  n0 [label="step-1"];',
        '  n1 [label="step-2"];',
        '  n0 -- n1 [label="copy"];',
        "}",
    ]
    assert (tmp_path / "tree.mmd").read_text().splitlines() == [
        "graph LR", '  n0["step-1"]', '  n1["step-2"]', "  n0 ---|copy| n1",
    ]  # fmt: skip
    assert (tmp_path / "tree.png").read_bytes().startswith(b"\x89PNG")
    refused = tnfn("dedup", folder, "--tree", tmp_path / "tree.txt")
    assert "should end in .dot" in str(refused.exception)


def test_dedup_gives_json_and_a_picture(folder: Path, tmp_path: Path) -> None:
    picture = tmp_path / "distances.png"
    result = tnfn("dedup", folder, "--json", "--plot", picture)
    found = json.loads(result.stdout)
    assert (found["files"], found["networks"], found["copies"]) == (3, 2, 1)
    assert [row["relation"] for row in found["table"]] == [None, "copy", None]
    assert len(found["broken"]) == 1
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_dedup_fails_where_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"no")
    assert tnfn("dedup", tmp_path).exit_code == 1
    assert "does not exist" in str(tnfn("dedup", tmp_path / "none").exception)
    made.zoo_net(tmp_path / "b.safetensors")
    refused = tnfn("dedup", tmp_path, "--plot", tmp_path / "none" / "a.png")
    assert "is no folder; make it first" in str(refused.exception)


def test_fingerprints_are_written_and_read(folder: Path, tmp_path: Path) -> None:
    expected = fingerprint(folder / "step-1")
    lines = tmp_path / "prints.jsonl"
    result = tnfn("fingerprint", folder, "--out", lines)
    assert result.exit_code == 1  # the broken file
    read = [Fingerprint.from_json(line) for line in lines.read_text().splitlines()]
    assert [Path(one.path).parent.name for one in read] == ["step-1", "step-2", "step-10"]
    assert distance(expected, read[0]).largest == 0
    table = tmp_path / "prints.parquet"
    assert tnfn("fingerprint", folder / "step-1", "--out", table, "--json").exit_code == 0
    rows = pq.read_table(table).to_pylist()
    assert [row["part"] for row in rows] == list(expected.parts)
    assert rows[0]["numbers"] == pytest.approx(expected.parts["attention 0"].tolist(), rel=1e-6)
    printed = tnfn("fingerprint", folder / "step-1").stdout.splitlines()[-1]
    assert distance(Fingerprint.from_json(printed), expected).largest == 0
    wrong = tnfn("fingerprint", folder, "--out", "prints.csv")
    assert isinstance(wrong.exception, CheckpointError)


def test_audit_reports_a_duplicate(folder: Path, tmp_path: Path) -> None:
    result = tnfn("audit", folder)
    assert result.exit_code == 1
    assert "duplicate of step-1" in result.stdout
    found = json.loads(tnfn("audit", folder, "--json").stdout)
    assert not found["sound"]
    assert [step["finding"] for step in found["steps"]][1] == "duplicate"
