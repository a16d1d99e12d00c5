"""The models of the benchmark, by name."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.agreement import AgreementPredictor, AgreementSettings
from transformer_nfn.bench.models.featured import FeaturePredictor
from transformer_nfn.bench.models.fittings import AUTHORS, chosen
from transformer_nfn.bench.models.installed import find_entries, load_entry
from transformer_nfn.bench.models.neural import Fitting, NeuralPredictor
from transformer_nfn.bench.models.predictor import Predictor
from transformer_nfn.bench.models.queried import QueryPredictor, Score
from transformer_nfn.bench.models.trees import PRESETS, Library, TreePredictor, TreeSettings
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

#: Makes a predictor from its settings, a seed, the tokens of a network's input, and a device.
Maker = Callable[..., Predictor]
#: What a model is given of a network, and of the world beside it.
Tier = Literal["weights", "queries", "inputs", "labels", "hyperparameters"]
TIERS: Mapping[Tier, str] = MappingProxyType(
    {
        "weights": "weights only",
        "queries": "weights, and answers of the network to made-up inputs",
        "inputs": "unlabelled inputs of the task",
        "labels": "labelled inputs of the task",
        "hyperparameters": "no weights: how the network was trained",
    }
)
#: What of a network a model reads, and so which other networks it can read once it is fitted.
Reads = Literal["blocks", "any blocks", "tensors", "all weights", "answers", "hyperparameters"]
Parts = tuple[Literal["encoder", "embedding", "classifier"], ...]
ALL_PARTS: Parts = ("encoder", "embedding", "classifier")


@dataclass(frozen=True)
class Kind:
    """A model of the benchmark: what it is called and how one is made.

    Attributes:
        title: In tables.
        what: In one sentence.
        origin: The paper's own model, one of its baselines, a rival from another paper, a control,
            ours, a variant of the paper's model, or a user's own, see `register_predictor`.
        tier: What it is given: models are compared within a tier.
        invariant: Whether the paper's group leaves its predictions as they are, by construction.
        settings: All that determines a fit, beside data and seed; part of a cell's identity.
        make: From the settings, a seed, the tokens of a net's input, and a device.
        needs: Packages of the extra `bench` that a fit imports.
        reads: Blocks of the sizes it was fitted to or of any; statistics of tensors, or all
            weights in one row, for which no blocks need be known; or no weights at all, only
            answers to inputs or hyperparameters.
    """

    title: str
    what: str
    origin: Literal["published", "baseline", "rival", "control", "ours", "variant", "own"]
    tier: Tier
    invariant: bool
    settings: Mapping[str, Any]
    make: Maker
    needs: tuple[str, ...] = ()
    reads: Reads = "blocks"

    @property
    def is_shown_inputs(self) -> bool:
        """Whether a network is run on inputs of its task, which have to be there."""
        return self.tier in ("inputs", "labels")

    def predictor(self, *, seed: int, tokens: int, device: str = "cpu") -> Predictor:
        """One that is not fitted yet."""
        return self.make(seed=seed, tokens=tokens, device=device, **self.settings)


def _nfn(
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


def _mlp(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    return lambda net: FlatMLP(FlatMLPConfig.of(net, seed=seed))


def _statnn(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    return lambda net: StatNN(StatNNConfig.of(net, seed=seed))


def _probes(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    return lambda net: ProbeNet(ProbeNetConfig.of(net, tokens=tokens, probes=48, seed=seed))


def _probegen(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    return lambda net: ProbeNet(
        ProbeNetConfig.of(net, tokens=tokens, probes=48, generator=(32, 64, 64), seed=seed)
    )


def _tokens(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    return lambda net: TokenNet(TokenNetConfig.of(net, seed=seed))


def _heads(seed: int, tokens: int) -> Callable[[NetBatch], WeightModel]:
    return lambda net: HeadNet(HeadNetConfig.of(net, positions=tokens, seed=seed))


def _neural(module: Callable[[int, int], Callable[[NetBatch], WeightModel]]) -> Maker:
    """How a predictor of these modules is made."""

    def make(*, seed: int, tokens: int, device: str, fitting: dict[str, Any]) -> Predictor:
        trained = Fitting(**fitting)
        return NeuralPredictor(module(seed, tokens), fitting=trained, seed=seed, device=device)

    return make


def _fitted(model: str) -> dict[str, Any]:
    """The settings of a neural model: how it is trained."""
    return {"fitting": chosen(model).model_dump()}


def _agreement(*, seed: int, tokens: int, device: str, **settings: Any) -> Predictor:
    return AgreementPredictor(
        AgreementSettings(**settings), seed=seed, tokens=tokens, device=device
    )


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
    needs = ("sklearn",) if library == "forest" else (library,)
    return Kind(title, what, "baseline", "weights", False, settings, _trees, needs, "all weights")


def _features(
    *, seed: int, tokens: int, device: str, features: str, trees: dict[str, Any]
) -> Predictor:
    return FeaturePredictor(features, seed, TreeSettings(**trees))


def _control(
    features: str, title: str, what: str, invariant: bool, reads: Reads = "blocks"
) -> Kind:
    what = f"boosted trees and a kernel on {what}"
    settings = {"features": features, "trees": PRESETS["readers"].model_dump()}
    needs = ("lightgbm",)
    return Kind(title, what, "control", "weights", invariant, settings, _features, needs, reads)


def _queries(*, seed: int, tokens: int, device: str, score: Score, inputs: int) -> Predictor:
    return QueryPredictor(score, inputs, seed)


def _asked(score: Score, inputs: int, title: str, what: str) -> Kind:
    tier: Tier = "labels" if score == "labels" else "inputs"
    settings = {"score": score, "inputs": inputs}
    return Kind(title, what, "control", tier, True, settings, _queries)


def _variant(title: str, what: str, **settings: Any) -> Kind:
    return Kind(title, what, "variant", "weights", True, {**_fitted("nfn"), **settings}, _nfn)


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
        "weights",
        True,
        _fitted("nfn"),
        _nfn,
    ),
    "nfn-authors": Kind(
        "Transformer-NFN, authors' schedule",
        "the same model, trained as in the authors' code: no scales, 100 epochs, the last one",
        "published",
        "weights",
        True,
        {"fitting": AUTHORS.model_dump()},
        _nfn,
    ),
    "mlp": Kind(
        "MLP",
        "the paper's MLP on all weights in one row",
        "baseline",
        "weights",
        False,
        _fitted("mlp"),
        _neural(_mlp),
    ),
    "statnn": Kind(
        "STATNN",
        "an MLP on statistics of each tensor, the paper's",
        "baseline",
        "weights",
        False,
        _fitted("statnn"),
        _neural(_statnn),
    ),
    "xgboost": _paper_trees("xgboost", "XGBoost"),
    "lightgbm": _paper_trees("lightgbm", "LightGBM"),
    "forest": _paper_trees("forest", "Random forest"),
    "tokens": Kind(
        "Weight tokens",
        "weights as a sequence of tokens for a small transformer, after SANE, but not pretrained",
        "rival",
        "weights",
        False,
        _fitted("tokens"),
        _neural(_tokens),
    ),
    "statistics": _control(
        "statistics", "Statistics", "mean, variance and quantiles of each tensor", False, "tensors"
    ),
    "invariants": _control(
        "invariants",
        "Invariants",
        "what the group leaves as it is: spectra of QKᵀ and VO, norms of neurons",
        True,
    ),
    "blockwise": replace(
        _control(
            "blockwise",
            "Block features",
            "invariants of blocks that do not depend on a net's sizes",
            True,
            "any blocks",
        ),
        origin="ours",
    ),
    "heads": Kind(
        "Graph of heads",
        "heads and neurons as nodes, products along the net as edges; messages, then an MLP",
        "ours",
        "weights",
        True,
        _fitted("heads"),
        _neural(_heads),
    ),
    "probes": Kind(
        "Learned probes",
        "inputs learned by gradient go through the net, an MLP reads its answers",
        "control",
        "queries",
        True,
        _fitted("probes"),
        _neural(_probes),
        reads="answers",
    ),
    "probegen": Kind(
        "Generated probes",
        "inputs that a deep linear generator makes go through the net, an MLP reads its answers, "
        "after ProbeGen",
        "rival",
        "queries",
        True,
        _fitted("probegen"),
        _neural(_probegen),
        reads="answers",
    ),
    "agreement": Kind(
        "Agreement probes",
        "how a net answers probes on which good nets agree; trees and a kernel read it",
        "ours",
        "queries",
        True,
        AgreementSettings().model_dump(),
        _agreement,
        ("lightgbm",),
        "answers",
    ),
    "agreement-noise": Kind(
        "Agreement on noise",
        "the same with raw noise instead of learned probes",
        "ours",
        "queries",
        True,
        AgreementSettings(steps=0).model_dump(),
        _agreement,
        ("lightgbm",),
        "answers",
    ),
    "agreement-invariants": Kind(
        "Agreement probes and invariants",
        "answers to agreement probes and the invariants; trees and a kernel read both",
        "ours",
        "queries",
        True,
        AgreementSettings(beside=("invariants",)).model_dump(),
        _agreement,
        ("lightgbm",),
    ),
    "confidence": _asked(
        "confidence", 1000, "Confidence", "how sure a net is of 1,000 inputs without labels"
    ),
    "consensus": _asked(
        "consensus",
        1000,
        "Consensus",
        "how often it agrees on 1,000 inputs without labels with the best training nets",
    ),
    "labels-50": _asked("labels", 50, "50 labels", "accuracy on 50 inputs with labels"),
    "labels-200": _asked("labels", 200, "200 labels", "accuracy on 200 inputs with labels"),
    "hyperparameters": replace(
        _control(
            "hyperparameters",
            "Hyperparameters",
            "how the net was trained and how long",
            True,
            "hyperparameters",
        ),
        tier="hyperparameters",
    ),
    "nfn-3": _channels(3),
    "nfn-5": _channels(5),
    "nfn-15": _channels(15),
    "nfn-3-3": _channels(3, 3),
    "nfn-5-5": _channels(5, 5),
    "nfn-10-10": _channels(10, 10),
    "nfn-15-15": _channels(15, 15),
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
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


def main_models() -> tuple[str, ...]:
    """What the main tables compare: all but the variants of the paper's model.

    Raises:
        BenchError: If a model of an installed package is broken.
    """
    load_installed()
    return tuple(name for name, kind in MODELS.items() if kind.origin != "variant")


def register_predictor(name: str, kind: Kind) -> None:
    """Let the benchmark compute a model of one's own and show it in its reports.

    It is known to this process alone: cells of it run in this process, not on Ray, and a report
    without it leaves its cells out and says so. A package that names its `Kind` as an entry point
    of `transformer_nfn.predictors` is known wherever it is installed. Of two calls with one name
    the later counts.

    Args:
        name: Small letters, digits and hyphens.
        kind: With the origin "own", and settings that can be written as JSON. A change of the
            model has to change them, or finished cells of the older one are taken for its own.

    Raises:
        BenchError: If the name is none or one of ours, or the settings are no JSON.

    Example:
        >>> from transformer_nfn.bench.models.trees import TreePredictor
        >>> def make(*, seed, tokens, device, leaves):
        ...     settings = TreeSettings(max_leaves=leaves, min_rows=5)
        ...     return TreePredictor("forest", "statistics", settings, seed)
        >>> kind = Kind("My forest", "few leaves", "own", "weights", False, {"leaves": 8}, make)
        >>> register_predictor("my-forest", kind)
        >>> "my-forest" in main_models()
        True
        >>> del MODELS["my-forest"]
    """
    check_new_name(name)
    if kind.origin != "own":
        raise BenchError(f'the origin of a model of one\'s own is "own", got {kind.origin!r}')
    try:
        json.dumps(dict(kind.settings))
    except (TypeError, ValueError) as error:
        raise BenchError(f"the settings of {name!r} cannot be written as JSON: {error}") from None
    MODELS[name] = kind


@cache
def load_installed() -> frozenset[str]:
    """Register the models of other installed packages, once in a process; their names.

    Raises:
        BenchError: If one of them is broken, saying which.
    """
    loaded = set()
    for name, entry in find_entries().items():
        kind = load_entry(entry)
        if not isinstance(kind, Kind):
            raise BenchError(
                f"{entry.value} of an installed package is no Kind but a {type(kind).__name__}: "
                f"the model {name!r:.60} cannot be used. Mend or uninstall that package"
            )
        if name in MODELS and MODELS[name].origin == "own":
            continue  # this program has registered its own
        try:
            register_predictor(name, kind)
        except BenchError as error:
            raise BenchError(f"{entry.value} of an installed package: {error}") from None
        loaded.add(name)
    return frozenset(loaded)


def check_new_name(name: str) -> None:
    """Refuse what cannot be the name of a model of one's own.

    Raises:
        BenchError: If it is no name, or one of ours.
    """
    if not _NAME.fullmatch(name):
        raise BenchError(f"a model's name has small letters, digits and '-', got {name[:60]!r}")
    if name in MODELS and MODELS[name].origin != "own":
        raise BenchError(f"{name!r} is a model of the benchmark: choose another name")


@contextmanager
def shown_beside(kinds: Mapping[str, Kind]) -> Iterator[None]:
    """Let reports name models that cannot be fitted here, for as long as one is written.

    Args:
        kinds: By names that `MODELS` does not have.
    """
    MODELS.update(kinds)
    try:
        yield
    finally:
        for name in kinds:
            del MODELS[name]


def check_installed(models: Iterable[str]) -> None:
    """Refuse models whose packages are missing, before the first fit.

    Raises:
        BenchError: If one is, saying what to install.
    """
    for name in dict.fromkeys(models):
        for package in model_named(name).needs:
            if find_spec(package) is None:
                raise BenchError(
                    f"{name} needs {package}: `pip install 'transformer-nfn[bench]'`, or leave it "
                    "out with --models"
                )


def model_named(name: str) -> Kind:
    """A model by its name.

    Raises:
        BenchError: If there is none.
    """
    kind = find_model(name)
    if kind is None:
        raise BenchError(f"no model {name!r}; there are {', '.join(MODELS)}")
    return kind


def find_model(name: str) -> Kind | None:
    """The same, or None if there is none; other packages are imported only for what is not ours.

    Raises:
        BenchError: If it is not ours, and a model of an installed package is broken.
    """
    if name not in MODELS:
        load_installed()
    return MODELS.get(name)
