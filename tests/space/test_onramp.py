"""Networks of people's own as batches: state dicts, modules, norms, blocks without layers."""

import pytest
import torch
from torch import nn

from tests.strategies import generator
from transformer_nfn.space import (
    GATED,
    GROUPED,
    RELU,
    RESIDUAL,
    ROTARY,
    TIMM_VIT,
    BlockSpec,
    DeclarationError,
    Experts,
    Half,
    Layout,
    NetBatch,
    Norms,
    ShapeError,
    WeightBatch,
    apply_blocks,
    compose,
    declare,
    fold_norms,
    for_layers,
    free,
    keep_norms,
    permuted,
)


def encoder(*, norm_first: bool = True, affine: bool = True, **settings) -> nn.TransformerEncoder:
    """Random numbers everywhere; norms that do nothing unless they are to be folded."""
    layer = nn.TransformerEncoderLayer(
        8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first, **settings
    )
    made = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double().eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if affine or "norm" not in name:
                parameter.normal_(std=0.5)
    return made


class Classifier(nn.Module):
    """A model as people write it."""

    def __init__(self, **settings) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.encoder = encoder(**settings)
        self.head = nn.Linear(8, 3)


TOKENS = torch.randn(4, 6, 8, generator=generator(1), dtype=torch.float64)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_blocks_compute_what_torch_does(activation, norm_first, bias) -> None:
    settings = {"activation": activation, "norm_first": norm_first, "bias": bias}
    modules = [encoder(**settings, affine=norm_first) for _ in range(4)]
    norms = "fold" if norm_first else "drop"  # which does nothing here
    nets = NetBatch.from_modules(modules, norms=norms, dtype=torch.float64)
    assert len(nets) == 4
    expected = torch.cat([m(x.unsqueeze(0)) for m, x in zip(modules, TOKENS, strict=True)])
    torch.testing.assert_close(apply_blocks(nets.blocks, TOKENS), expected)


def test_norms_are_kept_as_tensors() -> None:
    module = encoder(norm_first=False)
    nets = NetBatch.from_modules([module], norms="keep", dtype=torch.float64)
    for half in (1, 2):
        for kind, part in (("scale", "weight"), ("shift", "bias")):
            stored = [getattr(getattr(layer, f"norm{half}"), part) for layer in module.layers]
            assert torch.equal(nets.blocks[f"{kind}{half}"][0, 0], torch.stack(stored).detach())
    assert nets.blocks.spec.block.layered
    assert nets.blocks.spec.block.function is None


def test_norms_after_the_sum_are_not_folded() -> None:
    with pytest.raises(ShapeError, match=r"network 0: norms that stand after the sum .*'keep'"):
        NetBatch.from_modules([encoder(norm_first=False)])


def test_a_whole_model_with_its_embedding_and_classifier() -> None:
    models = [Classifier().float() for _ in range(2)]
    nets = NetBatch.from_modules(models, embedding="embed.", classifier="head.")
    assert torch.equal(nets.embedding["weight"][1], models[1].embed.weight)
    assert nets.flat("classifier").shape == (2, 27)
    alone = NetBatch.from_modules([model.encoder for model in models])
    assert torch.equal(alone.blocks.flat(), nets.blocks.flat())
    with pytest.raises(ShapeError, match=r"network 0: no tensor .* begins with 'haed.'"):
        NetBatch.from_modules(models, classifier="haed.")


def test_names_of_ones_own_and_mixed_dtypes() -> None:
    module = encoder()
    renamed = {}
    for name, tensor in module.state_dict().items():
        number, rest = name.removeprefix("layers.").split(".", 1)
        if "in_proj" in rest:
            for which, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"body/{number}/{which}_{rest.rsplit('_', 1)[1]}"] = part.half()
        else:
            renamed[f"body/{number}/{rest.replace('self_attn.', '').replace('.', '_')}"] = tensor
    layout = Layout(
        "body/{}/", ("q_", "k_", "v_"), "out_proj_", "linear1_", "linear2_", ("norm1_", "norm2_")
    )
    got = NetBatch.from_state_dicts([renamed], layout, **TORCH)
    expected = NetBatch.from_modules([module])
    assert got.blocks.dtype == torch.float32
    torch.testing.assert_close(got.blocks.flat(), expected.blocks.flat(), rtol=0, atol=5e-3)


def test_names_of_timm() -> None:
    module = encoder(activation="gelu")
    names = {
        "layers.": "blocks.",
        "self_attn.in_proj_": "attn.qkv.",
        "self_attn.out_proj": "attn.proj",
        "linear1": "mlp.fc1",
        "linear2": "mlp.fc2",
    }
    state = module.state_dict()
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    got = NetBatch.from_state_dicts([state], TIMM_VIT, **{**TORCH, "activation": "gelu"})
    assert torch.equal(got.blocks.flat(), NetBatch.from_modules([module]).blocks.flat())


TORCH = {"heads": 2, "activation": "relu", "post_norm": False}


