"""The models of the benchmark, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.predictors.examined import ExamPredictor, ExamSettings
from transformer_nfn.bench.predictors.neural import Fitting, NeuralPredictor
from transformer_nfn.bench.predictors.predictor import Predictor
from transformer_nfn.bench.predictors.trees import PRESETS, Library, TreePredictor, TreeSettings
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
    TransformerNFN,
)
from transformer_nfn.space import NetBatch

Parts = tuple[Literal["encoder", "embedding", "classifier"], ...]
ALL_PARTS: Parts = ("encoder", "embedding", "classifier")


@dataclass(frozen=True)
class Kind:
    """A model of the benchmark: what it is called and how one is made.

    Attributes:
        title: In tables.
        what: In one sentence.
        origin: The paper's own model, one of its baselines, a control, ours, or a variant of the
            paper's model.
        invariant: Whether the paper's group leaves its predictions as they are, by construction.
        settings: All that determines a fit, beside data and seed; part of a cell's identity.
        make: From the settings, a seed, the tokens of a net's input, and a device.
    """

    title: str
    what: str
    origin: Literal["published", "baseline", "control", "ours", "variant"]
    invariant: bool
    settings: Mapping[str, Any]
    make: Callable[..., Predictor]

    def predictor(self, *, seed: int, tokens: int, device: str = "cpu") -> Predictor:
        """One that is not fitted yet."""
        return self.make(seed=seed, tokens=tokens, device=device, **self.settings)


def _nfn(
    *,
    seed: int,
    tokens: int,
    device: str,
    channels: tuple[int, ...] = (10,),
    rank: int | None = None,
    parts: Parts = ALL_PARTS,
    balanced: bool = False,
    epochs: int = 50,
) -> Predictor:
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

    return _neural(make, seed, device, epochs, balanced)


def _mlp(*, seed: int, tokens: int, device: str, epochs: int = 50) -> Predictor:
    return _neural(lambda net: FlatMLP(FlatMLPConfig.of(net, seed=seed)), seed, device, epochs)


def _statnn(*, seed: int, tokens: int, device: str, epochs: int = 50) -> Predictor:
    return _neural(lambda net: StatNN(StatNNConfig.of(net, seed=seed)), seed, device, epochs)


def _probes(
    *, seed: int, tokens: int, device: str, probes: int = 48, epochs: int = 50
) -> Predictor:
    return _neural(
        lambda net: ProbeNet(ProbeNetConfig.of(net, tokens=tokens, probes=probes, seed=seed)),
        seed,
        device,
        epochs,
    )


def _exam(*, seed: int, tokens: int, device: str, **settings: Any) -> Predictor:
    return ExamPredictor(ExamSettings(**settings), seed=seed, tokens=tokens, device=device)


def _heads(*, seed: int, tokens: int, device: str, epochs: int = 30) -> Predictor:
    def make(net: NetBatch) -> HeadNet:
        return HeadNet(HeadNetConfig.of(net, positions=tokens, seed=seed))

    fitting = Fitting(batch=32, lr=0.003, epochs=epochs, warmup=min(3, epochs // 5))
    return NeuralPredictor(make, fitting=fitting, seed=seed, device=device)


def _neural(
    make: Callable[[NetBatch], Any], seed: int, device: str, epochs: int, balanced: bool = False
) -> Predictor:
    warmup = min(10, epochs // 5)  # the paper's 10 of 50
    fitting = Fitting(epochs=epochs, warmup=warmup)
    return NeuralPredictor(make, fitting=fitting, seed=seed, balanced=balanced, device=device)


def _trees(
    *,
    seed: int,
    tokens: int,
    device: str,
    library: Library,
    features: str,
    settings: dict[str, Any],
) -> Predictor:
    return TreePredictor(library, features, TreeSettings(**settings), seed)


def _paper_trees(library: str, title: str) -> Kind:
    settings = {
        "library": library,
        "features": "weights",
        "settings": PRESETS["appendix"].model_dump(),
    }
    what = f"{title} on all weights in one row, with the paper's settings"
    return Kind(title, what, "baseline", False, settings, _trees)


def _control(features: str, title: str, what: str, invariant: bool) -> Kind:
    settings = {
        "library": "lightgbm",
        "features": features,
        "settings": PRESETS["strong"].model_dump(),
    }
    return Kind(title, what, "control", invariant, settings, _trees)


def _variant(title: str, what: str, **settings: Any) -> Kind:
    return Kind(title, what, "variant", True, settings, _nfn)


def _channels(*channels: int) -> Kind:
    shown = f"[{', '.join(map(str, channels))}]"
    return _variant(f"Transformer-NFN {shown}", f"equivariant layers {shown}", channels=channels)


def _rank(rank: int) -> Kind:
    what = f"coefficients with two or more free axes are sums of {rank} products"
    return _variant(f"Transformer-NFN, rank {rank}", what, rank=rank)


def _parts(*parts: Literal["encoder", "embedding", "classifier"]) -> Kind:
    shown = " + ".join(parts)
    return _variant(f"Transformer-NFN, {shown}", f"reads only {shown}", parts=parts)


MODELS: dict[str, Kind] = {
    "nfn": Kind(
        "Transformer-NFN",
        "the paper's model: one equivariant layer of 10 channels, invariant layer, MLP",
        "published",
        True,
        {},
        _nfn,
    ),
    "mlp": Kind("MLP", "the paper's MLP on all weights in one row", "baseline", False, {}, _mlp),
    "statnn": Kind(
        "STATNN", "an MLP on statistics of each tensor, the paper's", "baseline", False, {}, _statnn
    ),
    "xgboost": _paper_trees("xgboost", "XGBoost"),
    "lightgbm": _paper_trees("lightgbm", "LightGBM"),
    "forest": _paper_trees("forest", "Random forest"),
    "statistics": _control(
        "statistics",
        "LightGBM on statistics",
        "boosted trees on mean, variance and quantiles of each tensor",
        False,
    ),
    "invariants": _control(
        "invariants",
        "LightGBM on invariants",
        "boosted trees on what the group leaves as it is: spectra of QKᵀ and VO, norms of neurons",
        True,
    ),
    "blockwise": replace(
        _control(
            "blockwise",
            "LightGBM on block features",
            "boosted trees on invariants of blocks that do not depend on a net's sizes",
            True,
        ),
        origin="ours",
    ),
    "hyperparameters": _control(
        "hyperparameters",
        "LightGBM on hyperparameters",
        "boosted trees that see no weight at all, only how the net was trained and how long",
        True,
    ),
    "probes": Kind(
        "Learned probes",
        "inputs learned by gradient go through the net, an MLP reads its answers",
        "control",
        True,
        {},
        _probes,
    ),
    "heads": Kind(
        "Graph of heads",
        "heads and neurons as nodes, products along the net as edges; messages, then an MLP",
        "ours",
        True,
        {},
        _heads,
    ),
    "exam": Kind(
        "Exam",
        "how a net answers learned questions on which good nets agree; trees and a kernel read it",
        "ours",
        True,
        ExamSettings().model_dump(),
        _exam,
    ),
    "exam-invariants": Kind(
        "Exam and invariants",
        "the exam's answers and the invariants; trees and a kernel read both",
        "ours",
        True,
        ExamSettings(beside=("invariants",)).model_dump(),
        _exam,
    ),
    "nfn-3": _channels(3),
    "nfn-3-3": _channels(3, 3),
    "nfn-10-10": _channels(10, 10),
    "nfn-rank-1": _rank(1),
    "nfn-rank-2": _rank(2),
    "nfn-rank-4": _rank(4),
    "nfn-rank-8": _rank(8),
    "nfn-encoder": _parts("encoder"),
    "nfn-embedding": _parts("embedding"),
    "nfn-classifier": _parts("classifier"),
    "nfn-embedding-classifier": _parts("embedding", "classifier"),
    "nfn-encoder-classifier": _parts("encoder", "classifier"),
    "nfn-encoder-embedding": _parts("encoder", "embedding"),
    "nfn-balanced": _variant("Transformer-NFN, balanced", "reads balanced heads", balanced=True),
}
#: What the main tables compare.
MAIN = tuple(name for name, kind in MODELS.items() if kind.origin != "variant")


def model_named(name: str) -> Kind:
    """A model by its name.

    Raises:
        BenchError: If there is none.
    """
    if name not in MODELS:
        raise BenchError(f"no model {name!r}; there are {', '.join(MODELS)}")
    return MODELS[name]
