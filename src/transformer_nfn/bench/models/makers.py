"""How the models of the benchmark are made from their settings."""

from collections.abc import Callable
from typing import Any, Literal

from transformer_nfn.bench.models.agreement import AgreementPredictor, AgreementSettings
from transformer_nfn.bench.models.featured import FeaturePredictor
from transformer_nfn.bench.models.fittings import CHOSEN, USUAL, Searched, chosen
from transformer_nfn.bench.models.kind import Kind, Maker, Reads, Tier
from transformer_nfn.bench.models.neural import Fitting, NeuralPredictor
from transformer_nfn.bench.models.predictor import Predictor
from transformer_nfn.bench.models.queried import QueryPredictor, Score
from transformer_nfn.bench.models.regression.trees import (
    PRESETS,
    Library,
    TreePredictor,
    TreeSettings,
)
from transformer_nfn.models import (
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
    WeightModel,
)
from transformer_nfn.space import NetBatch

Parts = tuple[Literal["encoder", "embedding", "classifier"], ...]
ALL_PARTS: Parts = ("encoder", "embedding", "classifier")


def make_nfn(
    *,
    seed: int,
    tokens: int,
    device: str,
    fitting: dict[str, Any],
    channels: tuple[int, ...] = (10,),
    rank: int | None = None,
    parts: Parts = ALL_PARTS,
    balanced: bool = False,
) -> Predictor:
    """Make the paper's model."""

    def make(net: NetBatch) -> TransformerNFN:
        sizes = {
            part: net.flat(part).shape[1]
            for part in ("embedding", "classifier")
            if part in parts and getattr(net, part)
        }
        return TransformerNFN(
            NFNConfig.of(
                net.blocks.spec,
                blocks=net.blocks.blocks,
                channels=channels if "encoder" in parts else None,
                rank=rank,
                seed=seed,
                **sizes,
            )
        )

    trained = Fitting(**fitting)
    return NeuralPredictor(make, fitting=trained, seed=seed, balanced=balanced, device=device)


def flat_mlp(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    """Make the paper's MLP."""
    return lambda net: FlatMLP(FlatMLPConfig.of(net, seed=seed))


def statnn(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    """Make the paper's STATNN."""
    return lambda net: StatNN(StatNNConfig.of(net, seed=seed))


def learned_probes(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    """Make probes that are learned."""
    return lambda net: ProbeNet(ProbeNetConfig.of(net, tokens=tokens, probes=48, seed=seed))


def generated_probes(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    """Make probes that a generator makes."""
    return lambda net: ProbeNet(
        ProbeNetConfig.of(net, tokens=tokens, probes=48, generator=(32, 64, 64), seed=seed)
    )


def weight_tokens(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    """Make a transformer that reads weights as tokens."""
    return lambda net: TokenNet(TokenNetConfig.of(net, seed=seed))


def graph_of_heads(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    """Make a graph of heads and neurons."""
    return lambda net: HeadNet(HeadNetConfig.of(net, positions=tokens, seed=seed))


def neural(module: Callable[[int, int], Callable[[NetBatch], WeightModel]]) -> Maker:
    """How a predictor of these modules is made."""

    def make(*, seed: int, tokens: int, device: str, fitting: dict[str, Any]) -> Predictor:
        trained = Fitting(**fitting)
        return NeuralPredictor(module(seed, tokens), fitting=trained, seed=seed, device=device)

    return make


def fitted(model: str) -> dict[str, Any]:
    """The settings of a neural model: how it is trained."""
    return {"fitting": chosen(model).model_dump()}


def searched(model: str) -> dict[Searched, dict[str, Any]]:
    """The settings of a neural model on networks that had a search of their own."""
    return {
        where: {"fitting": chosen(model, where).model_dump()}
        for where, models in CHOSEN.items()
        if where != USUAL and model in models
    }


def make_agreement(*, seed: int, tokens: int, device: str, **settings: Any) -> Predictor:
    """Make agreement probes."""
    return AgreementPredictor(
        AgreementSettings(**settings), seed=seed, tokens=tokens, device=device
    )


def _make_trees(
    *,
    seed: int,
    tokens: int,
    device: str,
    library: Library,
    features: str,
    settings: dict[str, Any],
) -> Predictor:
    return TreePredictor(library, features, TreeSettings(**settings), seed)


def paper_trees(library: str, title: str) -> Kind:
    """Trees as in the paper: on all weights in one row."""
    settings = {
        "library": library,
        "features": "weights",
        "settings": PRESETS["appendix"].model_dump(),
    }
    what = f"{title} on all weights in one row, with the paper's depth and leaves"
    needs = ("sklearn",) if library == "forest" else (library,)
    return Kind(
        title, what, "baseline", "weights", False, settings, _make_trees, needs, "all weights"
    )


def _make_features(
    *, seed: int, tokens: int, device: str, features: str, trees: dict[str, Any]
) -> Predictor:
    return FeaturePredictor(features, seed, TreeSettings(**trees))


def control(features: str, title: str, what: str, invariant: bool, reads: Reads = "blocks") -> Kind:
    """Trees and a kernel on features."""
    what = f"boosted trees and a kernel on {what}"
    settings = {"features": features, "trees": PRESETS["readers"].model_dump()}
    needs = ("lightgbm",)
    return Kind(
        title, what, "control", "weights", invariant, settings, _make_features, needs, reads
    )


def _make_queries(*, seed: int, tokens: int, device: str, score: Score, inputs: int) -> Predictor:
    return QueryPredictor(score, inputs, seed)


def asked(score: Score, inputs: int, title: str, what: str) -> Kind:
    """A score of the answers to inputs of the task."""
    tier: Tier = "labels" if score == "labels" else "inputs"
    settings = {"score": score, "inputs": inputs}
    return Kind(title, what, "control", tier, True, settings, _make_queries)


def variant(title: str, what: str, **settings: Any) -> Kind:
    """The paper's model with other settings."""
    whole = {**fitted("nfn"), **settings}
    return Kind(title, what, "variant", "weights", True, whole, make_nfn, special=searched("nfn"))


def with_channels(*channels: int) -> Kind:
    """The paper's model with other equivariant layers."""
    shown = f"[{', '.join(map(str, channels))}]"
    return variant(f"Transformer-NFN {shown}", f"equivariant layers {shown}", channels=channels)


def with_rank(rank: int) -> Kind:
    """The paper's model with coefficients of low rank."""
    what = f"coefficients with two or more free axes are sums of {rank} products"
    return variant(f"Transformer-NFN, rank {rank}", what, rank=rank)


def reading_parts(*parts: Literal["encoder", "embedding", "classifier"]) -> Kind:
    """The paper's model, reading some parts of a network only."""
    shown = " + ".join(parts)
    return variant(f"Transformer-NFN, {shown}", f"reads only {shown}", parts=parts)
