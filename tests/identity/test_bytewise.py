import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import made
from tests.hub.nets import upload
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import Answer, bytewise, same
from transformer_nfn.identity.bytewise import Sameness, same_numbers

NAME = "transformer.h.1.mlp.c_fc.weight"


def compare(one: str | Path, two: str | Path) -> Sameness | None:
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        return same_numbers(ours, theirs)


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    """A network, a copy of its file, its tensors in another file, and one number changed."""
    first = made.save(made.model("gpt2"), tmp_path / "first")
    shutil.copytree(first, tmp_path / "copy")
    shutil.copytree(first, tmp_path / "tensors")
    tensors = load_file(first / "model.safetensors")
    save_file(tensors, tmp_path / "tensors" / "model.safetensors", {"made by": "somebody else"})
    with Checkpoint(first) as checkpoint:
        weight = checkpoint.files.read(NAME).clone()
        weight[-1, -1] = torch.nextafter(weight[-1, -1], torch.tensor(9.0))
        rewrite(checkpoint, [(NAME, weight)], tmp_path / "changed")
    return tmp_path


CASES = {"copy": Sameness.BYTES, "tensors": Sameness.TENSORS, "changed": None}


@pytest.mark.parametrize("place", ["both near", "one far", "both far"])
def test_near_and_far_files_compare_alike(place: str, nets: Path, memory: str) -> None:
    upload(nets, memory)
    one: str | Path = f"{memory}/first" if place == "both far" else nets / "first"
    for name, expected in CASES.items():
        two = nets / name if place == "both near" else f"{memory}/{name}"
        assert compare(one, two) is expected, name


def test_two_far_files_with_equal_headers_have_a_verdict(nets: Path, memory: str) -> None:
    upload(nets, memory)
    with Checkpoint(f"{memory}/first") as ours, Checkpoint(f"{memory}/copy") as theirs:
        assert same(ours, theirs).answer is Answer.SAME_BYTES


def test_shards_are_compared_by_what_is_in_them(tmp_path: Path) -> None:
    net = made.model("llama")
    made.save(net, tmp_path / "whole")
    made.save(net, tmp_path / "shards", max_shard_size="15KB")
    shutil.copytree(tmp_path / "shards", tmp_path / "copy")
    assert compare(tmp_path / "shards", tmp_path / "copy") is Sameness.BYTES
    assert compare(tmp_path / "whole", tmp_path / "shards") is Sameness.TENSORS


def test_only_spaces_in_the_header_are_no_identical_bytes(nets: Path) -> None:
    path = nets / "copy" / "model.safetensors"
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + length].replace(b'"shape":', b'"shape": ', 1).removesuffix(b" ")
    if len(header) > length:  # no padding to take the space from
        header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
    assert compare(nets / "first", nets / "copy") is Sameness.TENSORS


@pytest.mark.parametrize("where", [lambda p, _: p, lambda p, m: upload(p, m)], ids=["near", "far"])
def test_memory_is_bounded(
    where: Callable[[Path, str], str | Path],
    nets: Path,
    memory: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = where(nets, memory)

    def compare_within(most: int) -> Sameness | None:
        with Checkpoint(f"{home}/first") as ours, Checkpoint(f"{home}/tensors") as theirs:
            ours.files.largest_read = theirs.files.largest_read = most
            return same_numbers(ours, theirs)

    with pytest.raises(
        CheckpointError, match="at most 3000"
    ):  # its headers are shorter, a tensor is not
        compare_within(3000)
    monkeypatch.setattr(bytewise, "_PIECE", 1000)
    assert compare_within(3000) is Sameness.TENSORS
