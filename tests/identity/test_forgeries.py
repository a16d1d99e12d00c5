"""Pairs that were made to deceive, and what each part of a verdict sees of them."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.material import families as families_material
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import Answer, Verdict, apply_element, random_net_element, same
from transformer_nfn.identity.elements.digits import last_digit
from transformer_nfn.identity.matching.networks import match
from transformer_nfn.identity.running.confirmation import confirm

Tensors = dict[str, Tensor]


def changed(folder: Path, out: Path, change: Callable[[Tensors], None]) -> Path:
    shutil.copytree(folder, out)
    tensors = {
        name: tensor.clone() for name, tensor in load_file(out / "model.safetensors").items()
    }
    change(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, out / "model.safetensors")
    return out


def decide(a: Path, b: Path, seed: int | None = None) -> Verdict:
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        return same(ours, theirs, seed=seed)


def passes(a: Path, b: Path) -> bool:
    """Whether they are called the same; no input that shows a difference is looked for."""
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        return same(ours, theirs, seed=0, search=False).answer.same_function


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_giant_neuron_does_not_hide_the_others(dtype: torch.dtype, tmp_path: Path) -> None:
    a = made.save(made.model("llama"), tmp_path / "a", dtype)

    def giant(tensors: Tensors) -> None:
        up, down = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("up", "down"))
        tensors[up][0] /= 2.0**40
        tensors[down][:, 0] *= 2.0**40

    def and_another(tensors: Tensors) -> None:
        giant(tensors)
        tensors["model.layers.0.mlp.down_proj.weight"][:, 1] *= 1.5

    assert decide(a, changed(a, tmp_path / "b", giant)).answer is Answer.EQUIVALENT
    verdict = decide(a, changed(a, tmp_path / "c", and_another))
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.where is not None
    assert "neuron 1" in verdict.where


@pytest.mark.parametrize("bias", ["v_proj.bias", "up_proj.bias", "gate_proj.bias"])
def test_a_bias_that_only_tokens_of_zeros_feel_is_seen(bias: str, tmp_path: Path) -> None:
    """It is below the rounding of the matrix it belongs to, but such a token has nothing else.

    One word of many is padding, a row of zeros; a norm makes a whole token of what is added to it.
    """
    net = made.model("llama", rms_norm_eps=1e-6, attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        net.model.embed_tokens.weight[7] = 0
        for name, value in net.named_parameters():
            if name.endswith((bias, "o_proj.bias", "down_proj.bias")):
                value.zero_()
    a = made.save(net, tmp_path / "a", torch.float16)

    def biased(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith(bias):
                tensors[name] += 1e-4

    b = changed(a, tmp_path / "b", biased)
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        found = match(ours, theirs)
        assert found.failures
        assert 7 in found.words[:2]
        # Where the comparison of weights is not looked at: the word is run, whatever the seed.
        if bias == "v_proj.bias":
            assert not any(confirm(ours, theirs, seed=s, words=found.words).holds for s in range(3))
    assert not passes(a, b)


def _least(tensor: Tensor) -> Tensor:
    """The smallest float16 numbers, of either sign."""
    signs = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(3)).sign()
    return (signs * 2.0**-24).half()


@pytest.mark.parametrize("name", ["embed_tokens", "v_proj.bias", "o_proj.bias", "down_proj.bias"])
def test_nothing_does_not_become_the_least_number_there_is(name: str, tmp_path: Path) -> None:
    """It is two roundings of itself, but of no 0; each norm makes it a thousand times as large."""
    net = made.model("llama", rms_norm_eps=1e-6, attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        net.model.embed_tokens.weight[7] = 0
        for bias in (v for n, v in net.named_parameters() if n.endswith("bias")):
            bias.zero_()
    a = made.save(net, tmp_path / "a", torch.float16)

    def something(tensors: Tensors) -> None:
        for key in tensors:
            if name == "embed_tokens" and name in key:
                tensors[key][7] = _least(tensors[key][7])
            elif key.endswith(f"layers.0.self_attn.{name}") or key.endswith(f"layers.0.mlp.{name}"):
                tensors[key] = _least(tensors[key])

    b = changed(a, tmp_path / "b", something)
    assert not passes(a, b)
    assert not passes(b, a)


def test_a_bias_of_relu_neurons_counts_by_itself(tmp_path: Path) -> None:
    """Their scale is free, so all of a neuron is one unit; what that may be off, a bias may not."""
    net = made.model("gpt2", activation_function="relu")
    with torch.no_grad():
        for bias in (v for n, v in net.named_parameters() if n.endswith("bias")):
            bias.zero_()
    a = made.save(net, tmp_path / "a", torch.float16)

    def biased(tensors: Tensors) -> None:
        tensors["transformer.h.0.mlp.c_fc.bias"] += 6e-4

    b = changed(a, tmp_path / "b", biased)
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        assert match(ours, theirs).failures
    with Checkpoint(a) as ours:
        parts = ("norms", "value_bias", "ones")  # these make biases, and rounding leaves of them
        element = random_net_element(ours, torch.Generator().manual_seed(0), parts=parts)
        apply_element(ours, element, tmp_path / "c")
    assert decide(a, tmp_path / "c", seed=0).answer is Answer.EQUIVALENT


def test_experts_of_a_router_of_zeros_have_an_order(tmp_path: Path) -> None:
    """All scores are equal, and a loader takes the first ones."""
    made_of = families_material.make("mixtral", tmp_path / "made", dtype=torch.float16)

    def zeros(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("block_sparse_moe.gate.weight"):
                tensors[name] *= 0

    def reverse(tensors: Tensors) -> None:
        for name, value in dict(tensors).items():
            head, experts, rest = name.partition(".experts.")
            if experts:
                number, _, end = rest.partition(".")
                tensors[f"{head}.experts.{4 - int(number)}.{end}"] = value

    a = changed(made_of, tmp_path / "a", zeros)
    b = changed(a, tmp_path / "b", reverse)
    assert decide(a, b, seed=0).answer is Answer.UNDECIDED


def test_experts_between_which_rounding_chooses_are_not_decided(tmp_path: Path) -> None:
    """Two have one column of the router: the smallest change there sends tokens to the other.

    Compared with choices made gradually they are the same, and each may be the other's copy; but
    what the network says is then a matter of rounding.
    """
    made_of = families_material.make("mixtral", tmp_path / "made", dtype=torch.float16)

    def tied(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("block_sparse_moe.gate.weight"):
                tensors[name][1:] = tensors[name][:1]

    def turned(tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("block_sparse_moe.gate.weight"):
                value, seed = tensors[name], torch.Generator().manual_seed(len(name))
                some = torch.rand(value.shape, generator=seed) < 0.1
                tensors[name] = value + (last_digit(value) * some).to(value.dtype)

    a = changed(made_of, tmp_path / "a", tied)
    b = changed(a, tmp_path / "b", turned)
    verdict = decide(a, b, seed=0)
    assert verdict.answer is Answer.UNDECIDED
    assert verdict.agreement is not None
    assert verdict.agreement.turned > 0.1
    assert verdict.agreement.tied


def test_a_rare_word_out_of_zeros_is_run(tmp_path: Path) -> None:
    """Nothing beside the other rows; a norm with a tiny ε makes a whole token of it."""
    net = made.model("llama", vocab_size=3000, rms_norm_eps=1e-14)
    with torch.no_grad():
        net.model.embed_tokens.weight[5] = 0
    a = made.save(net, tmp_path / "a", torch.float16)

    def out_of_zeros(tensors: Tensors) -> None:
        tensors["model.embed_tokens.weight"][5, 0] = 4 * 2.0**-24

    b = changed(a, tmp_path / "b", out_of_zeros)
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        assert match(ours, theirs).words[0] == 5
    assert not passes(a, b)


@pytest.mark.parametrize("kappa", [10.0, 1e3])
def test_an_error_does_not_hide_where_queries_are_small(kappa: float, tmp_path: Path) -> None:
    a = made.save(made.model("gpt2"), tmp_path / "a")

    def weak(error: float) -> Callable[[Tensors], None]:
        def change(tensors: Tensors) -> None:
            root = math.log10(kappa) / 2
            scale = torch.logspace(root, -root, 8, dtype=torch.float64)
            seed = torch.Generator().manual_seed(0)
            for part in ("weight", "bias"):
                name = f"transformer.h.0.attn.c_attn.{part}"
                W = tensors[name].double()
                q, k = (W[..., i : i + 24].unflatten(-1, (3, 8)) for i in (0, 24))
                q, k = q * scale, k / scale
                if part == "weight":
                    way = torch.randn(24, 3, generator=seed, dtype=torch.float64)
                    q[..., -1] += error * 6e-8 * kappa * q.norm() * way / way.norm()
                W[..., :24], W[..., 24:48] = q.flatten(-2), k.flatten(-2)
                tensors[name] = W.float()

        return change

    assert decide(a, changed(a, tmp_path / "b", weak(0))).answer is Answer.EQUIVALENT
    assert not passes(a, changed(a, tmp_path / "c", weak(1)))


@pytest.mark.parametrize("family", made.FAMILIES)
def test_noise_on_every_weight_is_not_rounding(family: str, tmp_path: Path) -> None:
    a = made.save(made.model(family), tmp_path / "a", torch.bfloat16)

    def noise(tensors: Tensors) -> None:
        seed = torch.Generator().manual_seed(1)
        for name, tensor in tensors.items():
            factor = 1 + 0.005 * torch.randn(tensor.shape, generator=seed)
            tensors[name] = (tensor.float() * factor).to(tensor.dtype)

    assert not passes(a, changed(a, tmp_path / "b", noise))


def test_a_change_of_low_rank_below_rounding_has_a_direction(tmp_path: Path) -> None:
    """Its size passes for rounding, one unit at a time and all together."""
    a = made.save(made.model("gpt2", n_embd=96, n_inner=200, n_head=3), tmp_path / "a")
    seed = torch.Generator().manual_seed(0)

    def left(pair: Path) -> list[tuple[bool, float]]:
        with Checkpoint(a) as ours, Checkpoint(pair) as theirs:
            return [(r.leans, r.value) for _, r in match(ours, theirs).failures]

    def low_rank(tensors: Tensors) -> None:
        name = "transformer.h.0.mlp.c_fc.weight"
        W = tensors[name].double()
        one, two = (torch.randn(n, generator=seed, dtype=torch.float64).sign() for n in W.shape)
        way = 4.5e-8 * W.std() * torch.outer(one, two)
        # Half a digit at random, or most numbers would be rounded back to what they were.
        share = torch.rand(W.shape, generator=seed, dtype=torch.float64) - 0.5
        tensors[name] = (W + way + share * last_digit(W.float())).float()

    assert left(changed(a, tmp_path / "b", lambda _: None)) == []
    found = left(changed(a, tmp_path / "c", low_rank))
    assert found
    assert all(leans for leans, _ in found)


def test_networks_are_run_before_they_are_equivalent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the comparison of weights says; here it is made to see nothing."""
    from transformer_nfn.identity.comparing.outcome import Match

    a = made.save(made.model("gpt2"), tmp_path / "a")

    def change(tensors: Tensors) -> None:
        tensors["transformer.h.1.mlp.c_fc.weight"] *= 1.001

    b = changed(a, tmp_path / "b", change)
    monkeypatch.setattr(Match, "note", lambda *_: None)
    verdict = decide(a, b)
    assert verdict.answer is Answer.DIFFERENT
    assert verdict.element is None
    assert "all weights agree" in verdict.reason