def without(state: dict, name: str) -> dict:
    return {key: value for key, value in state.items() if key != name}


STATE = encoder().state_dict()


@pytest.mark.parametrize(
    ("state", "settings", "says"),
    [
        (without(STATE, "layers.0.linear1.weight"), {}, "there is no layers.0.linear1.weight"),
        (
            {name: t for name, t in STATE.items() if not name.startswith("layers.1.")},
            {},
            r"the numbers \[0, 2\], expected 0, 1, 2",
        ),
        (without(STATE, "layers.2.linear1.weight"), {}, "there is no layers.2.linear1.weight"),
        ({**STATE, "layers.0.norm1.bias": torch.ones(8).int()}, {}, "is torch.int32; weights are"),
        ({**STATE, "layers.0.norm1.bias": torch.ones(8, device="meta")}, {}, "is on meta"),
        (list(STATE), {}, "has tensors by name, not list"),
        (STATE, {"heads": 0}, "heads is how many an attention has, not 0"),
        (STATE, {"activation": "gleu"}, "the activation is one of gelu.*, not 'gleu'"),
        (without(STATE, "layers.1.linear2.weight"), {}, "no layers.1.linear2.weight"),
        ({**STATE, "layers.0.gate.weight": torch.ones(2, 2)}, {}, "the layout does not say what"),
        ({**STATE, "layers.0.linear2.weight": torch.ones(8, 8)}, {}, r"is \(8, 8\), expected"),
        ({**STATE, "layers.0.linear1.weight": torch.ones(12, 7)}, {}, "and D is 8"),
        (STATE, {"heads": 3}, "no square of 3 heads; is heads= right"),
        (STATE, {"norms": "folded"}, "'fold', 'keep' or 'drop', not 'folded'"),
        (STATE, {"prefix": "body."}, "prefix="),
    ],
)
@pytest.mark.wrong_types
def test_what_does_not_fit_is_refused_in_words(state, settings, says) -> None:
    with pytest.raises(ShapeError, match=says):
        NetBatch.from_state_dicts([state], **{**TORCH, **settings})


@pytest.mark.wrong_types
def test_networks_that_are_not_alike() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True)
    other = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    with pytest.raises(ShapeError, match=r"network 1: it has 3 blocks of .*D_A=16.*network 0 3 of"):
        NetBatch.from_modules([encoder(), other])
    with pytest.raises(ShapeError, match="module 1 has Encoder"):
        NetBatch.from_modules([encoder(), encoder(norm_first=False)])
    with pytest.raises(ShapeError, match=r"has 0 torch.nn.TransformerEncoder"):
        NetBatch.from_modules([nn.Linear(2, 2)])
    for make in (NetBatch.from_modules, lambda none: NetBatch.from_state_dicts(none, **TORCH)):
        with pytest.raises(ShapeError, match="there are no"):
            make([])
    with pytest.raises(ShapeError, match="this is one module"):
        NetBatch.from_modules(encoder())  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="this is one state dict"):
        NetBatch.from_state_dicts(STATE, **TORCH)


def changed(change) -> nn.TransformerEncoder:
    made = encoder()
    change(made.layers[1])
    return made


class Other(nn.TransformerEncoderLayer):
    def forward(self, *arguments, **settings):
        return super().forward(*arguments, **settings) + 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda layer: setattr(layer, "norm_first", False), "layers.1 has Encoder.*post_norm=True"),
        (lambda layer: setattr(layer.self_attn, "num_heads", 4), "layers.1 has Encoder.heads=4"),
        (lambda layer: setattr(layer, "activation", nn.GELU("tanh")), "activation='gelu_new'"),
        (lambda layer: setattr(layer.self_attn, "add_zero_attn", True), "add_zero_attn"),
        (lambda layer: setattr(layer, "norm1", nn.RMSNorm(8)), "a RMSNorm where a LayerNorm"),
        (lambda layer: setattr(layer, "__class__", Other), "layers.1 is a Other"),
    ],
)
def test_layers_that_are_not_what_the_first_one_is(change, says) -> None:
    with pytest.raises(ShapeError, match=says):
        NetBatch.from_modules([changed(change)])


def test_activations_as_modules() -> None:
    known = {nn.ReLU(): "relu", nn.GELU(): "gelu", nn.GELU("tanh"): "gelu_new"}
    for activation, name in known.items():
        modules = [encoder(activation=activation)]
        nets = NetBatch.from_modules(modules, dtype=torch.float64)
        assert nets.blocks.spec.block.halves[1].part.activation == name
        torch.testing.assert_close(apply_blocks(nets.blocks, TOKENS[:1]), modules[0](TOKENS[:1]))


def test_networks_of_different_functions_are_not_joined() -> None:
    """Their tensors have the same names and shapes."""
    one, two = (NetBatch.from_modules([encoder(activation=name)]) for name in ("relu", "gelu"))
    with pytest.raises(ShapeError, match="compute different functions"):
        NetBatch.cat([one, two])


