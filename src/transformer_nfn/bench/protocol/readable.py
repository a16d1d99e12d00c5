"""Which models can read networks of another zoo than the one they were trained on."""

from collections.abc import Iterable
from functools import cache
from math import inf

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.features.kinds import OPTIMIZERS
from transformer_nfn.bench.models.kind import Kind, Reads
from transformer_nfn.bench.models.queried import inputs_of
from transformer_nfn.bench.models.registry import MODELS, main_models, model_named
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.loading import chosen_table, task_and_track
from transformer_nfn.zoo import DataError, load_task
from transformer_nfn.zoo.dataset import AnyShape, NetShape, Zoo

#: What reads networks of which only the tensors are known.
_TENSORS: tuple[Reads, ...] = ("tensors", "all weights")


def check_known(cells: Iterable[Cell]) -> None:
    """Refuse cells whose model needs what their zoo or its task does not have.

    Raises:
        BenchError: If one does, saying which models can be taken.
    """
    for zoo, model in dict.fromkeys((cell.zoo, cell.model) for cell in cells):
        lacks = what_it_lacks(zoo, model)
        if lacks is not None:
            raise BenchError(f"{model} cannot read the networks of {zoo}: {lacks}")


def what_it_lacks(zoo: str, model: str) -> str | None:
    """What a model needs that a zoo or its task does not have; None if nothing.

    Models of users' own are always let in: what they read is their affair.
    """
    kind = model_named(model)
    if kind.origin == "own":
        return None
    shape = Zoo(zoo).shape
    if kind.tier == "hyperparameters":
        optimizers = set(chosen_table(zoo, "all", None).column("optimizer").to_pylist())
        if not optimizers <= set(OPTIMIZERS):
            return "it reads how they were trained, which is not known of all of them"
    elif kind.is_shown_inputs and data_of(zoo) is None:
        return "it is shown inputs of the task, and of these networks' data nothing is known"
    elif kind.is_shown_inputs and (count := _inputs_there(zoo)) < kind.settings["inputs"]:
        return (
            f"it is shown {kind.settings['inputs']:,} validation examples with all tokens, and "
            f"their task has {count:,}"
        )
    elif not isinstance(shape, NetShape):
        if kind.reads not in _TENSORS:
            return (
                "it needs blocks, and of these networks only the tensors are known; "
                f"{_that_read(*_TENSORS)} read those"
            )
    elif not shape.inputs and _reads_embedding(kind):
        return "it reads the embedding, and these networks have none: they are given word vectors"
    return None


def _inputs_there(zoo: str) -> float:
    """How many inputs networks can be shown; no end to them where their task is not here."""
    task, _ = task_and_track(zoo)
    shape = Zoo(zoo).shape.owned
    return _count_inputs(task, shape.inputs, shape.tokens)


@cache
def _count_inputs(task: str, inputs: int, tokens: int) -> float:
    try:
        return len(inputs_of(task, inputs, tokens)[1])
    except DataError:
        return inf  # said with the first fit


def _reads_embedding(kind: Kind) -> bool:
    """Whether the embedding is one of the parts that a model was made for; others go without."""
    parts = kind.settings.get("parts")
    return isinstance(parts, tuple) and "embedding" in parts


def data_of(zoo: str) -> str | None:
    """The digest of the data that a zoo was built with; None where it was not built here."""
    found = Zoo(zoo).description.get("recipe", {}).get("data")
    return found if isinstance(found, str) else None


def check_inputs(zoo: str, model: str) -> None:
    """Refuse inputs of other data than the zoo's: a network may have been trained on them.

    Raises:
        BenchError: If the data here are others than those that the zoo was built with.
    """
    if not model_named(model).is_shown_inputs:
        return
    recipe = Zoo(zoo).recipe
    try:
        known = recipe is not None and (
            load_task(recipe.task, patch=recipe.patch).digest == recipe.data
        )
    except DataError as error:
        raise BenchError(f"{model} is shown inputs of the task: {error}") from error
    if not known:
        raise BenchError(
            f"{model} is shown inputs of the task, and the data here are not those that {zoo} was "
            "built with: set TNFN_DATA to these"
        )


def check_readable(model: str, trained: AnyShape, tested: AnyShape) -> None:
    """Refuse a model that cannot read the networks of another zoo, before it is fitted.

    Args:
        model: Its name.
        trained: The networks it is trained on.
        tested: Those of the other zoo.

    Raises:
        BenchError: If it cannot, saying what differs.
    """
    differs = _differences(model, trained, tested)
    if differs:
        raise BenchError(
            f"{model} cannot read the networks of the test zoo: {', '.join(differs)}. "
            f"{_that_read('any blocks', 'hyperparameters')} read all"
        )


def is_readable(model: str, trained: AnyShape, tested: AnyShape) -> bool:
    """Whether a model can read the networks of another zoo."""
    return not _differences(model, trained, tested)


def _that_read(*what: Reads) -> str:
    """The main models that read one of these, in words."""
    return ", ".join(name for name in main_models() if MODELS[name].reads in what)


def _differences(model: str, trained: AnyShape, tested: AnyShape) -> list[str]:
    reads = model_named(model).reads
    if not (isinstance(trained, NetShape) and isinstance(tested, NetShape)):
        return ["the blocks of one zoo's networks are not known"]  # nor whether both share one
    if reads in ("any blocks", "hyperparameters"):
        return []
    if reads == "tensors":
        # Statistics are of each tensor, whatever its size.
        names = [sorted(shape.stored) for shape in (trained, tested)]
        return [] if names[0] == names[1] else ["it has other tensors"]
    fields = set(NetShape.model_fields) - {"tokens"}
    if reads == "answers":
        fields = {"inputs", "tokens", "classes"} | (set() if trained.inputs else {"D"})
    return [
        f"{name} is {getattr(tested, name)} instead of {getattr(trained, name)}"
        for name in sorted(fields)
        if getattr(tested, name) != getattr(trained, name)
    ]
