"""GGUF is read as the checkpoint that it was made of, and nothing in it is believed."""

import io
import struct
import sys
from pathlib import Path

import gguf
import pytest
import torch
import transformers
from safetensors.torch import load_file

from benchmarks.material.families import ARCHITECTURES, quiet
from benchmarks.material.gguf_files import KINDS, TYPES, Type, source, write
from benchmarks.safety.fuzzing.gguf_bytes import made, setting, small_llama, tensor, text
from transformer_nfn.checkpoints import (
    Checkpoint,
    CheckpointError,
    UnsupportedError,
    open_files,
    rewrite,
)
from transformer_nfn.checkpoints.families import FAMILIES
from transformer_nfn.checkpoints.gguf.files import _translated
from transformer_nfn.checkpoints.gguf.header import NOT_KEPT, read_gguf_header
from transformer_nfn.checkpoints.gguf.header import TYPES as SIZES
from transformer_nfn.identity import Answer, same
from transformer_nfn.kinship import Relation, fingerprint, kin


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source("llama", tmp_path_factory.mktemp("llama") / "net")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_it_is_the_same_function(kind: str, tmp_path: Path) -> None:
    folder = source(kind, tmp_path / "net")
    file = write(folder, tmp_path / "net.gguf")
    with Checkpoint(folder) as one, Checkpoint(file) as two:
        assert set(one.files) == set(two.files)
        for name in one.files:
            assert (one.files.read(name) - two.files.read(name)).abs().max() <= 6e-8
        verdict = same(one, two, seed=0)
        # llama.cpp stores the scale of Gemma's norms, 1 more than the weight.
        moved = kind.startswith("gemma")
        assert verdict.answer is (Answer.EQUIVALENT if moved else Answer.SAME_TENSORS)
        assert two.unknown == []


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"gemma"}))  # which transformers does not
def test_transformers_reads_the_same_numbers(kind: str, tmp_path: Path) -> None:
    file = write(source(kind, tmp_path / "net"), tmp_path / "net.gguf", "Q8_0")
    with quiet():
        net = getattr(transformers, ARCHITECTURES[kind].model).from_pretrained(
            tmp_path, gguf_file=file.name, dtype=torch.float32
        )
    theirs = net.state_dict()
    with open_files(file) as ours:
        assert set(ours) <= set(theirs)
        assert all(torch.equal(ours.read(name), theirs[name]) for name in ours)


@pytest.mark.parametrize("of", TYPES)
def test_every_type_is_read_in_slices_as_in_one_piece(of: str, llama: Path, tmp_path: Path) -> None:
    original = load_file(llama / "model.safetensors")
    with open_files(write(llama, tmp_path / "net.gguf", of)) as files:
        for name, value in original.items():
            whole = files.read(name)
            assert whole.shape == files.entry(name).shape == value.shape
            assert (whole.float() - value).norm() <= 0.2 * value.norm()  # 4 bits have 0.1
            for first, last in ((0, 3), (5, 6), (7, len(value)), (4, 4)):
                assert torch.equal(files.slice(name, first, last), whole[first:last])
            assert torch.equal(
                torch.cat(list(files.pieces(name, 256))), whole.flatten().view(torch.uint8)
            )


@pytest.mark.parametrize("of", TYPES)
def test_it_is_kin_of_what_it_was_made_of(of: str, llama: Path, tmp_path: Path) -> None:
    with Checkpoint(llama) as one, Checkpoint(write(llama, tmp_path / "net.gguf", of)) as two:
        found = kin(two, one)
    assert found.relation in (Relation.COPY, Relation.DERIVED)
    assert found.log_p < -30


def test_folders_fingerprints_and_stored_names(llama: Path, tmp_path: Path) -> None:
    home = tmp_path / "folder"
    home.mkdir()
    file = write(llama, home / "net.gguf")
    with Checkpoint(home) as there:
        assert there.files.stored_name("model.embed_tokens.weight") == "token_embd.weight"
    one, two = fingerprint(llama), fingerprint(file)
    assert one.shape == two.shape
    assert all(torch.equal(one.parts[name], two.parts[name]) for name in one.parts)


def test_sizes_of_types_are_those_of_the_package() -> None:
    for number, (name, block, size) in SIZES.items():
        assert Type[name] == number
        assert gguf.GGML_QUANT_SIZES[Type[name]] == (block, size)


