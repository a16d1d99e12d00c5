"""Networks of known relation: what is said of them, and how often strangers are called kin."""

import json
import math
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.material.families import make
from tests.checkpoints import made
from tests.cli.run import tnfn
from transformer_nfn.checkpoints import Checkpoint, TensorFiles
from transformer_nfn.identity import apply_element, random_net_element
from transformer_nfn.kinship import (
    BlockKin,
    Count,
    Kin,
    NetKin,
    Relation,
    Stream,
    kin,
    kin_by_table,
)
from transformer_nfn.kinship.descent.answer import total_log_p
from transformer_nfn.kinship.descent.chance import combined, log_fixed_points

SIZES = {
    "n_embd": 32, "n_inner": 128, "n_layer": 3, "n_head": 4, "vocab_size": 300, "n_positions": 64,
}  # fmt: skip
LLAMA = {
    "hidden_size": 32, "intermediate_size": 96, "num_attention_heads": 8,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 300,
}  # fmt: skip


def net(home: Path, seed: int = 0, **changes: Any) -> Path:
    return made.save(made.model("gpt2", seed, **{**SIZES, **changes}), home)


def asked(one: Path, two: Path) -> Kin:
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        return kin(ours, theirs)


def changed(folder: Path, out: Path, change: Callable[[str, Tensor], Tensor]) -> Path:
    out.mkdir()
    file = folder / "model.safetensors"
    tensors = {name: change(name, value).contiguous() for name, value in load_file(file).items()}
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text((folder / "config.json").read_text())
    return out


def source(found: Kin, relation: Relation) -> int | None:
    """Which came first."""
    assert found.relation is relation
    return None if found.direction is None else found.direction.source


def noisy(size: float, seed: int = 1) -> Callable[[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def change(name: str, value: Tensor) -> Tensor:
        return value + size * value.std().nan_to_num(0.0) * torch.randn(
            value.shape, generator=generator
        )

    return change


@pytest.mark.parametrize("size", [0.05, 0.5, 1.0])
def test_a_fine_tune_is_derived(size: float, tmp_path: Path) -> None:
    base = net(tmp_path / "a")
    found = asked(changed(base, tmp_path / "b", noisy(size)), base)
    assert source(found, Relation.DERIVED) is None  # nothing was lost one way only
    assert found.log10_p < -400
    [network] = found.networks
    assert [block.other for block in network.blocks] == [0, 1, 2]
    assert network.stream is not None
    assert network.stream.count.kept == 32
    assert network.stream.doubt is not None  # positions are alike too, which a formula would make


def test_strangers(tmp_path: Path) -> None:
    found = asked(net(tmp_path / "a", 0), net(tmp_path / "b", 1))
    assert found.relation is Relation.UNRELATED
    assert found.log10_p > -3


def test_p_is_valid_among_strangers(tmp_path: Path) -> None:
    """Of 20 networks all pairs: at most as many below each level as the level says.

    Each pair once, every other one the other way round: both ways say almost the same.
    """
    small = {**SIZES, "n_layer": 2, "n_embd": 16, "n_inner": 32, "vocab_size": 60}
    folders = [net(tmp_path / str(seed), seed, **small) for seed in range(20)]
    opened = [Checkpoint(folder) for folder in folders]
    pairs = list(combinations(opened, 2))
    pairs[::2] = [(b, a) for a, b in pairs[::2]]
    logs = torch.tensor([kin(a, b).log10_p for a, b in pairs])
    for one in opened:
        one.close()
    for level in (0.3, 0.1, 0.01):
        share = (logs <= math.log10(level)).double().mean().item()
        assert share <= level + 2 * math.sqrt(level / len(logs)), level
    assert (logs < 0).double().mean() > 0.02  # it is no test that never says anything


DIGITS = ["float16", "bfloat16", "int8 of the whole", "int8 of each row", "int8 of each column"]


@pytest.mark.parametrize("kind", DIGITS)
def test_a_copy_with_fewer_digits(kind: str, tmp_path: Path) -> None:
    base = made.save(made.model("gpt2", n_embd=384, n_inner=512, vocab_size=400), tmp_path / "a")

    def stored(name: str, value: Tensor) -> Tensor:
        if not kind.startswith("int8"):
            return value.to(getattr(torch, kind))
        if value.dim() < 2 or min(value.shape) < 384:
            return value
        over = {"whole": (0, 1), "row": (1,), "column": (0,)}[kind.split()[-1]]
        step = value.abs().amax(dim=over, keepdim=True) / 127
        return (value / step).round() * step

    other = changed(base, tmp_path / "b", stored)
    assert source(asked(other, base), Relation.COPY) == 1
    assert source(asked(base, other), Relation.COPY) == 0
    assert source(asked(base, base), Relation.COPY) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_light_fine_tune_is_no_copy(
    dtype: torch.dtype, stored: torch.dtype, tmp_path: Path
) -> None:
    base = net(tmp_path / "a")
    noise = noisy(0.004)
    tuned = changed(base, tmp_path / "b", lambda name, value: noise(name, value).to(dtype))
    base = changed(base, tmp_path / "c", lambda name, value: value.to(stored))
    assert asked(tuned, base).relation is Relation.DERIVED


@pytest.mark.parametrize("part", ["ln_f.weight", "wpe.weight", "h.1.ln_2.bias"])
def test_a_copy_is_a_copy_of_all(part: str, tmp_path: Path) -> None:
    base = net(tmp_path / "a")
    noise = noisy(1.0)
    other = changed(base, tmp_path / "b", lambda n, v: noise(n, v) if n.endswith(part) else v)
    found = asked(other, base)
    assert found.relation is Relation.DERIVED
    assert part in found.reason


def cut(folder: Path, out: Path, kept: list[int]) -> Path:
    """Some blocks of a GPT-2, renumbered; one may stand there twice."""
    out.mkdir()
    tensors = {}
    for name, value in load_file(folder / "model.safetensors").items():
        head, found, rest = name.partition(".h.")
        number, _, end = rest.partition(".")
        if not found:
            tensors[name] = value
        for place, old in enumerate(kept):
            if number == str(old):
                tensors[f"{head}.h.{place}.{end}"] = value.clone()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "n_layer": len(kept)}))
    return out


