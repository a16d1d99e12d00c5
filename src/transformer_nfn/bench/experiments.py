"""The experiments of the paper, as lists of cells."""

from collections.abc import Sequence
from typing import Literal

from transformer_nfn.bench.cells import Cell
from transformer_nfn.bench.data import Checkpoints, load_examples, thresholds
from transformer_nfn.bench.registry import MAIN, MODELS
from transformer_nfn.zoo.dataset import Zoo

Experiment = Literal["main", "components", "channels", "augmentation", "thresholds"]
#: Matrices M and N of the augmentation are uniform in ± these.
BOUNDS = (1.0, 10.0, 100.0)

CHANNELS = ("nfn-3", "nfn", "nfn-3-3", "nfn-10-10")
_ONLY_BLOCKS = ("nfn-encoder", "nfn-classifier", "nfn")
COMPONENTS = (
    "nfn-encoder",
    "nfn-embedding",
    "nfn-classifier",
    "nfn-embedding-classifier",
    "nfn-encoder-classifier",
    "nfn-encoder-embedding",
    "nfn",
)
#: Predictions that do not read the weights cannot change under the group, nor can what reads the
#: function only.
AUGMENTED = (
    *(n for n in MAIN if n != "hyperparameters" and MODELS[n].origin != "ours"),
    "nfn-balanced",
)


def experiment_cells(
    experiment: Experiment,
    zoo: str,
    *,
    models: Sequence[str] | None = None,
    splits: Sequence[int] = range(5),
    checkpoints: Checkpoints = "epochs",
    runs: int | None = None,
) -> list[Cell]:
    """The cells of an experiment on one zoo, split by split.

    Args:
        experiment: Which.
        zoo: The zoo's folder or URL.
        models: Their names; all that belong to the experiment if None.
        splits: Which of the five.
        checkpoints: Which rows of a run count.
        runs: Only the first so many runs.
    """
    chosen = list(models or default_models(experiment, zoo))
    changes: list[dict[str, float]] = [{}]
    if experiment == "augmentation":
        changes = [{"augment": bound} for bound in BOUNDS]
    if experiment == "thresholds":
        changes = [{"threshold": bound} for bound in retrained(zoo, checkpoints, runs)]
    return [
        Cell(zoo=zoo, model=model, split=split, checkpoints=checkpoints, runs=runs, **change)
        for split in splits
        for change in changes
        for model in chosen
    ]


def default_models(experiment: Experiment, zoo: str) -> tuple[str, ...]:
    """The models that an experiment compares."""
    if experiment == "channels":
        return CHANNELS
    if experiment == "augmentation":
        return AUGMENTED
    if experiment == "components":
        return COMPONENTS if Zoo(zoo).shape.inputs else _ONLY_BLOCKS
    return MAIN


def retrained(zoo: str, checkpoints: Checkpoints, runs: int | None) -> list[float]:
    """The thresholds above none, for which models are trained again as in the paper."""
    return [bound.accuracy for bound in thresholds(load_examples(zoo, checkpoints, runs))[1:]]