def test_an_unknown_architecture_is_unsupported(llama: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.gguf"
    writer = gguf.GGUFWriter(file, "mamba")
    for name, value in load_file(llama / "model.safetensors").items():
        writer.add_tensor(name.replace("model.", "m."), value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="of no family we know"):
        Checkpoint(file)
    with open_files(file) as files:  # whose tensors can still be compared
        assert "m.embed_tokens.weight" in files


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "positions are stretched"),
        ({"split.count": 3}, "one of several parts"),
        ({"llama.rope.dimension_count": 4}, "only a part turns"),
        ({"llama.attention.value_length": 16}, "heads of two sizes"),
        ({"llama.attention.head_count": 5, "attention.head_count": None}, "rows, of 5 heads"),
        ({"attention.head_count": None}, r"does not say llama\.attention\.head_count"),
        ({"attention.layer_norm_rms_epsilon": None}, "does not say"),
        ({"llama.rope.scaling.factor": 8}, None),  # whose default is linear
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 8}, ""),
        ({"llama.block_count": 7, "block_count": None}, "num_hidden_layers"),
    ],
)
def test_what_it_says_wrongly_is_refused(
    settings: dict[str, object], message: str | None, llama: Path, tmp_path: Path
) -> None:
    file = write(llama, tmp_path / "net.gguf", **settings)
    if message:
        with pytest.raises(CheckpointError, match=message):
            Checkpoint(file)
        return
    with Checkpoint(llama) as one, Checkpoint(file) as two:
        alike = same(one, two, seed=0).answer is Answer.SAME_TENSORS
    assert alike == (message == "")


def test_what_llama_cpp_takes_where_a_file_says_nothing(tmp_path: Path) -> None:
    folder = source("qwen2", tmp_path / "net", num_key_value_heads=4)
    file = write(folder, tmp_path / "net.gguf", **{"attention.head_count_kv": None})
    with Checkpoint(folder) as one, Checkpoint(file) as two:
        assert same(one, two, seed=0).answer is Answer.SAME_TENSORS
    gemma = source("gemma3_text", tmp_path / "gemma")
    file = write(gemma, tmp_path / "gemma.gguf", **{"attention.sliding_window": None})
    with pytest.raises(CheckpointError, match=r"does not say gemma3\.attention\.sliding_window"):
        Checkpoint(file)


@pytest.mark.parametrize("name", ["lm_head", "model.layers.0.self_attn.q_proj"])
def test_names_of_transformers_are_none_of_gguf(name: str) -> None:
    table = FAMILIES["llama"].gguf["llama"]
    with pytest.raises(CheckpointError, match="no name of GGUF"):
        _translated(table, f"{name}.weight", "x.gguf")