def test_blocks_that_were_left_out_are_seen_from_both_sides(tmp_path: Path) -> None:
    base = net(tmp_path / "a", n_layer=6)
    noise = changed(base, tmp_path / "n", noisy(0.2))
    short = cut(noise, tmp_path / "b", [0, 2, 5])
    found = asked(short, base)
    assert source(found, Relation.DERIVED) == 1
    assert str(found.direction) == (
        "likely from the second to the first: the first has 3 of the 6 blocks"
    )
    assert [block.other for block in found.networks[0].blocks] == [0, 2, 5]
    back = asked(base, short)
    assert source(back, Relation.DERIVED) == 0
    assert [block.is_kin for block in back.networks[0].blocks] == [
        number in (0, 2, 5) for number in range(6)
    ]


def test_pruned_neurons_keep_their_order(tmp_path: Path) -> None:
    base = net(tmp_path / "a")
    kept = torch.randperm(128, generator=torch.Generator().manual_seed(3))[:90].sort().values

    def pruned(name: str, value: Tensor) -> Tensor:
        if ".mlp.c_fc" in name:
            return value[..., kept]
        return value[kept] if name.endswith("mlp.c_proj.weight") else value

    other = changed(base, tmp_path / "b", pruned)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "n_inner": 90}))
    assert source(asked(base, other), Relation.DERIVED) == 0
    found = asked(other, base)
    assert source(found, Relation.DERIVED) == 1
    assert found.direction is not None
    assert found.direction.because == "the first has 90 of the 128 hidden neurons of the MLP"
    neurons = [one for one in found.networks[0].blocks[0].counts if one.label == "a"]
    assert {(one.kept, one.ordered) for one in neurons} == {(90, True)}


