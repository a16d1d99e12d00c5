import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_nfn.checkpoints import CheckpointError, TensorFiles
from transformer_nfn.checkpoints.files.header import DTYPES
from transformer_nfn.checkpoints.files.places import INDEX, MAX_JSON, SINGLE, read_json_file


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 2, (60,), generator=generator)
    return {
        f"{name} {shape}": numbers[: torch.Size(shape).numel()].view(shape).to(dtype).clone()
        for name, dtype in DTYPES.items()
        for shape in ((), (0,), (7,), (5, 3), (3, 0), (0, 4), (2, 3, 4))
    }


def write_shards(folder: Path, split: dict[str, dict[str, Tensor]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, tensors in split.items():
        save_file(tensors, folder / file)
    weight_map = {name: file for file, tensors in split.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    one, two = {"a": torch.arange(6.0).view(2, 3)}, {"b": torch.arange(4)}
    return write_shards(tmp_path / "shards", {"1.safetensors": one, "2.safetensors": two})


def refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        TensorFiles(path)
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def test_all_dtypes_and_shapes_are_read_equal(tmp_path: Path) -> None:
    tensors = some_tensors()
    save_file(tensors, tmp_path / SINGLE)
    for path in (tmp_path, tmp_path / SINGLE):
        with TensorFiles(path) as files:
            assert set(files) == set(tensors)
            assert files.size == sum(t.numel() * t.element_size() for t in tensors.values())
            for name, tensor in tensors.items():
                found = files.read(name)
                assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
                assert torch.equal(found, tensor)


def test_parts_are_equal_to_indexing(tmp_path: Path) -> None:
    tensors = {name: t for name, t in some_tensors().items() if t.dim()}
    save_file(tensors, tmp_path / SINGLE)
    with TensorFiles(tmp_path) as files:
        for name, tensor in tensors.items():
            n = len(tensor)
            for rows in ([], [n - 1, 0, 0] if n else []):
                assert torch.equal(files.rows(name, rows), tensor[rows])
            for first, last in ((0, n), (n // 2, n), (n, n)):
                assert torch.equal(files.slice(name, first, last), tensor[first:last])
            chunks = list(files.chunks(name, 2))
            assert [len(chunk) for chunk in chunks] == [min(2, n - i) for i in range(0, n, 2)]
            assert not n or torch.equal(torch.cat(chunks), tensor)


@pytest.mark.parametrize(("first", "last"), [(-1, 1), (0, 3), (2, 1), (3, 3)])
def test_parts_never_are_another_tensors_bytes(shards: Path, first: int, last: int) -> None:
    with TensorFiles(shards) as files:
        with pytest.raises(IndexError, match="a has 2 rows"):
            files.slice("a", first, last)
        with pytest.raises(IndexError, match="a has 2 rows, asked for 2 to 3"):
            files.rows("a", [0, 2])


def test_shards_are_one_checkpoint(shards: Path) -> None:
    for path in (shards, shards / INDEX):
        with TensorFiles(path) as files:
            assert [file.name for file, _ in files.shards] == ["1.safetensors", "2.safetensors"]
            assert torch.equal(files.read("a"), torch.arange(6.0).view(2, 3))
            assert torch.equal(files.read("b"), torch.arange(4))
            assert files.folder == shards


@pytest.mark.parametrize(
    "name",
    [
        *("../2.safetensors", "/etc/passwd", "..", ".", "", "x/2.safetensors", "2.safetensors/"),
        *("C:\\x", "a\0", "a\nb", "\x1b[2J", "\ud800"),
    ],
)
def test_an_index_names_plain_files_only(shards: Path, name: str) -> None:
    (shards / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    refused(shards, "which is not a plain file name")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "should hold a JSON object, not a list"),
        ({}, "has no weight_map from tensors to files"),
        ({"weight_map": ["1.safetensors"]}, "has no weight_map"),
        ({"weight_map": {"a": 1}}, "has no weight_map"),
        ({"weight_map": {}}, "names 0 files"),
        ({"weight_map": {str(n): f"{n}.safetensors" for n in range(5000)}}, "names 5000 files"),
        ({"weight_map": {"a": "3.safetensors"}}, "3.safetensors does not exist"),
        ({"weight_map": {"a": "x" * 300}}, "File name too long"),
        ({"weight_map": {"a": INDEX}}, "is no safetensors file"),
        (
            {"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}},
            "disagree on 1 tensors, 'b'",
        ),
        ({"weight_map": {"a": "1.safetensors", "x" * 9999: "1.safetensors"}}, "disagree on 1"),
        ({"weight_map": {"b": "1.safetensors", "a": "2.safetensors"}}, "disagree on 2 tensors"),
    ],
)
def test_an_index_that_lies(shards: Path, index: object, message: str) -> None:
    (shards / INDEX).write_text(json.dumps(index))
    refused(shards, message)


def test_a_tensor_in_two_shards(shards: Path) -> None:
    name = "x" * 1000
    split = {f: {name: torch.zeros(1)} for f in ("1.safetensors", "2.safetensors")}
    write_shards(shards, split)
    (shards / INDEX).write_text(
        json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    )
    refused(shards, "2.safetensors: tensor 'x{80}' is in two shards")


def test_all_shards_have_one_limit(tmp_path: Path) -> None:
    text = b"{" + b" " * (MAX_JSON // 2) + b"}"
    (tmp_path / "0").write_bytes(len(text).to_bytes(8, "little") + text)
    for number in range(1, 100):
        (tmp_path / str(number)).symlink_to("0")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {str(n): str(n) for n in range(100)}}))
    refused(tmp_path, "has a header of 1048578 bytes; at most 1048566 are read")


def test_links_into_the_blobs_of_a_cache_and_beside_are_followed(shards: Path) -> None:
    cache = shards.parent / "models--a--b"
    snapshot, blobs = cache / "snapshots" / "0123", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(shards.iterdir())):
        file.rename(blobs / f"sha{number}")
        (snapshot / file.name).symlink_to(f"../../blobs/sha{number}")
    with TensorFiles(snapshot) as files:
        assert set(files) == {"a", "b"}
    (blobs / "sha0").rename(snapshot / "beside")
    (snapshot / "1.safetensors").unlink()
    (snapshot / "1.safetensors").symlink_to("beside")
    with TensorFiles(snapshot) as files:
        assert set(files) == {"a", "b"}


@pytest.mark.parametrize(
    "target", ["../outside", "../blobs/1", "../../blobs/1", "/etc/passwd", "d/" * 1500 + "\x1b[2J"]
)
def test_other_links_of_shards_are_refused(shards: Path, target: str) -> None:
    file = shards / "1.safetensors"
    for place in (shards.parent / "outside", shards.parent / "blobs" / "1"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(target)
    refused(shards, "is a link that leads out of its folder, to '/")


def test_links_in_a_circle(shards: Path) -> None:
    for name in ("1.safetensors", "config.json"):
        (shards / name).unlink(missing_ok=True)
        (shards / name).symlink_to(name)
    refused(shards, "is a link that leads back to itself")
    refused(shards / "1.safetensors", "Too many levels of symbolic links")
    with pytest.raises(CheckpointError, match="Too many levels of symbolic links"):
        read_json_file(shards / "config.json")


def listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "socket": listen,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "null": lambda path: path.symlink_to("/dev/null"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_only_regular_files_are_opened(
    kind: str, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shards)  # a socket's path must be short
    for name in ("config.json", "1.safetensors"):
        Path(name).unlink(missing_ok=True)
        SPECIAL[kind](Path(name))
    with pytest.raises(CheckpointError, match=r"config\.json is not a regular file"):
        read_json_file(Path("config.json"))
    refused(Path(), "1.safetensors is (not a regular file|a link that leads out of its folder)")
    if kind != "folder":
        refused(Path("1.safetensors"), "1.safetensors is not a regular file")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no readable JSON"),
        (b"[]", "should hold a JSON object, not a list"),
        (b"{}".ljust(MAX_JSON + 1), f"has {MAX_JSON + 1} bytes, more than {MAX_JSON}"),
        (b'{"a":1,"a":2}', "has the same key twice"),
    ],
)
def test_json_files_that_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_json_file(tmp_path / "config.json")


@pytest.mark.parametrize("name", ["x.bin", "x.pt", "x.pth", "x.ckpt", "x.pkl"])
def test_pickles_are_not_even_opened(name: str, tmp_path: Path) -> None:
    refused(tmp_path / name, "is a pickle, which can run code")


def test_a_folder_needs_one_file(tmp_path: Path) -> None:
    refused(tmp_path, "is a folder without a .safetensors or .gguf file")
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    with TensorFiles(tmp_path) as files:
        assert set(files) == {"a"}
    save_file({"a": torch.zeros(1)}, tmp_path / "y.safetensors")
    refused(tmp_path, "has 2 .safetensors files, none of them model.safetensors")
    refused(tmp_path / "missing", "missing does not exist")
    refused(Path("a\0b"), "'a.x00b' cannot be opened: embedded null byte")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(100)}, tmp_path / SINGLE)
    with TensorFiles(tmp_path) as files:
        os.truncate(tmp_path / SINGLE, 200)
        with pytest.raises(CheckpointError, match="became shorter while it was read"):
            files.read("a")


def test_terabytes_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise RuntimeError("can't allocate memory")

    save_file({"a": torch.zeros(100)}, tmp_path / SINGLE)
    with TensorFiles(tmp_path) as files:
        monkeypatch.setattr(torch, "empty", no_memory)
        with pytest.raises(CheckpointError, match="no memory for a tensor of 400 bytes"):
            files.read("a")


@pytest.mark.parametrize("broken", ["1.safetensors", "2.safetensors", INDEX])
def test_nothing_stays_open_after_an_error(shards: Path, broken: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    (shards / broken).write_bytes(b"{")
    refused(shards, "1 bytes, too few|no readable JSON")
    assert set(os.listdir("/proc/self/fd")) == before
