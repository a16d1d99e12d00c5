import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from tests.checkpoints import made
from tests.cli.test_zoo import tnfn
from tests.hub.nets import some_nets, upload
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.hub import HubError, Results, load_forest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three nets, a copy of one, and a file that is none."""
    home = some_nets(tmp_path / "nets")
    with Checkpoint(home / "0" / "0.safetensors") as checkpoint:
        rewrite(checkpoint, [], home / "copy.safetensors")
    (home / "broken.safetensors").write_bytes(b"no")
    return home


def figures(*arguments: object) -> dict[str, object]:
    result = tnfn(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_fingerprints_go_into_a_folder_and_only_once(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = figures("fingerprint", folder, "--out", out)
    assert (first["files"], first["done"], first["errors"]) == (5, 5, 1)
    assert first["status"] == {"ok": 4, "broken": 1}
    assert list(first["reasons"]) == [str(folder / "broken.safetensors")]
    assert first["bytes_read"] > 10_000
    result = tnfn("fingerprint", folder, "--out", out)
    assert "0 new or changed" in result.stdout
    assert "broken.safetensors" in result.stderr
    assert len(Results(str(out)).rows()) == 5


def test_dedup_makes_or_takes_a_folder_of_fingerprints(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made_one = figures("dedup", folder, "--out", out)
    taken = figures("dedup", out)
    assert (taken["files"], taken["copies"]) == (made_one["files"], made_one["copies"]) == (4, 1)
    assert "copy of 0/0.safetensors" in tnfn("dedup", out).stdout
    few = figures("dedup", folder)
    assert [row["relation"] for row in few["table"]] == [row["relation"] for row in taken["table"]]


def test_kin_are_kept_beside_the_fingerprints(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = figures("dedup", folder, "--out", out)
    assert (first["networks"], first["copies"]) == (3, 1)
    kept = (out / "links.pq").read_bytes()
    assert len(load_forest(Results(str(out))).keys) == 3
    assert figures("dedup", out)["copies"] == 1
    assert (out / "links.pq").read_bytes() == kept
    with Checkpoint(folder / "copy.safetensors") as checkpoint:
        rewrite(checkpoint, [], folder / "again.safetensors")
    made.zoo_net(folder / "new.safetensors", "residual", 7)
    more = figures("dedup", folder, "--out", out)
    assert (more["files"], more["networks"], more["copies"]) == (6, 4, 2)
    (out / "links.pq").write_bytes(b"no")
    assert figures("dedup", folder, "--out", out) == more
    assert len(load_forest(Results(str(out))).keys) == 4


def test_the_whole_table_is_written(folder: Path, tmp_path: Path) -> None:
    for name, read in (("kin.parquet", pq.read_table), ("kin.csv", csv.read_csv)):
        found = figures("dedup", folder, "--to", tmp_path / name)
        table = read(tmp_path / name)
        assert table["path"].to_pylist() == [row["path"] for row in found["table"]]
        assert [one or None for one in table["relation"].to_pylist()] == [  # CSV has no null
            row["relation"] for row in found["table"]
        ]
    assert tnfn("dedup", folder, "--to", tmp_path / "kin.txt").exit_code == 1


def test_of_many_files_only_kin_are_listed(tmp_path: Path) -> None:
    home = some_nets(tmp_path / "nets")
    for number in range(110):
        os.link(home / "0" / "0.safetensors", home / f"{number}.safetensors")
    said = tnfn("dedup", home).stdout
    assert "113 files, 3 networks in 3 lineages; 110 copies, 0 related" in said
    assert "and 11 more: --to" in said  # of 111
    assert len(said.splitlines()) == 1 + 100 + 2


def test_the_nearest_are_named(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    figures("fingerprint", folder, "--out", out)
    found = figures("nearest", folder / "copy.safetensors", out, "--top", 3)
    assert [row["relation"] for row in found["nearest"]] == ["copy", "stranger", "stranger"]
    lines = tnfn("nearest", folder / "copy.safetensors", out).stdout.splitlines()
    assert lines[0].split() == ["path", "relation", "distance"]
    assert lines[1].split()[1:] == ["copy", "0.0e+00"]
    assert not any("copy.safetensors" in line for line in lines)  # the file itself
    made.save(made.model("gpt2"), tmp_path / "gpt2")
    other = tnfn("nearest", tmp_path / "gpt2", out)
    assert other.exit_code == 1
    assert "no other of 4 files has the shape gpt2" in other.stdout


def test_some_blocks_only(tmp_path: Path) -> None:
    made.save(made.model("gpt2", n_layer=4), tmp_path / "nets")
    all_of_it, some = tmp_path / "all", tmp_path / "some"
    whole = figures("fingerprint", tmp_path / "nets", "--out", all_of_it)
    part = figures("fingerprint", tmp_path / "nets", "--out", some, "--blocks", "first,last")
    assert part["bytes_read"] < whole["bytes_read"]
    parts = Results(str(some)).rows()["parts"].to_pylist()[0]
    assert parts == ["attention 0", "mlp 0", "attention 3", "mlp 3", "tokens"]
    refused = tnfn("fingerprint", tmp_path / "nets", "--out", some)
    assert isinstance(refused.exception, HubError)
    shown = tnfn("fingerprint", tmp_path / "nets", "--blocks", "middle").stdout
    assert '"attention 2"' in shown


def test_urls_and_manifests(folder: Path, tmp_path: Path, memory: str) -> None:
    upload(folder, f"{memory}/nets")
    found = figures("fingerprint", f"{memory}/nets", "--out", f"{memory}/out")
    assert found["status"] == {"ok": 4, "broken": 1}
    (tmp_path / "list.txt").write_text(f"{memory}/nets/copy.safetensors\nnets/1/1.safetensors\n")
    lines = tnfn("fingerprint", tmp_path / "list.txt").stdout.splitlines()
    assert [json.loads(line)["path"] for line in lines if line.startswith("{")] == [
        str(folder / "1" / "1.safetensors"),
        "memory:///hub/nets/copy.safetensors",
    ]


def test_where_nothing_can_be_read_the_exit_code_is_1(tmp_path: Path) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "a.safetensors").write_bytes(b"no")
    assert tnfn("fingerprint", tmp_path / "nets", "--out", tmp_path / "out").exit_code == 1