def test_pruned_heads_and_neurons_are_derived(tmp_path: Path) -> None:
    """No tensor of a block has the shape that it had."""
    base = made.save(made.model("llama", **LLAMA), tmp_path / "a")

    def pruned(name: str, value: Tensor) -> Tensor:
        if name.endswith(("gate_proj.weight", "up_proj.weight")):
            return value[:70]
        if name.endswith("down_proj.weight"):
            return value[:, :70]
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
            return value[: len(value) * 3 // 4]
        return value[:, : 32 * 3 // 4] if name.endswith("o_proj.weight") else value

    other = changed(base, tmp_path / "b", pruned)
    config = json.loads((other / "config.json").read_text())
    sizes = {"intermediate_size": 70, "num_attention_heads": 6, "num_key_value_heads": 3}
    (other / "config.json").write_text(json.dumps({**config, **sizes, "head_dim": 4}))
    assert asked(other, base).relation is Relation.DERIVED


def test_more_words_and_another_head_are_no_matter(tmp_path: Path) -> None:
    base = net(tmp_path / "a")
    more = torch.randn(17, 32)

    def extended(name: str, value: Tensor) -> Tensor:
        return torch.cat([value, more]) if name.endswith("wte.weight") else value

    other = changed(base, tmp_path / "b", extended)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 317}))
    assert source(asked(base, other), Relation.DERIVED) == 0
    found = asked(other, base)
    assert source(found, Relation.DERIVED) == 1
    assert found.networks[0].stream is not None
    assert found.networks[0].stream.count.kept == 32


def test_a_stack_of_blocks_is_younger_than_what_it_was_made_of(tmp_path: Path) -> None:
    base = net(tmp_path / "a")
    stacked = cut(base, tmp_path / "b", [0, 1, 1, 2, 2])
    assert source(asked(stacked, base), Relation.DERIVED) == 1
    assert source(asked(base, stacked), Relation.DERIVED) == 0


def test_signs_that_contradict_each_other_say_nothing(tmp_path: Path) -> None:
    """Fewer blocks and more words: cut and then extended, or made longer and then cut."""
    base = net(tmp_path / "a", n_layer=4)
    short = cut(base, tmp_path / "b", [0, 3])
    fewer = changed(
        base, tmp_path / "c", lambda name, value: value[:250] if "wte" in name else value
    )
    config = json.loads((fewer / "config.json").read_text())
    (fewer / "config.json").write_text(json.dumps({**config, "vocab_size": 250}))
    assert source(asked(short, base), Relation.DERIVED) == 1
    assert source(asked(fewer, base), Relation.DERIVED) == 0
    both = cut(fewer, tmp_path / "d", [0, 3])
    assert source(asked(both, base), Relation.DERIVED) is None


def test_shared_words_alone_are_parts(tmp_path: Path) -> None:
    base, other = net(tmp_path / "a"), load_file(net(tmp_path / "b", 1) / "model.safetensors")

    def words(name: str, value: Tensor) -> Tensor:
        return value if "wte" in name else other[name]

    found = asked(changed(base, tmp_path / "c", words), base)
    assert found.relation is Relation.PARTS
    assert not any(block.is_kin for block in found.networks[0].blocks)


def test_one_block_of_another_is_parts(tmp_path: Path) -> None:
    base, other = net(tmp_path / "a"), load_file(net(tmp_path / "b", 1) / "model.safetensors")

    def first(name: str, value: Tensor) -> Tensor:
        return value if ".h.0." in name else other[name]

    found = asked(changed(base, tmp_path / "c", first), base)
    assert found.relation is Relation.PARTS
    assert [block.is_kin for block in found.networks[0].blocks] == [True, False, False]


def test_little_that_is_left_is_a_start(tmp_path: Path) -> None:
    """Two that were trained far from one start: noise four times as large as what is left."""
    base = net(tmp_path / "a", n_inner=512)
    found = asked(changed(base, tmp_path / "b", noisy(4.0)), base)
    assert found.relation is Relation.START
    assert found.log10_p < -6


@pytest.mark.parametrize("part", ["neurons", "heads"])
def test_what_was_moved_is_not_seen_and_the_rest_is(part: str, tmp_path: Path) -> None:
    base = made.save(made.model("llama", **LLAMA), tmp_path / "a")
    with Checkpoint(base) as ours:
        element = random_net_element(ours, torch.Generator().manual_seed(0), parts=[part])
        other = apply_element(ours, element, tmp_path / "b")
    found = asked(other, base)
    assert found.relation is not Relation.UNRELATED
    label = {"neurons": "a", "heads": "g"}[part]
    moved = [one for one in found.networks[0].blocks[0].counts if one.label == label]
    assert moved
    assert all(one.log_p > math.log(1e-4) for one in moved)


