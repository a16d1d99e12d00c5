"""The commands on many checkpoints and the zoo's builder on S3, undisturbed and disturbed."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.conftest import own_cache, zoo_folder
from tests.bench.small import small_examples
from tests.bench.test_ranking import export
from tests.checkpoints import made
from tests.cli.test_zoo import tnfn
from tests.hub.nets import some_nets, upload
from tests.stores.faulty import Proxy
from tests.zoo.conftest import built, write_tiny
from transformer_nfn.bench import Cell, fit_and_save, load_predictor, rank_files
from transformer_nfn.hub import Results
from transformer_nfn.jobs import ShardFolder
from transformer_nfn.stores import Store
from transformer_nfn.zoo import Recipe, verify
from transformer_nfn.zoo.dataset import Zoo

__all__ = ["own_cache", "zoo_folder"]

disturbed = pytest.mark.parametrize("rate", [0.0, 0.1], ids=["undisturbed", "disturbed"])
#: What the place of a file has no part in.
CONTENT = ("status", "family", "shape", "dtype", "parts", "numbers")


def figures(*arguments: object) -> dict[str, Any]:
    result = tnfn(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def by_name(out: str) -> dict[str, tuple[Any, ...]]:
    rows = Results(out).rows().to_pylist()
    return {row["path"].rpartition("/")[2]: tuple(row[key] for key in CONTENT) for row in rows}


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = some_nets(tmp_path_factory.mktemp("nets"), 6)
    (home / "copy.safetensors").write_bytes((home / "0" / "0.safetensors").read_bytes())
    (home / "broken.safetensors").write_bytes(b"no")
    figures("fingerprint", home, "--out", home.parent / "prints")
    return home


@disturbed
def test_many_checkpoints(rate: float, s3: Proxy, bucket: str, nets: Path, tmp_path: Path) -> None:
    upload(nets, f"{bucket}/nets")
    s3.clear()
    s3.rate = rate
    out = f"{bucket}/prints"
    first = figures("fingerprint", f"{bucket}/nets", "--out", out)
    assert first["status"] == {"ok": 7, "broken": 1}
    assert by_name(out) == by_name(str(nets.parent / "prints"))
    assert (sum(s3.faults.values()) > 0) == (rate > 0)
    if not rate:  # a whole small net is one range, and its first neurons are one more
        assert s3.sent < 1.25 * first["bytes_read"] + 20_000
        assert s3.requests["HEAD"] <= 5 * 8 + 6  # a file, and whether there is a config.json
        assert s3.requests["GET"] <= 8 + 16  # one of each file, listings, shards

    made.zoo_net(tmp_path / "0.safetensors", "residual", 3)
    (tmp_path / "config.json").write_text("{}")
    for name in ("0.safetensors", "config.json"):
        home = f"{bucket.removeprefix('s3://')}/with"
        Store.at(bucket)[0].replace(f"{home}/{name}", (tmp_path / name).read_bytes())
    with_config = [f"{bucket}/with", "--out", f"{bucket}/with-out"]
    assert [figures("fingerprint", *with_config)["done"] for _ in range(2)] == [1, 0]

    again = figures("fingerprint", f"{bucket}/nets", "--out", out)
    assert (again["done"], again["bytes_read"]) == (0, 0)
    assert figures("dedup", out)["copies"] == 1

    rows = [{"path": "nets/0/2.safetensors"}, {"path": "nets/copy.safetensors"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "list.parquet")
    Store.at(bucket)[0].replace(
        f"{bucket.removeprefix('s3://')}/list.parquet", (tmp_path / "list.parquet").read_bytes()
    )
    some = figures("fingerprint", f"{bucket}/list.parquet", "--out", f"{bucket}/some")
    assert some["status"] == {"ok": 2}


def test_of_a_large_file_only_some_is_sent(s3: Proxy, bucket: str, tmp_path: Path) -> None:
    sizes = {"n_embd": 96, "n_inner": 384, "n_layer": 8, "vocab_size": 9000}
    made.save(made.model("gpt2", **sizes), tmp_path / "gpt2")
    upload(tmp_path / "gpt2", f"{bucket}/nets")
    s3.clear()
    found = figures("fingerprint", f"{bucket}/nets", "--out", tmp_path / "out", "--blocks", "last")
    size = Results(str(tmp_path / "out")).rows(["size"])["size"][0].as_py()
    assert found["bytes_read"] < 0.7 * size
    assert s3.sent < 1.05 * found["bytes_read"] + 20_000


@disturbed
def test_one_checkpoint(rate: float, s3: Proxy, bucket: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    net = made.save(made.model("gpt2"), home / "a")
    figures("reparam", net, "--out", home / "b")
    upload(home, bucket)
    upload(net, f"{bucket}/copy")
    s3.clear()
    s3.rate = rate
    assert figures("inspect", f"{bucket}/a")["family"] == "gpt2"
    assert figures("same", f"{bucket}/a", f"{bucket}/copy")["answer"] == "identical bytes"
    options = ("--certificate", tmp_path / "g.safetensors")
    found = figures("same", f"{bucket}/a", f"{bucket}/b", *options)
    assert found["answer"] == "equivalent"
    config = ("--config", f"{bucket}/a/config.json")
    (tmp_path / "bare.safetensors").write_bytes((net / "model.safetensors").read_bytes())
    assert figures("inspect", tmp_path / "bare.safetensors", *config)["blocks"] == 2
    figures("apply", options[1], f"{bucket}/a", "--out", tmp_path / "c")
    figures("reparam", f"{bucket}/a", "--out", tmp_path / "b")
    name = "model.safetensors"
    assert (tmp_path / "b" / name).read_bytes() == (home / "b" / name).read_bytes()
    assert (sum(s3.faults.values()) > 0) == (rate > 0)


def test_ranks_too(bucket: str, zoo_folder: str, tmp_path: Path) -> None:
    fit_and_save(Cell(zoo=zoo_folder, model="invariants", split=2), tmp_path / "model")
    files = export(small_examples(6, seed=99), tmp_path / "nets")
    expected = rank_files(load_predictor(tmp_path / "model"), files)
    upload(tmp_path / "nets", f"{bucket}/nets")
    options = ("--model", tmp_path / "model", "--out", f"{bucket}/ranks")
    found = figures("rank", f"{bucket}/nets", *options)
    assert found["status"] == {"ok": len(files)}
    best = [one["path"].rpartition("/")[2] for one in found["ranked"]]
    assert best == [Path(one.path).name for one in expected]


def test_a_zoo(s3: Proxy, bucket: str, tmp_path: Path) -> None:
    recipe = Recipe.load(write_tiny(tmp_path, ("runs = 10", "runs = 4")))
    near = built(recipe, tmp_path / "zoo")
    s3.rate = 0.1
    far = built(recipe, f"{bucket}/zoo")
    assert far.names() == near.names()
    for name in near.names():
        assert far.shards.read_bytes(name) == near.shards.read_bytes(name)
    assert [one for one in verify(far) if one.problems] == []
    assert Zoo(far.url).table().equals(near.table())
    assert built(recipe, far.url).names() == near.names()
    assert sum(s3.faults.values()) > 0


def test_a_shard_whose_commit_was_not_answered_is_there_once(s3: Proxy, bucket: str) -> None:
    folder = ShardFolder(f"{bucket}/shards")
    table = pa.table({"seed": [1, 2, 3]})
    s3.plan("lost", "PUT", "0.parquet")
    assert folder.commit("0.parquet", table, row_group_size=2) is False
    assert folder.names() == {"0.parquet"}
    assert folder.read("0.parquet").equals(table)