def test_inputs_are_fresh_and_a_seed_repeats_them(tmp_path: Path) -> None:
    a = made.save(made.model("gpt2"), tmp_path / "a")
    with Checkpoint(a) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(0))
        b = apply_element(checkpoint, element, tmp_path / "b")
    one, two = decide(a, b), decide(a, b)
    assert one.seed != two.seed
    assert one.agreement != two.agreement
    again = decide(a, b, seed=one.seed)
    assert again.agreement == one.agreement
    assert one.agreement is not None
    assert 0.2 < one.agreement.ratio < 2.5


def test_the_agreement_of_a_network_with_itself_and_with_another(tmp_path: Path) -> None:
    a = made.save(made.model("llama"), tmp_path / "a")
    b = made.save(made.model("llama", seed=1), tmp_path / "b")
    with Checkpoint(a) as one, Checkpoint(b) as two:
        alike, apart = confirm(one, one, seed=0), confirm(one, two, seed=0)
    assert (alike.ratio, alike.holds) == (0.0, True)
    assert apart.ratio > 1e4
    assert apart.refuted


def test_a_decoder_of_its_own_is_compared_with_the_embedding_it_shares(tmp_path: Path) -> None:
    b = made.save(made.model("bert"), tmp_path / "b")
    shared = "bert.embeddings.word_embeddings.weight"

    def own(factor: float) -> Callable[[Tensors], None]:
        def change(tensors: Tensors) -> None:
            tensors["cls.predictions.decoder.weight"] = tensors[shared] * factor

        return change

    assert decide(changed(b, tmp_path / "a", own(1.0)), b).answer is Answer.EQUIVALENT
    assert not passes(changed(b, tmp_path / "c", own(1.01)), b)
