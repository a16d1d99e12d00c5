"""What takes tensors in `space`, `group`, `layers` and `models`: made small, with inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.strategies import generator
from transformer_nfn.group import random_element
from transformer_nfn.layers import (
    EquivariantLayer,
    HeadAwareLayer,
    InvariantLayer,
    Messages,
    NodeEncoder,
    Standardised,
    cosine,
    equivariant_rows,
    head_to_neuron_values,
    head_values,
    neuron_values,
    nonzero_square,
    pointwise_relu,
    pooled,
    row_to_head_values,
    run_reference,
    units_of,
)
from transformer_nfn.models import (
    AgreementConfig,
    AgreementProbes,
    Encoder,
    FlatMLP,
    FlatMLPConfig,
    HeadNet,
    HeadNetConfig,
    NFNConfig,
    ProbeNet,
    ProbeNetConfig,
    StatNN,
    StatNNConfig,
    TokenNet,
    TokenNetConfig,
    TransformerNFN,
    graph_features,
    net_graph,
    ranking_loss,
    tensor_statistics,
)
from transformer_nfn.space import (
    PAPER,
    RESIDUAL,
    BlockSpec,
    NetBatch,
    Norms,
    WeightBatch,
    apply_blocks,
    apply_net,
    apply_paper_net,
    balance,
    declare,
    fold_norms,
    for_layers,
    free,
    keep_norms,
    layer_norm,
    linear,
    permuted,
    rms_norm,
)

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=2, D_A=5)
#: Every kind of axis and a product, in few tensors.
SMALL = BlockSpec(
    declare(
        "small",
        {"x": free("D"), "y": free("D"), "h": permuted("heads"), "k": linear("D_k", per="h")}
        | {"a": permuted("D_A")},
        {"Q": "h x k", "K": "h x k*", "A": "x a", "bA": "a"},
        {"QK": "Q h x k, K h y k* -> x y"},
    ),
    D=4,
    heads=2,
    D_k=3,
    D_A=5,
)
TOKENS = 3


@dataclass(frozen=True)
class Subject:
    """Something that takes tensors.

    Attributes:
        make: The function, or a module with parameters.
        inputs: Its arguments for n networks from a seed, in float64.
        small: The same on a block of few tensors: torch.compile takes seconds for each.
    """

    make: Callable[[], Callable[..., Any]]
    inputs: Callable[[int, int], tuple[Any, ...]]
    small: "Subject | None" = None

    @property
    def is_module(self) -> bool:
        return isinstance(self.make(), nn.Module)


def weights(networks: int, seed: int = 0, spec: BlockSpec = SPEC) -> WeightBatch:
    return WeightBatch.random(
        spec, networks=networks, blocks=2, generator=generator(seed), dtype=torch.float64
    )


def nets(networks: int, seed: int = 0) -> NetBatch:
    """Networks of the zoo's kind, with all their parts."""
    g = generator(seed + 1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(networks, *shape, generator=g, dtype=torch.float64)

    return NetBatch(
        weights(networks, seed),
        {"weight": draw(6, 4), "bias": draw(4)},
        {"weight1": draw(4, 5), "bias1": draw(5), "weight2": draw(5, 3), "bias2": draw(3)},
    )


def numbers(*shape: int) -> Callable[[int, int], tuple[torch.Tensor]]:
    def draw(networks: int, seed: int) -> tuple[torch.Tensor]:
        g = generator(seed)
        return (torch.randn(networks, *shape, generator=g, dtype=torch.float64),)

    return draw


def _weights(networks: int, seed: int) -> tuple[Any, ...]:
    return (weights(networks, seed),)


def _nets(networks: int, seed: int) -> tuple[Any, ...]:
    return (nets(networks, seed),)


def _with_tokens(networks: int, seed: int) -> tuple[Any, ...]:
    return (weights(networks, seed), *numbers(TOKENS, 4)(networks, seed + 7))


def _net_with_tokens(networks: int, seed: int) -> tuple[Any, ...]:
    return (nets(networks, seed), *numbers(TOKENS, 6)(networks, seed + 7))


def _moved(networks: int, seed: int) -> tuple[Any, ...]:
    g = random_element(SPEC, networks=networks, blocks=2, generator=generator(seed + 3))
    return g, weights(networks, seed)


def _two_elements(networks: int, seed: int) -> tuple[Any, ...]:
    return tuple(
        random_element(SPEC, networks=networks, blocks=2, generator=generator(seed + i))
        for i in (3, 4)
    )


def _reference(batch: WeightBatch) -> dict[str, torch.Tensor]:
    rows = equivariant_rows(batch.spec.block)
    parameters = {
        row.name: torch.ones(2, *row.parameter_shape(batch.spec.lengths, 1, 1)).to(batch["Q"])
        for row in rows
    }
    return run_reference(rows, batch, parameters)


def _unit_values(batch: WeightBatch) -> list[torch.Tensor]:
    units = units_of(batch, 1)
    before = units_of(batch, 0)
    return [
        head_values(units),
        neuron_values(units),
        head_to_neuron_values(units),
        row_to_head_values(before.writer, units),
        cosine(units.readers[0], nonzero_square(units.readers[0].square())),
    ]


def _gelu(networks: int, seed: int) -> WeightBatch:
    spec = BlockSpec(RESIDUAL, D=4, heads=2, D_k=3, D_v=2, D_A=5)
    return weights(networks, seed, spec)


def _norms(batch: WeightBatch) -> list[Norms]:
    return [Norms(batch[name][:, 0], batch[name][:, 0].sin()) for name in ("bB", "bO")]


def _folded(batch: WeightBatch) -> WeightBatch:
    return fold_norms(batch, _norms(batch))


def _kept(batch: WeightBatch) -> dict[str, torch.Tensor]:
    return dict(keep_norms(batch, _norms(batch)).tensors)


def _ranked(pair: torch.Tensor) -> torch.Tensor:
    return ranking_loss(pair[:, 0], pair[:, 1].detach())


def _seen(module: nn.Module) -> nn.Module:
    return module.double().eval()


def _on_blocks(
    make: Callable[[BlockSpec], nn.Module], wrap: Callable[[WeightBatch], Any] = lambda batch: batch
) -> Subject:
    """What reads blocks of any declaration."""

    def on(spec: BlockSpec, small: Subject | None = None) -> Subject:
        return Subject(
            lambda: _seen(make(spec)), lambda n, seed: (wrap(weights(n, seed, spec)),), small
        )

    return on(SPEC, on(SMALL))


def _layer(kind: type[EquivariantLayer | InvariantLayer], **settings: Any) -> Subject:
    sizes = {"blocks": 2, "inputs": 1, "outputs": 3}
    return _on_blocks(lambda spec: kind(spec, **sizes, generator=generator(5), **settings))


SUBJECTS: dict[str, Subject] = {
    "EquivariantLayer": _layer(EquivariantLayer, relu=True),
    "EquivariantLayer(rank=2)": _layer(EquivariantLayer, relu=True, rank=2),
    "InvariantLayer": _layer(InvariantLayer),
    "InvariantLayer(rank=2)": _layer(InvariantLayer, rank=2),
    "HeadAwareLayer": Subject(
        lambda: _seen(HeadAwareLayer(SPEC, outputs=3, generator=generator(5))), _weights
    ),
    "Standardised": Subject(lambda: _seen(Standardised(4)), numbers(3, 4)),
    "NodeEncoder": Subject(lambda: _seen(NodeEncoder(4, 3, generator(5))), numbers(5, 4)),
    "Messages": Subject(
        lambda: _seen(Messages(2, 3, generator(5))),
        lambda n, seed: (
            *numbers(4, 3)(n, seed),
            *numbers(5, 3)(n, seed + 1),
            *numbers(4, 5, 2)(n, seed + 2),
        ),
    ),
    "Encoder": _on_blocks(
        lambda spec: Encoder(spec, blocks=2, channels=[3], generator=generator(5))
    ),
    "TransformerNFN": Subject(
        lambda: _seen(
            TransformerNFN(NFNConfig.of(SPEC, blocks=2, embedding=28, classifier=43, seed=5))
        ),
        _nets,
    ),
    "TransformerNFN(rank=2)": _on_blocks(
        lambda spec: TransformerNFN(NFNConfig.of(spec, blocks=2, rank=2, seed=5)), NetBatch
    ),
    "FlatMLP": Subject(lambda: _seen(FlatMLP(FlatMLPConfig.of(nets(1), seed=5))), _nets),
    "StatNN": Subject(lambda: _seen(StatNN(StatNNConfig.of(nets(1), seed=5))), _nets),
    "ProbeNet": Subject(
        lambda: _seen(ProbeNet(ProbeNetConfig.of(nets(1), tokens=TOKENS, seed=5))), _nets
    ),
    "ProbeNet(generator=(2, 4))": Subject(
        lambda: _seen(
            ProbeNet(ProbeNetConfig.of(nets(1), tokens=TOKENS, generator=(2, 4), seed=5))
        ),
        _nets,
    ),
    "TokenNet": Subject(
        lambda: _seen(TokenNet(TokenNetConfig.of(nets(1), numbers=8, width=8, seed=5))), _nets
    ),
    "HeadNet": Subject(lambda: _seen(HeadNet(HeadNetConfig.of(nets(1), seed=5))), _nets),
    "AgreementProbes": Subject(
        lambda: _seen(AgreementProbes(AgreementConfig.of(nets(1), tokens=TOKENS, seed=5))), _nets
    ),
    "pointwise_relu": Subject(lambda: pointwise_relu, _weights),
    "run_reference": Subject(
        lambda: _reference,
        _weights,
        Subject(lambda: _reference, lambda n, seed: (weights(n, seed, SMALL),)),
    ),
    "head_values and others": Subject(lambda: _unit_values, _weights),
    "pooled": Subject(lambda: pooled, numbers(4, 3)),
    "net_graph": Subject(lambda: net_graph, _nets),
    "graph_features": Subject(lambda: graph_features, _nets),
    "tensor_statistics": Subject(lambda: tensor_statistics, numbers(6, 4)),
    "WeightBatch.product": Subject(lambda: lambda batch: batch.product("QK"), _weights),
    "WeightBatch.flat": Subject(
        lambda: lambda batch: WeightBatch.from_flat(SPEC, batch.flat(), 2), _weights
    ),
    "WeightBatch.scaled": Subject(
        lambda: lambda batch: batch.scaled(dict.fromkeys(batch.tensors, 2.0)), _weights
    ),
    "NetBatch.flat": Subject(lambda: lambda net: net.flat("embedding"), _nets),
    "apply_blocks": Subject(lambda: apply_blocks, _with_tokens),
    "apply_net": Subject(
        lambda: lambda net, tokens: apply_net(net, tokens.unsqueeze(1)), _net_with_tokens
    ),
    "apply_paper_net": Subject(lambda: apply_paper_net, _net_with_tokens),
    "balance": Subject(lambda: lambda batch: balance(batch).weights, _weights),
    "fold_norms": Subject(lambda: _folded, lambda n, seed: (_gelu(n, seed),)),
    "keep_norms": Subject(lambda: _kept, lambda n, seed: (_gelu(n, seed),)),
    "for_layers": Subject(lambda: for_layers, lambda n, seed: (_gelu(n, seed),)),
    "ranking_loss": Subject(lambda: _ranked, numbers(2)),
    "layer_norm": Subject(lambda: partial(layer_norm, eps=1e-5), numbers(3, 4)),
    "rms_norm": Subject(lambda: partial(rms_norm, eps=1e-5), numbers(3, 4)),
    "GroupElement(batch)": Subject(lambda: lambda g, batch: g(batch), _moved),
    "GroupElement @ other": Subject(lambda: lambda g, h: g @ h, _two_elements),
    "GroupElement.inverse": Subject(lambda: lambda g, _: g.inverse(), _two_elements),
}

#: Whose code torch.compile traces as a part of another, so that it is not asked twice.
COMPILED_WITH = {
    "TransformerNFN(rank=2)": "EquivariantLayer(rank=2)",
    "Encoder": "TransformerNFN",
    "net_graph": "HeadNet",
    "graph_features": "HeadNet",
    "head_values and others": "HeadNet",
    "apply_blocks": "ProbeNet",
    "apply_net": "ProbeNet",
    "apply_paper_net": "ProbeNet",
}

#: Public names that take no tensors of networks, or are shown through others.
ELSEWHERE = {
    "are blocks, kinds, errors, settings or tables": (
        "ACTIVATIONS BLOCKS GATED GLOSSARY GROUPED PAPER RELU RESERVED RESIDUAL RESIDUAL_NO_BO "
        "ROTARY Axis Block BlockFunction BlockSpec DeclarationError Factor Index Inputs Kind "
        "NormPlace Picks Product Rope ShapeError StreamKind UnknownFunctionError compose declare "
        "free linear parse_indices permuted rotary scaled signed KINDS KindAction MatrixSampler "
        "CONSTANT DEFAULT_BUDGET INVARIANT ROW_VALUES BudgetError Row equivariant_rows "
        "invariant_rows LOSSES Layout NormChoice Norms TIMM_VIT TORCH_ENCODER "
        "AgreementConfig FlatMLPConfig HeadNetConfig ModelFileError NFNConfig "
        "ProbeNetConfig StatNNConfig TokenNetConfig"
    ),
    "are parts of what a block computes, shown by apply_blocks": (
        "Attention ClassToken CrossAttention Embedding Experts FixedPositions GatedMlp Half Mlp "
        "Part PatchPositions Patches Positions Projection Scaled Sound Table TokenTypes Unit "
        "Vectors Widened Words sine_positions unit_neurons"
    ),
    "are shown by another line": (
        "Balanced AxisView Container NetBatch WeightBatch GroupElement RowLayer PartsModel "
        "WeightModel Units picked_networks head_values neuron_values head_to_neuron_values "
        "row_to_head_values cosine nonzero_square units_of recomputed split_bias "
        "join_bias check_choice"
    ),
    "draw, save, load or judge": (
        "random_element conditioned uniform assert_equivariant assert_invariant relative_error "
        "seeded_linear load_model save_model register_model"
    ),
}