@pytest.mark.parametrize("family", ["mixtral", "t5", "gemma3_text", "albert", "whisper", "vit"])
def test_every_family_is_read(family: str, tmp_path: Path) -> None:
    base = make(family, tmp_path / "a", dtype=torch.float32)
    found = asked(changed(base, tmp_path / "b", noisy(0.1)), base)
    assert found.relation is not Relation.UNRELATED
    assert found.log10_p < -6
    assert asked(base, base).relation is Relation.COPY


#: As `transformers` initialises them: positions by a formula, tied tables, everything.
OWN = {
    "whisper": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 90,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4, "pad_token_id": 0,
                "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_mel_bins": 8,
                "max_source_positions": 40, "max_target_positions": 40, "bos_token_id": 1,
                "eos_token_id": 2, "decoder_start_token_id": 1},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4,
           "vocab_size": 90, "decoder_start_token_id": 0},
    "mixtral": {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
                "vocab_size": 90},
    "distilbert": {"dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "vocab_size": 60,
                   "max_position_embeddings": 100, "sinusoidal_pos_embds": True},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 90},
}  # fmt: skip
CLASSES = {
    "whisper": "WhisperForConditionalGeneration", "t5": "T5ForConditionalGeneration",
    "mixtral": "MixtralForCausalLM", "distilbert": "DistilBertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
}  # fmt: skip


@pytest.mark.parametrize("family", OWN)
def test_strangers_of_every_kind(family: str, tmp_path: Path) -> None:
    cls = getattr(transformers, CLASSES[family])
    folders = []
    for seed in range(4):
        torch.manual_seed(seed)
        folders.append(made.save(cls(cls.config_class(**OWN[family])), tmp_path / str(seed)))
    for one, two in combinations(folders, 2):
        found = asked(one, two)
        assert found.relation is Relation.UNRELATED, found.reason
        assert found.log10_p > -3


def zeros(*counts: int, name: str = "network", doubt: str | None = None) -> NetKin:
    """What was seen of a network of blocks with so many kept units, and four coordinates."""
    blocks = tuple(
        BlockKin(i, i, (), log_fixed_points(kept), (), (), True, False)
        for i, kept in enumerate(counts)
    )
    count = Count("x", "words", 4, 64, False, 0.0, log_fixed_points(4))
    stream = Stream(count, None, False, (9, 9), doubt)
    return NetKin(name, blocks, len(blocks), stream, None, ())


def test_what_is_counted_once() -> None:
    encoder, decoder = zeros(5, 1, name="encoder"), zeros(2, name="decoder")
    stream = log_fixed_points(4) + math.log(2)  # the smaller of two that may be one
    logs = [log_fixed_points(5), log_fixed_points(1), log_fixed_points(2), stream]
    assert total_log_p((encoder, decoder), ()) == pytest.approx(combined(logs))
    twins = (("encoder", 0), ("decoder", 0))
    logs = [log_fixed_points(5) + math.log(2), log_fixed_points(1), stream]
    assert total_log_p((encoder, decoder), (twins,)) == pytest.approx(combined(logs))
    doubted = zeros(5, 1, doubt="a formula")
    logs = [log_fixed_points(5), log_fixed_points(1)]
    assert total_log_p((doubted,), ()) == pytest.approx(combined(logs))


@pytest.mark.parametrize("neurons", [128, 6])
def test_blocks_that_were_grown_from_another_count_once(neurons: int, tmp_path: Path) -> None:
    """Their orders are not independent, so their p-values may not be combined."""
    base = net(tmp_path / "a", n_inner=neurons)
    tensors = load_file(base / "model.safetensors")

    def grown(name: str, value: Tensor) -> Tensor:
        return tensors[name.replace(".h.2.", ".h.0.")].clone()

    other = changed(base, tmp_path / "b", grown)
    found = asked(other, net(tmp_path / "c", 1, n_inner=neurons))
    assert found.twins == ((("network", 0), ("network", 2)),)
    assert asked(base, other).twins == ()


