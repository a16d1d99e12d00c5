import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.checkpoints import made
from tests.hub.nets import some_nets, upload
from transformer_nfn.hub import HubError, list_items
from transformer_nfn.hub.items import Piece, items_of
from transformer_nfn.hub.sources import look
from transformer_nfn.kinship import find_checkpoints


def paths(*sources: object) -> list[str]:
    return list_items([str(source) for source in sources])["path"].to_pylist()


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return made.save(made.model("llama"), tmp_path / "shards", max_shard_size="15KB")


def test_a_folder_gives_what_find_checkpoints_finds(tmp_path: Path, shards: Path) -> None:
    some_nets(tmp_path)
    (tmp_path / ".hidden").mkdir()
    made.zoo_net(tmp_path / ".hidden" / "a.safetensors")
    made.zoo_net(tmp_path / ".part.safetensors")
    (tmp_path / "blobs").mkdir()
    made.zoo_net(tmp_path / "a.safetensors").rename(tmp_path / "blobs" / "abc")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "blob.safetensors").symlink_to(tmp_path / "blobs" / "abc")
    (tmp_path / "linked" / "twice.safetensors").symlink_to(tmp_path / "0" / "0.safetensors")
    (tmp_path / "linked" / "out.safetensors").symlink_to("/etc/hostname")
    (tmp_path / "linked" / "nowhere.safetensors").symlink_to(tmp_path / "none")
    (tmp_path / "again").symlink_to(tmp_path / "0")
    found = paths(tmp_path)
    assert found == sorted(str(path) for path in find_checkpoints(tmp_path))
    assert str(shards / "model.safetensors.index.json") in found
    assert len(found) == 6


def test_one_look_gives_the_version_of_the_listing(shards: Path, tmp_path: Path) -> None:
    made.save(made.model("gpt2"), tmp_path / "gpt2")
    listing = list_items([str(tmp_path)]).to_pylist()
    assert len(listing) == 2
    for row in listing:
        assert tuple(row.values()) == look(row["path"])
    weights = sum(file.stat().st_size for file in shards.glob("*.safetensors"))
    assert [row["size"] for row in listing if "shards" in row["path"]] == [weights]


@pytest.mark.parametrize("touched", ["*00002-of*", "config.json", "*.index.json"])
def test_whatever_file_changes_changes_the_version(shards: Path, touched: str) -> None:
    (file,) = shards.glob(touched)
    before = list_items([str(shards)])["version"].to_pylist()
    os.utime(file, ns=(1, file.stat().st_mtime_ns + 1))
    assert list_items([str(shards)])["version"].to_pylist() != before


def test_a_url_gives_the_same_as_the_folder(tmp_path: Path, shards: Path, memory: str) -> None:
    upload(some_nets(tmp_path), memory)
    found = list_items([memory]).to_pylist()
    assert [row["path"].removeprefix("memory:///hub/") for row in found] == [
        os.path.relpath(path, tmp_path) for path in paths(tmp_path)
    ]
    for row in found:
        assert tuple(row.values()) == look(row["path"])
    assert paths(found[0]["path"]) == [found[0]["path"]]
    with pytest.raises(IsADirectoryError):
        look(f"{memory}/0")


def test_manifests_of_every_kind(tmp_path: Path) -> None:
    home = some_nets(tmp_path / "nets")
    expected = paths(home)
    relative = [os.path.relpath(path, tmp_path) for path in expected]
    (tmp_path / "m.txt").write_text("\n".join([*relative, expected[0], ""]))
    (tmp_path / "m.csv").write_text("\n".join(["path,more", *(f"{p},1" for p in relative)]))
    (tmp_path / "m.jsonl").write_text("\n".join(json.dumps({"path": p}) for p in expected))
    pq.write_table(pa.table({"path": relative}), tmp_path / "m.parquet")
    for kind in ("txt", "csv", "jsonl", "parquet"):
        assert list_items([str(tmp_path / f"m.{kind}")]) == list_items([str(home)])
    assert paths(tmp_path / "m.csv", home, expected[1]) == expected


def test_a_manifest_may_give_sizes_and_versions(tmp_path: Path) -> None:
    text = "path,size,version\ns3://nowhere/a.safetensors,5,007\n"
    (tmp_path / "m.csv").write_text(text)
    assert list_items([str(tmp_path / "m.csv")]).to_pylist() == [
        {"path": "s3://nowhere/a.safetensors", "size": 5, "version": "007"}
    ]


def test_what_is_no_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="does not exist"):
        paths(tmp_path / "none")
    with pytest.raises(HubError, match=r"no \.safetensors or \.gguf files"):
        paths(tmp_path)
    (tmp_path / "m.csv").write_text("name\na\n")
    with pytest.raises(HubError, match="column `path`"):
        paths(tmp_path / "m.csv")
    (tmp_path / "m.parquet").write_text("no")
    with pytest.raises(HubError, match="no manifest"):
        paths(tmp_path / "m.parquet")


def test_a_name_that_is_no_utf8_does_not_stop_the_listing(tmp_path: Path) -> None:
    some_nets(tmp_path, 1)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.safetensors")).write_bytes(b"no")
    assert len(paths(tmp_path)) == 2


def test_shards_are_known_by_numbers_of_any_length() -> None:
    names = ["m-00001-of-000002", "m-00002-of-000002", "m-1-of-2", "m"]
    pieces = {f"{name}.safetensors": Piece(1, "a") for name in names}
    assert len(list(items_of("", pieces))) == 4  # without an index each is a file
    found = list(items_of("", pieces | {"m.safetensors.index.json": Piece(9, "a")}))
    assert sorted((item.path, item.size) for item in found) == [
        ("m.safetensors", 1),
        ("m.safetensors.index.json", 3),
    ]