def test_parts_outside_that_are_not_alike() -> None:
    states = [Classifier().state_dict() for _ in range(2)]
    more = {**states[1], "embed.scale": torch.ones(3)}
    settings = {**TORCH, "prefix": "encoder.", "embedding": "embed."}
    with pytest.raises(ShapeError, match="only some of these networks have scale"):
        NetBatch.from_state_dicts([states[0], more], **settings)
    wider = {**states[1], "embed.weight": torch.ones(8, 6)}
    with pytest.raises(ShapeError, match=r"weight is \(8, 6\) in batch 1, \(8, 5\) in the first"):
        NetBatch.from_state_dicts([states[0], wider], **settings)


def test_an_activation_of_ones_own_is_not_guessed() -> None:
    with pytest.raises(ShapeError, match="activation="):
        NetBatch.from_modules([encoder(activation=torch.tanh)])


def test_a_shift_without_a_bias_to_go_to() -> None:
    spec = BlockSpec(GATED, D=4, heads=2, D_k=2, D_v=2, D_A=5)
    batch = WeightBatch.random(spec, networks=1)
    ones, zeros = torch.ones(1, 1, 4), torch.zeros(1, 1, 4)
    folded = fold_norms(batch, [Norms(2 * ones, zeros), Norms(3 * ones, zeros)])
    assert torch.equal(folded["Q"], 2 * batch["Q"])
    assert torch.equal(folded["up"], 3 * batch["up"])
    assert torch.equal(folded["down"], batch["down"])
    with pytest.raises(ShapeError, match="needs a bias of Q"):
        fold_norms(batch, [Norms(ones, ones), Norms(ones, zeros)])
    with pytest.raises(ShapeError, match="2 halves, got norms of 1"):
        fold_norms(batch, [Norms(ones, zeros)])
    assert set(keep_norms(batch, [Norms(ones, zeros)]).tensors) - set(batch.tensors) == {
        "scale1",
        "shift1",
    }


def test_relu_becomes_residual() -> None:
    spec = BlockSpec(RELU, D=4, heads=2, D_k=2, D_v=3, D_A=5)
    batch = WeightBatch.random(spec, networks=2, blocks=2, dtype=torch.float64)
    got = for_layers(batch)
    assert got.spec == BlockSpec(RESIDUAL, **spec.sizes)
    assert got.spec.block.function is None  # it is not that of RESIDUAL
    assert torch.equal(got["A"], batch["A"].squeeze(-1))
    assert torch.equal(got["Q"], batch["Q"])
    gelu = WeightBatch.random(BlockSpec(RESIDUAL, **spec.sizes), networks=1)
    assert for_layers(gelu).spec.block.function is RESIDUAL.function


def test_rotary_becomes_grouped() -> None:
    sizes = {"D": 4, "groups": 2, "heads_per_group": 3, "D_k": 2, "D_v": 5, "D_A": 6}
    batch = WeightBatch.random(BlockSpec(ROTARY, **sizes), networks=2)
    with_biases = for_layers(batch)
    assert with_biases.spec.block.layered
    assert set(with_biases.spec.block.products) == {"QK", "VO"}
    assert torch.equal(with_biases["gate"], batch["gate"])
    for name in ("Q", "bO"):  # one number is enough
        one = torch.zeros_like(batch[name])
        one[..., -1, :1] = 1.0 if name == "Q" else 0.0
        one.flatten()[-1] = 1.0
        silent = batch.map(torch.zeros_like).replace({name: one})
        with pytest.raises(ShapeError, match=f"{name} has biases that are not 0"):
            for_layers(silent, biases=False)
    rows = {"Q": -2, "K": -2, "V": -2, "gate": -2, "up": -3}
    zeroed = {name: batch[name].clone() for name in rows}
    for name, axis in rows.items():
        zeroed[name].select(axis, 4).zero_()
    zeroed |= {name: torch.zeros_like(batch[name]) for name in ("bO", "bdown")}
    got = for_layers(batch.replace(zeroed), biases=False)
    assert got.spec == BlockSpec(GROUPED, **sizes)
    assert got.spec.block.function is None
    assert torch.equal(got["up"], batch["up"][..., :4, :, 0])


def test_what_has_no_layers_is_refused() -> None:
    experts = compose("many", *ROTARY.halves[:1], Half(Experts("silu"), "rms"))
    symbols = {axis.symbol for axis in experts.axes.values() if axis.symbol}
    spec = BlockSpec(experts, **dict.fromkeys(symbols, 2))
    with pytest.raises(DeclarationError, match="Experts, for which there are no layers"):
        for_layers(WeightBatch.random(spec, networks=1))
    own = declare("mine", {"x": free("D"), "a": permuted("D_A")}, {"A": "x a"}, {})
    batch = WeightBatch.random(BlockSpec(own, D=2, D_A=2), networks=1)
    assert for_layers(batch).spec == batch.spec
    with pytest.raises(DeclarationError, match="not made of parts"):
        for_layers(batch, biases=False)
