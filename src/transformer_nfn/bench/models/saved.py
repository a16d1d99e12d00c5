"""Fitted models in folders of their own, with a card, found by path or by name."""

import os
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Divided
from transformer_nfn.bench.models.guard import Guard
from transformer_nfn.bench.models.predictor import Predictor
from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.zoo.dataset import AnyShape, NetShape

_FILE = "predictor.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Models that come with the package; one of the user's with the same name counts instead.
_SHIPPED = Path(__file__).parent / "shipped"


class Description(BaseModel):
    """predictor.json: all that is needed to use a model, and where its figures come from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[1] = 1
    model: str
    seed: int
    shape: AnyShape
    guard_features: Literal["invariants", "statistics"]
    guard_limit: float
    record: dict[str, Any]

    @field_validator("record")
    @classmethod
    def _says_what_it_was_fitted_to(cls, record: dict[str, Any]) -> dict[str, Any]:
        for name in ("task", "track"):
            if not isinstance(record.get(name), str):
                raise ValueError(f"it does not say the {name} of the networks")
        return record


class SavedPredictor(NamedTuple):
    """A fitted model, what it reads, and the guard that knows its limits."""

    predictor: Predictor
    description: Description
    guard: Guard


def models_folder() -> Path:
    """Where models are kept by name: TNFN_MODELS, or the user's data folder."""
    if "TNFN_MODELS" in os.environ:
        return Path(os.environ["TNFN_MODELS"])
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "transformer-nfn" / "models"


def named_folder(name: str) -> Path:
    """The folder of a model by its name.

    Raises:
        BenchError: If it is no name.
    """
    if not _NAME.fullmatch(name):
        raise BenchError(f"a model's name has letters, digits, '.', '_' and '-', got {name!r}")
    return models_folder() / name


def save_predictor(
    predictor: Predictor, model: str, divided: Divided, record: dict[str, Any], folder: Path
) -> None:
    """Write a fitted model, its guard and its card into a folder.

    Args:
        predictor: The fitted model.
        model: Its name in `MODELS`.
        divided: What it was fitted to.
        record: Its figures.
        folder: Where to; made if need be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Invariants need blocks.
    invariant = model_named(model).invariant and isinstance(divided.train.shape, NetShape)
    guard = Guard.fitted(divided.train, divided.validation, invariant=invariant)
    described = Description(
        model=model,
        seed=record["fit_seed"],
        shape=divided.train.shape,
        guard_features=guard.features,
        guard_limit=guard.limit,
        record=record,
    )
    predictor.save(folder)
    guard.save(folder)
    (folder / "README.md").write_text(model_card(described), encoding="utf-8")
    # Last: a folder with this file is complete.
    (folder / _FILE).write_text(described.model_dump_json(indent=1), encoding="utf-8")


def is_saved(folder: Path) -> bool:
    """Whether a folder holds a model."""
    return (folder / _FILE).is_file()


def load_predictor(where: str | Path) -> SavedPredictor:
    """Read a model by its name or the path of its folder. Nothing is unpickled.

    No code is run but that of installed packages, where the model is one of theirs.

    Raises:
        BenchError: If there is none, or its files are damaged.
    """
    folder = Path(where)
    if not is_saved(folder) and _NAME.fullmatch(str(where)):
        places = (named_folder(str(where)), _SHIPPED / str(where))
        folder = next(filter(is_saved, places), folder)
    path = folder / _FILE
    if not path.is_file():
        names = saved_names()
        raise BenchError(
            f"no model {str(where)!r}: neither a folder with {_FILE} nor one of the saved ones "
            f"({', '.join(names) or 'there are none'}); `tnfn bench fit` makes one"
        )
    try:
        described = Description.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise BenchError(f"{path} is not the description of a model: {error}") from error
    kind = model_named(described.model)
    predictor = kind.predictor(
        seed=described.seed,
        tokens=described.shape.tokens,
        task=described.record["task"],
        track=described.record["track"],
    )
    predictor.load(folder)
    guard = Guard.load(folder, described.guard_features, described.guard_limit)
    return SavedPredictor(predictor, described, guard)


def saved_names() -> list[str]:
    """The models that are kept by name, and those that come with the package."""
    found = (path for home in (models_folder(), _SHIPPED) for path in home.glob(f"*/{_FILE}"))
    return sorted({path.parent.name for path in found})


def model_card(described: Description) -> str:
    """The card of a model: what it is, what it was trained on, how good it is."""
    kind, record, shape = model_named(described.model), described.record, described.shape
    tested = "Kendall's τ on test runs"
    if record.get("all_runs"):
        tested += ", fitted without them; this model has seen them too"
    rows = [
        ("model", f"{kind.title}: {kind.what}"),
        ("trained on", f"{record['zoo']}, {record['track']} starts, split {record['split']}"),
        ("rows", f"{record['train_rows']:,} train, {record['validation_rows']:,} validation"),
        ("reads", f"{_sizes(shape)}, {shape.size:,} numbers a net"),
        (tested, f"{record['tau']:.3f}"),
        (
            "the same after a random group element",
            "not known" if record["tau_moved"] is None else f"{record['tau_moved']:.3f}",
        ),
        ("invariant under the group", "yes" if kind.invariant else "no"),
        ("parameters", "trees" if record["parameters"] is None else f"{record['parameters']:,}"),
        ("fit", f"{record['fit_seconds']:.0f} s on one core"),
    ]
    body = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return (
        f"# {kind.title}\n\n"
        "Predicts the test accuracy of small transformers from their weights.\n\n"
        f"| | |\n|---|---|\n{body}\n\n"
        "It ranks networks like those it was trained on: same sizes, same task, similar training. "
        f"`tnfn rank` warns of a network where more than {100 * described.guard_limit:.0f} % of "
        f"its {described.guard_features} lie outside what was seen in training.\n"
    )


def _sizes(shape: AnyShape) -> str:
    if isinstance(shape, NetShape):
        return f"{shape.block} blocks, D = {shape.D}, {shape.heads} heads"
    return f"{len(shape.tensors):,} tensors by name"
