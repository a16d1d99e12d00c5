"""The experiments of the paper, and those on its variants, as lists of cells."""

from collections.abc import Sequence
from typing import Any, Literal

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.kind import Kind
from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.heldout import kinds_there
from transformer_nfn.bench.protocol.loading import (
    Checkpoints,
    chosen_table,
    leaving_out,
    load_examples,
    thresholds,
)
from transformer_nfn.bench.protocol.readable import is_readable, what_it_lacks
from transformer_nfn.bench.questions import QUESTIONS
from transformer_nfn.zoo.dataset import Zoo

Experiment = Literal[
    "main",
    "components",
    "channels",
    "ranks",
    "augmentation",
    "thresholds",
    "sizes",
    "across",
    "questions",
    "held-out",
]
#: Runs of the smaller zoos of a learning curve.
SIZES = (75, 150, 300, 600, 1200)
#: Experiments of costly models, all of which may be fitted to fewer runs, and tested on all.
MAY_LEARN_FROM_FEWER = ("main", "components", "channels", "ranks", "augmentation")
#: Matrices M and N of the augmentation are uniform in ± these.
BOUNDS = (1.0, 10.0, 100.0)

CHANNELS = (
    "nfn-3",
    "nfn-5",
    "nfn",
    "nfn-15",
    "nfn-3-3",
    "nfn-5-5",
    "nfn-10-10",
    "nfn-15-15",
)
RANKS = ("nfn-rank-1", "nfn-rank-2", "nfn-rank-4", "nfn-rank-8", "nfn")
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


def experiment_cells(
    experiment: Experiment,
    zoo: str,
    *,
    models: Sequence[str] | None = None,
    splits: Sequence[int] = range(5),
    seeds: Sequence[int] = (0,),
    checkpoints: Checkpoints = "epochs",
    runs: int | None = None,
    train_runs: int | None = None,
    test_zoo: str | None = None,
) -> list[Cell]:
    """The cells of an experiment on one zoo, seed by seed and split by split.

    Args:
        experiment: Which.
        zoo: The zoo's folder or URL.
        models: Their names; all that belong to the experiment if None.
        splits: Which of the five.
        seeds: Of the fits; several show how much of τ is the luck of a fit.
        checkpoints: Which rows of a run count.
        runs: Only the first N runs.
        train_runs: Learn from the first N runs only, if there are more, and test on all test runs:
            in `MAY_LEARN_FROM_FEWER`.
        test_zoo: The zoo that models of "across" are tested on.

    Raises:
        BenchError: If "across" has no test zoo, or another experiment has one; if an experiment
            that cannot is to learn from fewer runs.
    """
    if train_runs is not None and experiment not in MAY_LEARN_FROM_FEWER:
        raise BenchError(
            f"fewer runs to learn from are for the experiments {', '.join(MAY_LEARN_FROM_FEWER)}: "
            f"not {experiment}"
        )
    if (experiment == "across") != (test_zoo is not None):
        raise BenchError("a test zoo is for the experiment across, which needs one")
    chosen = list(models or default_models(experiment, zoo, test_zoo))
    changes: list[dict[str, Any]] = [{}]
    if experiment == "augmentation":
        changes = [{"augment": bound} for bound in BOUNDS]
    if experiment == "thresholds":
        changes = [{"threshold": bound} for bound in retrained(zoo, checkpoints, runs)]
    if experiment == "sizes":
        changes = [{"train_runs": size} for size in smaller_sizes(zoo, checkpoints, runs)] + [{}]
    if experiment == "across":
        changes = [{"test_zoo": test_zoo}]
    if experiment == "questions":
        changes = [{"question": name} for name in QUESTIONS if name != "accuracy"]
    if experiment == "held-out":
        changes = [{"held_out": name} for name in kinds_there(chosen_table(zoo, checkpoints, runs))]
    shared: dict[str, Any] = {"zoo": zoo, "checkpoints": checkpoints, "runs": runs}
    if train_runs is not None and train_runs < _runs_there(zoo, checkpoints, runs):
        shared["train_runs"] = train_runs
    return [
        Cell(model=model, split=split, seed=seed, **shared, **change)
        for seed in seeds
        for split in splits
        for change in changes
        for model in chosen
    ]


def default_models(
    experiment: Experiment, zoo: str, test_zoo: str | None = None
) -> tuple[str, ...]:
    """The models that an experiment compares."""
    if test_zoo is not None:
        trained, tested = Zoo(zoo).shape, Zoo(test_zoo).shape
        return tuple(
            model
            for model in main_models()
            if what_it_lacks(zoo, model) is None and is_readable(model, trained, tested)
        )
    if experiment == "channels":
        return CHANNELS
    if experiment == "ranks":
        return RANKS
    if experiment == "augmentation":
        # What reads no weights cannot change under the group.
        read = (name for name in main_models() if _reads_weights(MODELS[name]))
        return (*read, "nfn-balanced")
    if experiment == "components":
        return COMPONENTS if Zoo(zoo).shape.owned.inputs else _ONLY_BLOCKS
    return tuple(name for name in main_models() if what_it_lacks(zoo, name) is None)


def _reads_weights(kind: Kind) -> bool:
    return not kind.is_shown_inputs and kind.reads not in ("answers", "hyperparameters")


def retrained(zoo: str, checkpoints: Checkpoints, runs: int | None) -> list[float]:
    """The thresholds that leave rows out, for which models are trained again as in the paper."""
    examples = load_examples(zoo, checkpoints, runs)
    return [one.accuracy for one in leaving_out(thresholds(examples)[1:], examples.accuracy)]


def smaller_sizes(zoo: str, checkpoints: Checkpoints, runs: int | None) -> list[int]:
    """The sizes below the whole zoo's, which is the main experiment's own."""
    whole = _runs_there(zoo, checkpoints, runs)
    return [size for size in SIZES if size < whole]


def _runs_there(zoo: str, checkpoints: Checkpoints, runs: int | None) -> int:
    return len(set(load_examples(zoo, checkpoints, runs).column("run")))
