"""The models of the benchmark, by name."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.util import find_spec

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.agreement import AgreementSettings
from transformer_nfn.bench.models.fittings import AUTHORS
from transformer_nfn.bench.models.installed import find_entries, load_entry
from transformer_nfn.bench.models.kind import MODEL_NAME, Kind
from transformer_nfn.bench.models.makers import (
    asked,
    control,
    fitted,
    flat_mlp,
    generated_probes,
    graph_of_heads,
    learned_probes,
    make_agreement,
    make_nfn,
    neural,
    paper_trees,
    reading_parts,
    searched,
    statnn,
    variant,
    weight_tokens,
    with_channels,
    with_rank,
)

MODELS: dict[str, Kind] = {
    "nfn": Kind(
        "Transformer-NFN",
        "the paper's model: one equivariant layer of 10 channels, invariant layer, MLP",
        "published",
        "weights",
        True,
        fitted("nfn"),
        make_nfn,
        special=searched("nfn"),
    ),
    "nfn-authors": Kind(
        "Transformer-NFN, authors' schedule",
        "the same model, trained as in the authors' code: no scales, 100 epochs, the last one",
        "published",
        "weights",
        True,
        {"fitting": AUTHORS.model_dump()},
        make_nfn,
    ),
    "mlp": Kind(
        "MLP",
        "the paper's MLP on all weights in one row",
        "baseline",
        "weights",
        False,
        fitted("mlp"),
        neural(flat_mlp),
        special=searched("mlp"),
    ),
    "statnn": Kind(
        "STATNN",
        "an MLP on statistics of each tensor, the paper's",
        "baseline",
        "weights",
        False,
        fitted("statnn"),
        neural(statnn),
        special=searched("statnn"),
    ),
    "xgboost": paper_trees("xgboost", "XGBoost"),
    "lightgbm": paper_trees("lightgbm", "LightGBM"),
    "forest": paper_trees("forest", "Random forest"),
    "tokens": Kind(
        "Weight tokens",
        "weights as a sequence of tokens for a small transformer, after SANE, but not pretrained",
        "rival",
        "weights",
        False,
        fitted("tokens"),
        neural(weight_tokens),
        special=searched("tokens"),
    ),
    "statistics": control(
        "statistics", "Statistics", "mean, variance and quantiles of each tensor", False, "tensors"
    ),
    "invariants": control(
        "invariants",
        "Invariants",
        "what the group leaves as it is: spectra of QKᵀ and VO, norms of neurons",
        True,
    ),
    "blockwise": replace(
        control(
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
        fitted("heads"),
        neural(graph_of_heads),
        special=searched("heads"),
    ),
    "probes": Kind(
        "Learned probes",
        "inputs learned by gradient go through the net, an MLP reads its answers",
        "control",
        "queries",
        True,
        fitted("probes"),
        neural(learned_probes),
        special=searched("probes"),
        reads="answers",
    ),
    "probegen": Kind(
        "Generated probes",
        "inputs that a deep linear generator makes go through the net, an MLP reads its answers, "
        "after ProbeGen",
        "rival",
        "queries",
        True,
        fitted("probegen"),
        neural(generated_probes),
        special=searched("probegen"),
        reads="answers",
    ),
    "agreement": Kind(
        "Agreement probes",
        "how a net answers probes on which good nets agree; trees and a kernel read it",
        "ours",
        "queries",
        True,
        AgreementSettings().model_dump(),
        make_agreement,
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
        make_agreement,
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
        make_agreement,
        ("lightgbm",),
    ),
    "confidence": asked(
        "confidence", 1000, "Confidence", "how sure a net is of 1,000 inputs without labels"
    ),
    "consensus": asked(
        "consensus",
        1000,
        "Consensus",
        "how often it agrees on 1,000 inputs without labels with the best training nets",
    ),
    "labels-50": asked("labels", 50, "50 labels", "accuracy on 50 inputs with labels"),
    "labels-200": asked("labels", 200, "200 labels", "accuracy on 200 inputs with labels"),
    "hyperparameters": replace(
        control(
            "hyperparameters",
            "Hyperparameters",
            "how the net was trained and how long",
            True,
            "hyperparameters",
        ),
        tier="hyperparameters",
    ),
    "nfn-3": with_channels(3),
    "nfn-5": with_channels(5),
    "nfn-15": with_channels(15),
    "nfn-3-3": with_channels(3, 3),
    "nfn-5-5": with_channels(5, 5),
    "nfn-10-10": with_channels(10, 10),
    "nfn-15-15": with_channels(15, 15),
    "nfn-rank-1": with_rank(1),
    "nfn-rank-2": with_rank(2),
    "nfn-rank-4": with_rank(4),
    "nfn-rank-8": with_rank(8),
    "nfn-encoder": reading_parts("encoder"),
    "nfn-embedding": reading_parts("embedding"),
    "nfn-classifier": reading_parts("classifier"),
    "nfn-embedding-classifier": reading_parts("embedding", "classifier"),
    "nfn-encoder-classifier": reading_parts("encoder", "classifier"),
    "nfn-encoder-embedding": reading_parts("encoder", "embedding"),
    "nfn-balanced": variant("Transformer-NFN, balanced", "reads balanced heads", balanced=True),
}


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
        >>> from transformer_nfn.bench.models.regression.trees import TreePredictor, TreeSettings
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
        json.dumps([dict(some) for some in (kind.settings, *kind.special.values())])
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
    if not re.fullmatch(MODEL_NAME, name):
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