def test_a_scale_near_zero_is_not_lost(tmp_path: Path) -> None:
    """One less than it is -1 for all of them."""
    folder = source("gemma", tmp_path / "net")
    file = write(folder, tmp_path / "net.gguf")
    content = bytearray(file.read_bytes())
    with open_files(file) as files:
        entry, start = files.entry("model.norm.weight"), files.shards[0][1].start
        size = entry.end - entry.begin
    small = struct.pack("<f", 1e-9)
    content[start + entry.begin : start + entry.end] = small * (size // 4)
    file.write_bytes(content)
    with open_files(file) as files, pytest.raises(CheckpointError, match="so near 0"):
        files.read("model.norm.weight")


def test_other_bytes_of_the_same_numbers_are_not_the_same_bytes(tmp_path: Path) -> None:
    """A block of zeros is one whatever its scale is."""
    one, two = tmp_path / "a.gguf", tmp_path / "b.gguf"
    content = bytearray(small_llama())
    last = struct.pack("<e", 0.1) + bytes(range(16))  # of the last matrix
    at = content.rindex(last)
    content[at : at + 18] = struct.pack("<e", 0.0) + b"\xaa" * 16
    one.write_bytes(content)
    content[at + 3] = 0xBB
    two.write_bytes(content)
    with Checkpoint(one) as a, Checkpoint(two) as b:
        assert same(a, b, seed=0).answer is Answer.SAME_TENSORS
    with Checkpoint(one) as a, Checkpoint(one) as b:
        assert same(a, b, seed=0).answer is Answer.SAME_BYTES


def test_a_setting_that_nobody_knows_decides_nothing(llama: Path, tmp_path: Path) -> None:
    file = write(llama, tmp_path / "net.gguf", **{"llama.attention.scale": 3})
    with Checkpoint(llama) as one, Checkpoint(file) as two:
        verdict = same(one, two, seed=0)
    assert verdict.answer is Answer.UNDECIDED
    assert "llama.attention.scale" in verdict.reason


def test_numbers_of_a_larger_gemma_are_not_guessed(tmp_path: Path) -> None:
    folder = source("gemma2", tmp_path / "net")
    file = write(folder, tmp_path / "net.gguf", **{"gemma2.block_count": 46, "block_count": None})
    with pytest.raises(UnsupportedError, match="how scores are scaled"):
        Checkpoint(file)


def test_without_the_package(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = write(llama, tmp_path / "plain.gguf", "F16")
    small = write(llama, tmp_path / "small.gguf", "Q4_0")
    monkeypatch.setitem(sys.modules, "gguf", None)
    name = "model.layers.0.mlp.up_proj.weight"
    with open_files(plain) as files:
        assert files.read(name).dtype is torch.float16
    with open_files(small) as files, pytest.raises(CheckpointError, match=r"\[gguf\]"):
        files.read(name)


# ------------------------------------------------------------------------------ from a stranger


NUMBER = text(b"n") + struct.pack("<If", 6, 1e-5)
LONG = 2**63
HOSTILE = {
    "empty": b"",
    "magic": made(magic=b"GGML"),
    "version": made(version=1),
    "big endian": made(version=3 << 24),
    "tensors": made(counts=(LONG, 0)),
    "settings": made(counts=(0, LONG)),
    "missing tensors": made(counts=(1, 0)),
    "long name": made(settings=(struct.pack("<Q", LONG),), counts=(0, 1)),
    "no name": made(settings=(text(b"") + struct.pack("<II", 4, 1),)),
    "control characters": made(settings=(text(b"\x1b[2J") + struct.pack("<II", 4, 1),)),
    "no UTF-8": made(settings=(text(b"\xff\xfe") + struct.pack("<II", 4, 1),)),
    "twice": made(settings=(NUMBER, NUMBER)),
    "no type": made(settings=(text(b"n") + struct.pack("<I", 13),)),
    "list of lists": made(settings=(text(b"n") + struct.pack("<IIQ", 9, 9, 1),)),
    "long list": made(settings=(text(b"n") + struct.pack("<IIQ", 9, 0, LONG),)),
    "long list of texts": made(settings=(text(b"n") + struct.pack("<IIQ", 9, 8, 2**30),)),
    "alignment": made(settings=(text(b"general.alignment") + struct.pack("<II", 4, 24),)),
    "alignment 0": made(settings=(text(b"general.alignment") + struct.pack("<II", 4, 0),)),
    "alignment of words": made(
        settings=(text(b"general.alignment") + struct.pack("<I", 8) + text(b"a"),)
    ),
    "axes": made(tensors=(tensor(shape=(1,) * 9),), data=bytes(4)),
    "no axes": made(tensors=(tensor(shape=()),), data=bytes(4)),
    "axis of 0": made(tensors=(tensor(shape=(0,)),)),
    "large": made(tensors=(tensor(shape=(2**40, 2**30)),)),
    "larger than the file": made(tensors=(tensor(shape=(2**20,)),), data=bytes(64)),
    "type of tensor": made(tensors=(tensor(kind=99),), data=bytes(32)),
    "vector in blocks": made(tensors=(tensor(shape=(32,), kind=8),), data=bytes(34)),
    "no number": made(settings=(setting(b"n", float("nan")),)),
    "half a block": made(tensors=(tensor(shape=(40,), kind=8),), data=bytes(64)),
    "name twice": made(tensors=(tensor(), tensor(at=32)), data=bytes(64)),
    "over another": made(tensors=(tensor(), tensor(b"b")), data=bytes(64)),
    "hole": made(tensors=(tensor(at=64),), data=bytes(96)),
    "not aligned": made(tensors=(tensor(at=8),), data=bytes(96)),
    "more after it": made(tensors=(tensor(),), data=bytes(256)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(name: str) -> None:
    content = HOSTILE[name]
    with pytest.raises(CheckpointError):
        read_gguf_header(io.BytesIO(content), len(content), "x.gguf")


def test_a_sound_header_is_read() -> None:
    words = text(b"w") + struct.pack("<IIQ", 9, 8, 2) + text(b"of") + text(b"the")
    numbers = text(b"l") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
    content = made(
        settings=(NUMBER, words, numbers, text(b"t") + struct.pack("<I", 8) + text("né".encode())),
        tensors=(tensor(b"b", (2, 4), at=32), tensor()),
        data=bytes(64),
    )
    header = read_gguf_header(io.BytesIO(content), len(content), "x.gguf")
    assert header.settings == {"n": 1e-5, "w": NOT_KEPT, "l": [1, -2, 3], "t": "né"}
    assert list(header.tensors) == ["a", "b"]
    assert header.tensors["b"].shape == (4, 2)  # from the last axis to the first on disk
    assert header.start % 32 == 0
    for end in range(len(content) - 64):  # cut anywhere
        with pytest.raises(CheckpointError):
            read_gguf_header(io.BytesIO(content[:end]), end, "x.gguf")


def test_lists_of_numbers_are_kept_up_to_a_limit_in_all() -> None:
    lists = tuple(
        text(b"l%d" % n) + struct.pack("<IIQ4096i", 9, 5, 4096, *range(4096)) for n in range(40)
    )
    content = made(settings=lists)
    header = read_gguf_header(io.BytesIO(content), len(content), "x.gguf")
    assert header.settings["l0"] == list(range(4096))
    assert header.settings["l39"] == NOT_KEPT


def test_a_header_that_is_too_long_is_not_read() -> None:
    content = made(settings=(text(b"n") + struct.pack("<IIQ", 9, 0, 2**20) + bytes(2**20),))
    with pytest.raises(CheckpointError, match="longer than is read"):
        read_gguf_header(io.BytesIO(content), len(content), "x.gguf", limit=2**16)
    assert read_gguf_header(io.BytesIO(content), len(content), "x.gguf").tensors == {}


def test_a_small_file_of_bytes_is_a_network(tmp_path: Path) -> None:
    file = tmp_path / "net.gguf"
    file.write_bytes(small_llama())
    with Checkpoint(file) as checkpoint:
        assert (checkpoint.D, checkpoint.blocks, checkpoint.settings.heads) == (32, 1, 2)
    with Checkpoint(file) as checkpoint, pytest.raises(CheckpointError, match="no copy is written"):
        rewrite(checkpoint, [], tmp_path / "out")
