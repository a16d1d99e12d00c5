"""Files that are one function in float64, and not for whoever loads them in their own dtype."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.material.families import ARCHITECTURES, as_one, inputs, load, make, outputs
from benchmarks.same.families import moved, relative
from tests.identity.test_loaders import configured
from tests.identity.test_strangers import with_tensors
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import Answer, same
from transformer_nfn.identity.comparing import judge
from transformer_nfn.identity.comparing.dtypes import loader_dtypes
from transformer_nfn.identity.running.arithmetic import run_in
from transformer_nfn.identity.running.function import run_batches
from transformer_nfn.identity.running.inputs import draw_inputs

Changes = dict[str, Tensor]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_weights_as_stored_have_the_function_of_canonical_ones(name: str, tmp_path: Path) -> None:
    folder = moved(make(name, tmp_path / "a"), tmp_path / "b", 1)
    with Checkpoint(folder) as checkpoint:
        batches = [draw_inputs(checkpoint, checkpoint, seed=0, count=2)]
        (wanted,) = run_batches(checkpoint, batches)
        (found,) = run_batches(checkpoint, batches, as_stored=True)
    assert found.keys() == wanted.keys()
    for head, out in found.items():
        assert relative(out, wanted[head]) < 1e-10


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gemma3_text", "vit", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_off_by_about_as_much_as_a_loader(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = make(name, tmp_path / "a", dtype=dtype)
    given = inputs(folder)
    wanted = outputs(load(folder), given)
    theirs = relative(outputs(load(folder, dtype), given).double(), wanted)
    with Checkpoint(folder) as checkpoint:
        assert loader_dtypes(checkpoint) == {dtype: True}
        (found,) = run_in(dtype, checkpoint, [as_one(given)])
    fitting = [out for out in found.values() if out.numel() == wanted.numel()]
    assert all(type(out) is Tensor and out.dtype is torch.float64 for out in fitting)
    ours = min(relative(out.reshape(wanted.shape), wanted) for out in fitting)
    assert 1 / 3 < ours / theirs < 3


def llama(folder: Path, dtype: torch.dtype) -> Path:
    """Of one block: what overflows or is lost does so in the first."""
    return make("llama", folder, dtype=dtype, tie_word_embeddings=False, num_hidden_layers=1)


def norm_that_overflows(tensors: Changes) -> Changes:
    """Its scale times 2¹²⁷, what reads it divided by as much."""
    power = 2.0**127
    readers = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    return {
        name: value * power if name.endswith("input_layernorm.weight") else value / power
        for name, value in tensors.items()
        if name.endswith(("input_layernorm.weight", *readers))
    }


def last_norm_that_overflows(tensors: Changes) -> Changes:
    """What the outputs read, far beyond float16."""
    sizes = {"model.norm.weight": 2.0**15, "lm_head.weight": 2.0**-15}
    return {name: tensors[name] * size for name, size in sizes.items()}


def neurons_that_overflow(tensors: Changes) -> Changes:
    """What a gated neuron's linear branch makes."""
    sizes = {"up_proj.weight": 2.0**126, "down_proj.weight": 2.0**-126}
    return {
        name: value * size
        for name, value in tensors.items()
        for end, size in sizes.items()
        if name.endswith(end)
    }


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        (torch.float32, norm_that_overflows),
        (torch.bfloat16, norm_that_overflows),
        (torch.float16, last_norm_that_overflows),
        (torch.float32, neurons_that_overflow),
    ],
)
def test_numbers_on_the_way_that_the_dtype_cannot_hold_are_not_decided(
    dtype: torch.dtype,
    change: Callable[[Changes], Changes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = llama(tmp_path / "a", dtype)
    changed = change(load_file(folder / "model.safetensors"))
    assert all(value.isfinite().all() for value in changed.values())
    other = with_tensors(folder, tmp_path / "b", **changed)
    given = inputs(folder)
    assert outputs(load(folder, dtype), given).isfinite().all()
    assert not outputs(load(other, dtype), given).isfinite().all()
    undecided(folder, other, "beyond all numbers of its dtype, in one file only")
    monkeypatch.setattr(judge, "losses", lambda ours, theirs: iter(()))
    undecided(folder, other, "numbers on the way are beyond all that the stored dtype can hold")


def test_a_file_of_two_dtypes_may_be_run_in_either(tmp_path: Path) -> None:
    folder = llama(tmp_path / "a", torch.float16)
    tensors = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    folder = with_tensors(folder, tmp_path / "mixed", **{name: tensors[name].float()})
    with Checkpoint(folder) as checkpoint:
        assert loader_dtypes(checkpoint) == {torch.float32: True, torch.float16: True}
        honest = moved(folder, tmp_path / "b", 1)
        with Checkpoint(honest) as other:
            assert same(checkpoint, other, seed=0).answer is Answer.EQUIVALENT
        large = last_norm_that_overflows(load_file(folder / "model.safetensors"))
        with Checkpoint(with_tensors(folder, tmp_path / "c", **large)) as other:
            verdict = same(checkpoint, other, seed=0, search=False)
    assert verdict.answer is Answer.UNDECIDED
    assert "beyond all" in verdict.reason


# -------------------------------------------------- what only some inputs show, or none that is run


def gpt2(tmp_path: Path, dtype: torch.dtype = torch.float32, **sizes: int) -> tuple[Path, Changes]:
    folder = make("gpt2", tmp_path / "made", dtype=dtype, **{"n_layer": 1, **sizes})
    return folder, load_file(folder / "model.safetensors")


def undecided(one: Path, two: Path, why: str) -> None:
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        for pair in ((ours, theirs), (theirs, ours)):
            verdict = same(*pair, seed=0, search=False)
            assert verdict.answer is Answer.UNDECIDED
            assert why in verdict.reason


def is_finite(folder: Path, dtype: torch.dtype, length: int = 40) -> bool:
    given = inputs(folder, length=length)
    return bool(outputs(load(folder, dtype), given).isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_that_a_key_bias_takes_the_digits_of(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key itself loses nothing, since one of its coordinates is all but 0."""
    folder, tensors = gpt2(tmp_path, dtype)
    name, D = "transformer.h.0.attn.c_attn", 24
    for end in ("weight", "bias"):
        tensors[f"{name}.{end}"][..., D : D + 24 : 4] *= 2.0**-34
    one = with_tensors(folder, tmp_path / "a", **{n: tensors[n] for n in tensors if name in n})
    bias = tensors[f"{name}.bias"].clone()
    bias[D : D + 24 : 4] = 2.0**24
    two = with_tensors(one, tmp_path / "b", **{f"{name}.bias": bias})
    given = inputs(folder)
    before, after = (outputs(load(path, dtype), given).double() for path in (one, two))
    assert relative(after, before) > 0.1
    undecided(one, two, "c_attn.weight: its bias is")
    monkeypatch.setattr(judge, "losses", lambda ours, theirs: iter(()))
    undecided(one, two, "a run in the stored dtype itself is off by")


def test_parts_of_a_sum_that_overflow(tmp_path: Path) -> None:
    """A neuron that writes nothing reads the mean of a token, which is 0, times all there is."""
    folder, tensors = gpt2(tmp_path)
    stem = "transformer.h.0."
    plain = {
        f"{stem}ln_2.weight": torch.ones(24),
        f"{stem}ln_2.bias": torch.zeros(24),
        f"{stem}mlp.c_fc.weight": tensors[f"{stem}mlp.c_fc.weight"].clone(),
        f"{stem}mlp.c_proj.weight": tensors[f"{stem}mlp.c_proj.weight"].clone(),
    }
    plain[f"{stem}mlp.c_fc.weight"][:, 3] = 0
    plain[f"{stem}mlp.c_proj.weight"][3] = 0
    one = with_tensors(folder, tmp_path / "a", **plain)
    plain[f"{stem}mlp.c_fc.weight"][:, 3] = torch.finfo(torch.float32).max
    two = with_tensors(one, tmp_path / "b", **plain)
    assert is_finite(one, torch.float32)
    assert not is_finite(two, torch.float32)
    undecided(one, two, "what is made of it may be beyond all numbers of its dtype")


def test_a_norm_that_overflows_at_positions_that_are_not_run(tmp_path: Path) -> None:
    folder, tensors = gpt2(tmp_path)
    places, norm = tensors["transformer.wpe.weight"].clone(), "transformer.h.0.ln_1.weight"
    assert len(places) > 64
    places[:, 7], places[64:, 7] = 0, 50
    words = tensors["transformer.wte.weight"].clone()
    words[:, 7] = 0
    embeddings = {"transformer.wpe.weight": places, "transformer.wte.weight": words}
    if "lm_head.weight" in tensors:
        embeddings["lm_head.weight"] = tensors["lm_head.weight"]
    one = with_tensors(folder, tmp_path / "a", **embeddings)
    scale, reader = tensors[norm].clone(), tensors["transformer.h.0.attn.c_attn.weight"].clone()
    scale[7], reader[7] = 2.0**126, reader[7] * scale[7] / 2.0**126
    shift = tensors["transformer.h.0.ln_1.bias"].clone()
    shift[7] = 0
    one = with_tensors(one, tmp_path / "a2", **{"transformer.h.0.ln_1.bias": shift})
    changes = {norm: scale, "transformer.h.0.attn.c_attn.weight": reader}
    two = with_tensors(one, tmp_path / "b", **changes)
    assert is_finite(two, torch.float32, 64)
    assert is_finite(one, torch.float32, 65)
    assert not is_finite(two, torch.float32, 65)
    undecided(one, two, "transformer.h.0.ln_1.weight: what is made of it may be beyond")


def test_a_dtype_that_the_config_asks_for_counts(tmp_path: Path) -> None:
    folder = llama(tmp_path / "a", torch.float32)
    configured(folder, dtype="float16")
    large = last_norm_that_overflows(load_file(folder / "model.safetensors"))
    other = with_tensors(folder, tmp_path / "b", **large)
    assert is_finite(folder, torch.float16)
    assert not is_finite(other, torch.float16)
    undecided(folder, other, "beyond all numbers of its dtype")
    with Checkpoint(folder) as ours, Checkpoint(moved(folder, tmp_path / "c", 1)) as theirs:
        assert same(ours, theirs, seed=0).answer is Answer.EQUIVALENT


def test_several_dtypes_and_no_word_of_which(tmp_path: Path) -> None:
    """A loader takes that of the first tensor it meets."""
    folder = configured(make("gpt2", tmp_path / "made", dtype=torch.float32), dtype=None)
    tensors = load_file(folder / "model.safetensors")
    first, last = min(tensors), max(tensors)
    one, two = (
        with_tensors(folder, tmp_path / out, **{name: torch.zeros_like(tensors[name]).half()})
        for out, name in (("a", last), ("b", first))
    )
    with_zeros = {first: torch.zeros_like(tensors[first])}
    one = with_tensors(one, tmp_path / "a2", **with_zeros)
    two = with_tensors(two, tmp_path / "b2", **{last: torch.zeros_like(tensors[last])})
    undecided(one, two, "'dtype'")


@pytest.mark.parametrize("name", ["gemma", "cohere"])
def test_steps_that_are_float32_in_every_loader(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a", dtype=torch.float64, num_hidden_layers=1)
    tensors = load_file(folder / "model.safetensors")
    norm, power = "model.layers.0.input_layernorm.weight", 2.0**140
    readers = [n for n in tensors if "layers.0." in n and n.endswith(("q_proj.weight",
               "k_proj.weight", "v_proj.weight"))]  # fmt: skip
    if name == "cohere":  # attention and MLP read one norm
        readers += [n for n in tensors if "layers.0." in n and n.endswith(("gate_proj.weight",
                    "up_proj.weight"))]  # fmt: skip
    offset = 1.0 if name == "gemma" else 0.0
    changed = {n: tensors[n] / power for n in readers}
    changed[norm] = (tensors[norm] + offset) * power - offset
    other = with_tensors(folder, tmp_path / "b", **changed)
    assert not is_finite(other, torch.float64)
    undecided(folder, other, "input_layernorm.weight: what is made of it may be beyond")


def test_a_mean_that_drowns_rows_that_are_rare(tmp_path: Path) -> None:
    folder, tensors = gpt2(tmp_path, torch.bfloat16)
    places = tensors["transformer.wpe.weight"].clone()
    places[64:] = (places[64:].double() + 64).bfloat16()
    other = with_tensors(folder, tmp_path / "b", **{"transformer.wpe.weight": places})
    undecided(folder, other, "transformer.wpe.weight: its mean is")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_both_files_lose_decides_nothing(dtype: torch.dtype, tmp_path: Path) -> None:
    folder, tensors = gpt2(tmp_path, dtype, n_layer=2)
    large = {}
    for number in range(2):
        name = f"transformer.h.{number}.attn.c_attn.bias"
        large[name] = tensors[name].clone()
        large[name][24:48] = 64 * large[name][24:48].sign()
    one = with_tensors(folder, tmp_path / "a", **large)
    two = moved(one, tmp_path / "b", 1, parts=["heads", "neurons"])
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        verdict = same(ours, theirs, seed=0)
    assert verdict.answer is Answer.EQUIVALENT
    assert verdict.agreement is not None
    assert min(verdict.agreement.lost) > 6


def test_norms_of_queries_and_keys_that_overflow(tmp_path: Path) -> None:
    folder = make("qwen3", tmp_path / "a", dtype=torch.float32, head_dim=16, num_hidden_layers=1)
    tensors = load_file(folder / "model.safetensors")
    sizes = {"q_norm.weight": 2.0**126, "k_norm.weight": 2.0**-126}
    changed = {n: t * sizes[end] for n, t in tensors.items() for end in sizes if n.endswith(end)}
    other = with_tensors(folder, tmp_path / "b", **changed)
    assert not is_finite(other, torch.float32)
    undecided(folder, other, "q_norm.weight")


def test_a_mean_that_drowns_one_row_beside_a_large_one(tmp_path: Path) -> None:
    folder, tensors = gpt2(tmp_path)
    places = tensors["transformer.wpe.weight"].clone()
    places[70] *= 1e9
    one = with_tensors(folder, tmp_path / "a", **{"transformer.wpe.weight": places})
    places = places.clone()
    places[65] = places[65] + 1e9 + 64 * (torch.arange(24) % 2)
    two = with_tensors(folder, tmp_path / "b", **{"transformer.wpe.weight": places})
    undecided(one, two, "transformer.wpe.weight: its mean is")


def test_a_norm_that_is_just_beyond_float16(tmp_path: Path) -> None:
    folder = llama(tmp_path / "made", torch.float16)
    tensors = load_file(folder / "model.safetensors")

    def scaled(out: str, size: float) -> Path:
        norm, head = tensors["model.norm.weight"].clone(), tensors["lm_head.weight"].clone()
        norm[7], head[:, 7] = size, head[:, 7] / size
        changed = {"model.norm.weight": norm, "lm_head.weight": head}
        return with_tensors(folder, tmp_path / out, **changed)

    undecided(scaled("a", 8192.0), scaled("b", 32768.0), "model.norm.weight")


def test_a_constant_where_there_was_none_is_no_loss(tmp_path: Path) -> None:
    """As whoever takes the mean out of a network without biases, or puts it in, makes one."""
    folder, tensors = gpt2(tmp_path)
    names = [name for name in tensors if name.endswith("c_proj.bias")]
    one, two = (
        with_tensors(folder, tmp_path / out, **{n: torch.full_like(tensors[n], c) for n in names})
        for out, c in (("a", 0.0), ("b", 0.0078125))
    )
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        assert same(ours, theirs, seed=0).answer is Answer.EQUIVALENT
        assert same(theirs, ours, seed=0).answer is Answer.EQUIVALENT