def test_experts_that_were_made_of_one_do_not_make_strangers_kin(tmp_path: Path) -> None:
    """Eight copies of one MLP with some noise: what is kept in one is kept in all."""
    logs = []
    for seed in range(12):
        folders = []
        for own in (2 * seed, 2 * seed + 1):
            folder = make("mixtral", tmp_path / f"{own}", dtype=torch.float32, seed=own)
            folders.append(changed(folder, tmp_path / f"{own}-up", upcycled(noisy(0.1, own))))
        logs.append(asked(*folders).log10_p)
    assert min(logs) > -3


def upcycled(noise: Callable[[str, Tensor], Tensor]) -> Callable[[str, Tensor], Tensor]:
    def change(name: str, value: Tensor) -> Tensor:
        return noise(name, value[:1].expand_as(value)) if ".experts." in name else value

    return change


def test_rotary_coordinates_are_never_counted(tmp_path: Path) -> None:
    base = made.save(made.model("llama", **LLAMA), tmp_path / "a")
    counts = asked(base, base).networks[0].blocks[0].counts
    assert {one.label for one in counts} == {"g", "m", "v", "a"}


def test_streams_of_other_sizes(tmp_path: Path) -> None:
    found = asked(net(tmp_path / "a"), net(tmp_path / "b", n_embd=40))
    assert found.relation is Relation.NOT_COMPARABLE
    assert "32 and 40" in found.reason


@pytest.mark.parametrize("rows", [64, 40])
@pytest.mark.parametrize("trained", [0.0, 0.5])
def test_positions_by_a_formula_leave_the_stream_out(
    rows: int, trained: float, tmp_path: Path
) -> None:
    """Also if they are of another length, and were trained from there."""
    table = torch.sin(torch.arange(64)[:, None] * torch.logspace(0, -3, 32))
    folders = []
    for seed, length in ((0, 64), (1, rows)):
        folder = net(tmp_path / f"{seed}", seed, n_positions=length)
        noise = trained * torch.randn(length, 32, generator=torch.Generator().manual_seed(seed))
        fixed = table[:length] + noise
        folders.append(
            changed(folder, tmp_path / f"{seed}-f", lambda n, v, t=fixed: t if "wpe" in n else v)
        )
    [network] = asked(*folders).networks
    assert network.stream is not None
    assert network.stream.doubt is not None
    assert "wpe" in network.stream.doubt


def test_words_alone_by_a_table_are_parts(tmp_path: Path) -> None:
    base = net(tmp_path / "a")
    table = tmp_path / "units.toml"
    table.write_text('[network]\n"transformer.wte.weight" = "words x"')
    with TensorFiles(base) as one, TensorFiles(base) as two:
        assert kin_by_table(one, two, table).relation is Relation.PARTS


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = net(tmp_path / "a")
    other = changed(base, tmp_path / "b", noisy(0.1))
    ended = tnfn(capsys, "kin", str(other), str(base), "--plot", str(tmp_path / "p.png"))
    assert ended.code == 0
    assert ended.out.startswith("derived\n  why  network: 3 of 3 blocks are kin")
    assert "2     128 of 128 hidden neurons of the MLP keep their place  10^-100" in ended.out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    given = json.loads(tnfn(capsys, "kin", str(other), str(base), "--json").out)
    assert given["answer"] == "derived"
    assert given["log10_p"] < -400
    assert given["networks"][0]["blocks"][1]["second"] == 1
    assert tnfn(capsys, "kin", str(net(tmp_path / "c", 5)), str(base)).code == 3
    assert tnfn(capsys, "kin", str(net(tmp_path / "d", n_embd=40)), str(base)).code == 4


def test_a_command_by_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = net(tmp_path / "a")
    other = changed(base, tmp_path / "b", noisy(0.1))
    for folder in (base, other):  # nobody knows what these are
        (folder / "config.json").unlink()
    table = tmp_path / "units.toml"
    table.write_text(TABLE)
    given = tnfn(capsys, "kin", str(other), str(base), "--units", str(table), "--json")
    found = json.loads(given.out)
    assert found["answer"] == "derived"
    [network] = found["networks"]
    assert network["stream"]["kept"] == 32
    counts = {(one["of"], one["tensor"]): one for one in network["blocks"][1]["counts"]}
    assert counts["neurons", "transformer.h.{}.mlp.c_fc.weight"]["kept"] == 128
    assert counts["attention heads", "transformer.h.{}.attn.c_proj.weight"]["units"] == 4
    assert counts["value", "transformer.h.{}.attn.c_proj.weight"]["kept"] == 32
    assert ("_kind", "transformer.h.{}.attn.c_attn.weight") not in counts


