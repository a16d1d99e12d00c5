"""Each answer of the verdict, on files written by `transformers`."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.group import conditioned, relative_error
from transformer_nfn.identity import (
    Answer,
    Verdict,
    apply_element,
    changes,
    load_certificate,
    random_net_element,
    run,
    same,
    save_certificate,
)
from transformer_nfn.space import WeightBatch


def decide(a: Path, b: Path, **second: object) -> Verdict:
    with Checkpoint(a) as ours, Checkpoint(b, options=second) as theirs:
        return same(ours, theirs)


def saved(
    tmp_path: Path, family: str, dtype: torch.dtype = torch.float32, **options: object
) -> Path:
    return made.save(made.model(family, **options), tmp_path / "a", dtype)


def moved(folder: Path, out: Path, seed: int = 0, condition: float = 10.0) -> Path:
    with Checkpoint(folder) as checkpoint:
        generator = torch.Generator().manual_seed(seed)
        element = random_net_element(checkpoint, generator, condition=condition)
        return apply_element(checkpoint, element, out)


def edited(folder: Path, out: Path, number: int, **tensors: Tensor) -> Path:
    with Checkpoint(folder) as checkpoint:
        batch = checkpoint.block(number)
        batch = WeightBatch(
            batch.spec, {**batch.tensors, **{n: t[None, None, None] for n, t in tensors.items()}}
        )
        return rewrite(checkpoint, checkpoint.pack(number, batch).items(), out)


def block(folder: Path, number: int) -> dict[str, Tensor]:
    with Checkpoint(folder) as checkpoint:
        return {name: tensor[0, 0, 0] for name, tensor in checkpoint.block(number).tensors.items()}


def test_identical_bytes_and_same_tensors(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    shutil.copytree(a, tmp_path / "b")
    assert decide(a, tmp_path / "b").answer is Answer.SAME_BYTES
    tensors = load_file(a / "model.safetensors")
    save_file(tensors, tmp_path / "b" / "model.safetensors", {"made by": "somebody else"})
    assert decide(a, tmp_path / "b").answer is Answer.SAME_TENSORS


def test_the_same_bytes_with_other_settings_are_another_function(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    verdict = decide(a, a, activation_function="relu")
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.where == "config: activation"
    assert verdict.witness is not None
    assert verdict.witness.ratio > 100


def test_the_same_bytes_with_another_norm_or_head_are_not_called_identical(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    assert decide(a, a, norm="rms").answer is Answer.DIFFERENT
    assert decide(a, a, tie_word_embeddings=False).answer is not Answer.SAME_BYTES


def test_a_late_position_that_differs_is_found(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2", n_positions=200)
    with Checkpoint(a) as checkpoint:
        places = checkpoint.files.read("transformer.wpe.weight").clone()
        places[150] *= 1.01
        b = rewrite(checkpoint, [("transformer.wpe.weight", places)], tmp_path / "b")
    verdict = decide(a, b)
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.witness is not None
    assert len(verdict.witness.inputs) == 151


@pytest.mark.parametrize("family", made.FAMILIES)
@pytest.mark.parametrize(
    ("dtype", "condition"), [(torch.float32, 1e3), (torch.float16, 8.0), (torch.bfloat16, 4.0)]
)
def test_a_member_of_the_orbit_is_equivalent_and_the_certificate_makes_it(
    family: str, dtype: torch.dtype, condition: float, tmp_path: Path
) -> None:
    a = saved(tmp_path, family, dtype)
    b = moved(a, tmp_path / "b", condition=condition)
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        verdict = same(ours, theirs, seed=7)  # fresh inputs may be above twice rounding, if rarely
    assert verdict.answer is Answer.EQUIVALENT
    assert verdict.margin is not None
    assert verdict.margin < 0.9
    assert verdict.agreement is not None
    assert verdict.agreement.ratio < 2.0
    assert verdict.condition == pytest.approx(condition, rel=0.1)
    assert verdict.element is not None
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        save_certificate(verdict.element, ours, theirs, tmp_path / "g.safetensors")
        element, _ = load_certificate(tmp_path / "g.safetensors", ours)
        made_of_a = dict(changes(ours, element))
        # Norms stay where no part moves them; all else must come out as stored.
        assert set(theirs.files) - set(made_of_a) <= {
            n for n in theirs.files if n.startswith("cls.")
        }
        for name, value in made_of_a.items():
            stored = theirs.files.read(name)
            limit = torch.finfo(dtype).eps * (4 + condition)
            assert relative_error(value.to(dtype), stored) < limit, name


@pytest.mark.parametrize(("name", "text"), [("paper", False), ("residual", False), ("paper", True)])
def test_zoo_nets(name: str, text: bool, tmp_path: Path) -> None:
    a = made.zoo_net(tmp_path / "a.safetensors", name, text=text)
    verdict = decide(a, moved(a, tmp_path / "b.safetensors", condition=100.0))
    assert verdict.answer is Answer.EQUIVALENT
    other = made.zoo_net(tmp_path / "c.safetensors", name, seed=1, text=text)
    verdict = decide(a, other)
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.witness is not None


def rotated_llama(tensors: dict[str, Tensor], R: Tensor) -> dict[str, Tensor]:
    """As rotating quantisers do it: norms folded into what follows, then one orthogonal matrix."""
    t = {name: tensor.double() for name, tensor in tensors.items()}
    t.setdefault("lm_head.weight", t["model.embed_tokens.weight"])
    for name in [n for n in t if n.endswith("layernorm.weight")]:
        place, _, norm = name.removesuffix(".weight").rpartition(".")
        readers = ["q", "k", "v"] if norm.startswith("input") else ["gate", "up"]
        part = "self_attn" if norm.startswith("input") else "mlp"
        for reader in readers:
            t[f"{place}.{part}.{reader}_proj.weight"] = (
                t[f"{place}.{part}.{reader}_proj.weight"] * t[name]
            )
        t[name] = torch.ones_like(t[name])
    t["lm_head.weight"] = t["lm_head.weight"] * t["model.norm.weight"]
    t["model.norm.weight"] = torch.ones_like(t["model.norm.weight"])
    for name in t:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            t[name] = R.T @ t[name]
        elif t[name].dim() == 2:
            t[name] = t[name] @ R
    return {name: tensor.float().contiguous() for name, tensor in t.items()}


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_rotation_folded_into_a_llama(family: str, tmp_path: Path) -> None:
    a = saved(tmp_path, family)
    R = conditioned(1.0)((), 24, torch.Generator().manual_seed(0))
    shutil.copytree(a, tmp_path / "b")
    tensors = rotated_llama(load_file(a / "model.safetensors"), R)
    save_file(tensors, tmp_path / "b" / "model.safetensors", {"format": "pt"})
    verdict = decide(a, tmp_path / "b", tie_word_embeddings=False)
    assert verdict.answer is Answer.EQUIVALENT
    assert verdict.element is not None
    assert relative_error(verdict.element.bases[0], R) < 1e-5


def rotated_gpt2(tensors: dict[str, Tensor], R: Tensor) -> dict[str, Tensor]:
    """Means out of all that writes, norms folded, any orthogonal matrix; RMSNorms then."""
    t = {name: tensor.double() for name, tensor in tensors.items()}
    p = "transformer."
    head = t[f"{p}wte.weight"] * t[f"{p}ln_f.weight"]
    for i in range(2):
        for norm, reader in (("ln_1", "attn.c_attn"), ("ln_2", "mlp.c_fc")):
            scale, shift = (t[f"{p}h.{i}.{norm}.{part}"] for part in ("weight", "bias"))
            weight = t[f"{p}h.{i}.{reader}.weight"]
            t[f"{p}h.{i}.{reader}.bias"] = t[f"{p}h.{i}.{reader}.bias"] + shift @ weight
            t[f"{p}h.{i}.{reader}.weight"] = R.T @ (scale[:, None] * weight)
            t[f"{p}h.{i}.{norm}.weight"] = torch.ones_like(scale)
            t[f"{p}h.{i}.{norm}.bias"] = torch.zeros_like(shift)
        for writer in ("attn.c_proj", "mlp.c_proj"):
            for part in ("weight", "bias"):
                value = t[f"{p}h.{i}.{writer}.{part}"]
                t[f"{p}h.{i}.{writer}.{part}"] = (value - value.mean(-1, keepdim=True)) @ R
    for name in ("wte.weight", "wpe.weight"):
        t[p + name] = (t[p + name] - t[p + name].mean(-1, keepdim=True)) @ R
    t[f"{p}ln_f.bias"] = (t[f"{p}ln_f.bias"] / t[f"{p}ln_f.weight"]) @ R
    t[f"{p}ln_f.weight"] = torch.ones_like(t[f"{p}ln_f.weight"])
    t["lm_head.weight"] = head @ R
    return {name: tensor.float().contiguous() for name, tensor in t.items()}


def test_a_rotation_folded_into_a_gpt2_whose_layer_norms_became_rms_norms(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    R = conditioned(1.0)((), 24, torch.Generator().manual_seed(0))
    shutil.copytree(a, tmp_path / "b")
    tensors = rotated_gpt2(load_file(a / "model.safetensors"), R)
    save_file(tensors, tmp_path / "b" / "model.safetensors", {"format": "pt"})
    verdict = decide(a, tmp_path / "b", tie_word_embeddings=False, norm="rms")
    assert verdict.answer is Answer.EQUIVALENT
    assert verdict.element is not None
    options = {"tie_word_embeddings": False, "norm": "rms"}
    with Checkpoint(a) as ours, Checkpoint(tmp_path / "b", options=options) as theirs:
        save_certificate(verdict.element, ours, theirs, tmp_path / "g.safetensors")
        element, _ = load_certificate(tmp_path / "g.safetensors", ours)
        apply_element(ours, element, tmp_path / "c")
    with pytest.raises(CheckpointError, match="--set norm=rms"):  # no loader knows
        Checkpoint(tmp_path / "c")
    with Checkpoint(tmp_path / "c", options={"norm": "rms"}) as again:
        assert again.settings.norm == "rms"
        for name, tensor in tensors.items():
            assert relative_error(again.files.read(name), tensor) < 1e-5, name
    # Not with the LayerNorms that it had: R does not fix the ones.
    assert decide(a, tmp_path / "b", tie_word_embeddings=False).answer is Answer.DIFFERENT


def test_a_head_without_full_rank_has_the_same_products(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    Q = block(a, 1)["Q"].clone()
    Q[0, :, :3] = 0
    b = edited(a, tmp_path / "b", 1, Q=Q)
    K = block(b, 1)["K"].clone()
    K[0, :, :3] += 1  # meets the zeros
    verdict = decide(b, edited(b, tmp_path / "c", 1, K=K))
    assert verdict.answer is Answer.BY_PRODUCTS
    assert "head" in verdict.reason
    assert verdict.element is None


def test_heads_that_look_alike_may_share_their_values_in_any_way(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    w = {name: tensor.clone() for name, tensor in block(a, 0).items()}
    w["Q"][1], w["K"][1] = w["Q"][0], w["K"][0]
    b = edited(a, tmp_path / "b", 0, **w)
    G = conditioned(4.0)((), 16, torch.Generator().manual_seed(0))  # both heads' values together
    V = torch.cat([w["V"][0], w["V"][1]], dim=1) @ G
    O = torch.linalg.inv(G) @ torch.cat([w["O"][0], w["O"][1]])
    w["V"][0], w["V"][1] = V[:, :8], V[:, 8:]
    w["O"][0], w["O"][1] = O[:8], O[8:]
    c = edited(b, tmp_path / "c", 0, **w)
    assert decide(b, c).answer is Answer.BY_PRODUCTS
    wrong = w["O"].clone()
    wrong[1] *= 1.01
    assert decide(b, edited(c, tmp_path / "d", 0, O=wrong)).answer is Answer.DIFFERENT


@pytest.mark.parametrize("family", ["gpt2", "bert", "qwen2"])
def test_near_misses_have_witnesses(family: str, tmp_path: Path) -> None:
    a = saved(tmp_path, family)
    b = moved(a, tmp_path / "b")
    w = block(b, 1)
    swap = torch.arange(len(w["V"]))
    swap[:2] = torch.tensor([1, 0])
    exchanged = edited(b, tmp_path / "c", 1, V=w["V"][swap], O=w["O"][swap])
    name = "gate" if family == "qwen2" else "A"
    neuron = w[name].clone()
    neuron[0, 5] += 0.01 * neuron[:, 5].norm()
    perturbed = edited(b, tmp_path / "d", 1, **{name: neuron})
    sign = w["V"].clone()
    sign[:, -1] *= -1
    turned = edited(b, tmp_path / "e", 1, V=sign)
    for number, other in enumerate((exchanged, perturbed, turned)):
        verdict = decide(a, other)
        assert verdict.answer is Answer.DIFFERENT, number
        assert verdict.where is not None
        with Checkpoint(a) as ours:
            assert verdict.where.startswith(ours.block_name(1))
        assert verdict.witness is not None
        assert verdict.witness.beyond_rounding


def test_the_witness_is_one(tmp_path: Path) -> None:
    a = saved(tmp_path, "llama")
    b = made.save(made.model("llama", seed=1), tmp_path / "b")
    witness = decide(a, b).witness
    assert witness is not None
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        one, two = (run(c, witness.inputs[None])[witness.head] for c in (ours, theirs))
    entry = (one - two).abs().argmax()
    assert one.flatten()[entry].item() == pytest.approx(witness.ours)
    assert two.flatten()[entry].item() == pytest.approx(witness.theirs)
    assert relative_error(one, two) == pytest.approx(witness.difference)


def test_one_word_that_differs_is_found_among_all(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2", vocab_size=5000, n_layer=1)
    with Checkpoint(a) as checkpoint:
        words = checkpoint.files.read("transformer.wte.weight").clone()
        words[4321] *= 1.01
        b = rewrite(checkpoint, [("transformer.wte.weight", words)], tmp_path / "b")
    verdict = decide(a, b)
    assert verdict.answer is Answer.DIFFERENT
    assert "row 4321" in verdict.reason
    assert verdict.witness is not None
    assert 4321 in verdict.witness.inputs


def test_nan_is_not_decided(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    A = block(a, 0)["A"].clone()
    A[0, 0] = torch.nan
    verdict = decide(a, edited(a, tmp_path / "b", 0, A=A))
    assert verdict.answer is Answer.UNDECIDED
    assert "NaN" in verdict.reason


def test_a_neuron_that_never_matters_is_not_decided(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2", activation_function="relu", n_layer=1)
    w = block(a, 0)
    bias = w["bA"].clone()
    bias[3] = -1e4
    b = edited(a, tmp_path / "b", 0, bA=bias)
    A = w["A"].clone()
    A[:, 3] *= -1
    verdict = decide(b, edited(b, tmp_path / "c", 0, A=A))
    assert verdict.answer is Answer.UNDECIDED
    assert "times what rounding does" in verdict.reason


def test_other_sizes_and_families_are_told(tmp_path: Path) -> None:
    a = saved(tmp_path, "gpt2")
    wide = made.save(made.model("gpt2", n_inner=48), tmp_path / "b")
    verdict = decide(a, wide)
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.witness is not None
    bert = made.save(made.model("bert"), tmp_path / "c")
    assert decide(a, bert).answer is Answer.UNDECIDED


def test_a_permuted_bert_without_head_gives_permuted_states(tmp_path: Path) -> None:
    """Its hidden states are its output, so their order is part of the function."""
    net = made.model("bert", cls="BertModel")
    a = made.save(net, tmp_path / "a")
    with Checkpoint(a) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(0), parts=["heads"])
        order = torch.eye(24, dtype=torch.float64)[torch.randperm(24)]
        made.unchecked(checkpoint, replace(element, bases={0: order}), tmp_path / "b")
    assert decide(a, tmp_path / "b").answer is Answer.DIFFERENT