TABLE = """
[network]
"transformer.h.{}.mlp.c_fc.weight" = "x neurons"
"transformer.h.{}.attn.c_attn.weight" = "x (_kind:3 h:4 value)"
"transformer.h.{}.attn.c_proj.weight" = "(h:4 value) x"
"transformer.wte.weight" = "words x"
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[network", "units.toml"),
        ("a = 1", "names of tensors"),
        ("", "no network"),
        ('[n]\n"h.{}.w" = "x neurons"', "has no h.0.w"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x (a"', "not of the form"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x )a"', "not of the form"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x ((a) b)"', "not of the form"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x x"', "not of the form"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x -"', "not of the form"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x y z"', "not 3 axes"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x (a b)"', "does not fit"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x (a:0 b)"', "does not fit"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x (a:7 b)"', "does not fit"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x a:127"', "does not fit"),
        ('[n]\n"transformer.wte.weight" = "words y"', "no table"),
        ('[n]\n"nothing" = "words x"', "no table"),
        ('[n]\n"transformer.h.{}.mlp.c_fc.weight" = "x neurons:1234567890123"', "not of the form"),
        ('[n]\n"transformer.wte.weight" = "w x"\n[m]\n"transformer.wte.weight" = "w x"', "twice"),
        (f"a = {'[' * 5000}{']' * 5000}", "units.toml"),
    ],
)
def test_tables_that_do_not_fit(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = net(tmp_path / "a")
    table = tmp_path / "units.toml"
    table.write_text(text)
    ended = tnfn(capsys, "kin", str(base), str(base), "--units", str(table))
    assert ended.code == 1
    assert said in ended.err
    assert len(ended.err.splitlines()) == 1


def test_quantised_tensors_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"h.0.w": torch.ones(16, 16, dtype=torch.int8)}, tmp_path / "a.safetensors")
    table = tmp_path / "units.toml"
    table.write_text('[n]\n"h.{}.w" = "x neurons"')
    ended = tnfn(capsys, "kin", *[str(tmp_path / "a.safetensors")] * 2, "--units", str(table))
    assert ended.code == 1
    assert "quantised" in ended.err
    save_file({"h.0.w": torch.ones(16, 0)}, tmp_path / "a.safetensors")
    ended = tnfn(capsys, "kin", *[str(tmp_path / "a.safetensors")] * 2, "--units", str(table))
    assert ended.code == 1
    assert "empty" in ended.err


def test_words_are_compared_whatever_stands_before_their_names(tmp_path: Path) -> None:
    base = made.save(made.model("bert"), tmp_path / "a")
    bare = made.save(made.load(base).bert, tmp_path / "b")
    [network] = asked(base, bare).networks
    assert network.stream is not None
    assert network.stream.count.share == 1


def test_experts_of_their_own_are_no_copy(tmp_path: Path) -> None:
    """All tensors of the same name are the same, but each has some that the other has not."""
    dense = make("mistral", tmp_path / "a", **LLAMA)
    sparse = make("mixtral", tmp_path / "b", seed=1, **LLAMA)
    known = load_file(dense / "model.safetensors")
    tensors = load_file(sparse / "model.safetensors")
    tensors |= {name: known[name] for name in tensors if name in known}
    save_file(tensors, sparse / "model.safetensors", {"format": "pt"})
    for pair in ((sparse, dense), (dense, sparse)):
        assert asked(*pair).relation is not Relation.COPY


def test_a_copy_of_very_few_units_is_a_copy(tmp_path: Path) -> None:
    few = {"n_embd": 8, "n_inner": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 4}
    base = net(tmp_path / "a", **few)
    found = asked(base, base)
    assert found.relation is Relation.COPY
    assert "too few units" in found.reason
    assert asked(base, net(tmp_path / "b", 1, **few)).relation is Relation.UNRELATED
