"""Recipes: which nets a zoo holds and how they are trained, as data."""

import tomllib
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import resources
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from transformer_nfn.space import PAPER
from transformer_nfn.zoo.errors import RecipeError
from transformer_nfn.zoo.nets import NetShape, ZooBlock
from transformer_nfn.zoo.optimizers import OptimizerName
from transformer_nfn.zoo.runs import Hyperparameters, Run, content_hash, derived_seed

#: Raised when the trainer changes what comes out of the same recipe: ids must then differ.
TRAINER_VERSION = 1
RECIPES = (
    "digits-mini",
    "mnist-small",
    "mnist-small-residual",
    "mnist-good",
    "mnist-tuning",
    "agnews-small",
    "agnews-tuning",
    "mnist-paper",
    "agnews-paper",
)
_IMAGE_SIDE = {"digits": 8, "mnist": 28}
_CLASSES = {"digits": 10, "mnist": 10, "ag_news": 4}
_TEXT_TOKENS = 32


#: Most runs of a grid; the paper's has 16,000. A recipe may be somebody else's.
MOST_RUNS = 1_000_000


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Training(_Strict):
    """How every run of a zoo is trained."""

    batch: int = Field(gt=0)
    epochs: int = Field(gt=0)
    checkpoints: tuple[int, ...]  # epochs; the best one on validation is always kept as well
    warmup: float = Field(ge=0)  # epochs of linear warm-up, before cosine decay
    schedule: Literal["epoch", "step"]  # when the learning rate changes
    crop: int = Field(default=0, ge=0)  # random crops of images padded by so many pixels
    train_examples: int | None = Field(default=None, gt=0)  # None: all there are
    validation_examples: int | None = Field(default=None, gt=0)
    test_examples: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> "Training":
        epochs = self.checkpoints
        if list(epochs) != sorted(set(epochs)) or not all(0 < e <= self.epochs for e in epochs):
            raise ValueError(f"checkpoints {epochs} must be rising epochs within 1..{self.epochs}")
        if self.warmup >= self.epochs:
            raise ValueError(f"warmup {self.warmup} must be shorter than {self.epochs} epochs")
        return self


class Family(_Strict):
    """A grid: every combination of these values is a run."""

    optimizer: tuple[OptimizerName, ...] = Field(min_length=1)
    lr: tuple[_Finite, ...] = Field(min_length=1)
    l2: tuple[_Finite, ...] = Field(min_length=1)
    dropout: tuple[_Finite, ...] = Field(min_length=1)
    init_std: tuple[_Finite, ...] = Field(min_length=1)
    train_fraction: tuple[_Finite, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _possible(self) -> "Family":
        count = prod(len(getattr(self, field)) for field in Family.model_fields)
        if count > MOST_RUNS:  # before they are all made
            raise ValueError(f"the grid has {count} runs, more than {MOST_RUNS}")
        for field in Family.model_fields:
            for value in getattr(self, field):
                first = {name: getattr(self, name)[0] for name in Family.model_fields}
                Hyperparameters.model_validate({**first, field: value})  # its own checks
        if any(round(fraction, 3) != fraction for fraction in self.train_fraction):
            raise ValueError(f"train_fraction {self.train_fraction} must be whole thousandths")
        return self

    def combinations(self) -> list[tuple[str | float, ...]]:
        """All combinations of values, in the order of the fields."""
        return list(product(*(getattr(self, field) for field in Family.model_fields)))


class Replicates(_Strict):
    """Configurations that are trained more than once, for what seeds alone change."""

    configurations: int = Field(gt=0)  # the first so many of the order
    runs: int = Field(ge=2, le=100)  # of each, with seeds of their own


class Recipe(_Strict):
    """A zoo's definition.

    Examples:
        >>> recipe = Recipe.load("mnist-paper")
        >>> len(recipe.all_runs), recipe.shape.size
        (16000, 18506)
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    description: str
    task: Literal["digits", "mnist", "ag_news"]
    patch: int | None = Field(default=None, gt=0)  # side in pixels; None for text
    block: ZooBlock = PAPER.name
    D: int = Field(default=32, gt=0)
    heads: int = Field(default=2, gt=0)
    D_A: int = Field(default=64, gt=0)
    blocks: int = Field(default=2, gt=0)
    seed: int = 0
    seeds: Literal["run", "shared"] = "run"  # shared: one start for all, as in the paper
    replicates: Replicates | None = None  # where every run has its own seed
    #: Digest of the task's examples; a build fills it in, since other data make other networks.
    data: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    runs: int = Field(gt=0)  # how many are built unless asked otherwise
    group: int = Field(gt=0)  # runs in one job and shard
    lockstep: int = Field(gt=0)  # nets trained at once on a CPU; a GPU takes the whole group
    training: Training
    families: tuple[Family, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> "Recipe":
        if self.task == "ag_news":
            if self.patch is not None or self.training.crop:
                raise ValueError("ag_news is text: it has no patch and no crops")
        elif self.patch is None or _IMAGE_SIDE[self.task] % self.patch:
            raise ValueError(f"patch must divide {_IMAGE_SIDE[self.task]}, got {self.patch}")
        _ = self.shape  # its own checks
        grid = self._grid()
        if len(set(grid)) < len(grid):
            raise ValueError("a run is in the grid twice: a value or a family is repeated")
        return self

    def __getstate__(self) -> dict[Any, Any]:
        """Without what was derived: a job that is sent to a worker needs no list of all runs."""
        state = super().__getstate__()
        fields = {name: self.__dict__[name] for name in type(self).model_fields}
        return {**state, "__dict__": fields}

    def _grid(self) -> list[tuple[str | float, ...]]:
        return [values for family in self.families for values in family.combinations()]

    @staticmethod
    def load(name: str | Path) -> "Recipe":
        """A shipped recipe by its name, or a TOML file by its path.

        Raises:
            RecipeError: If there is none, or it is not valid.
        """
        try:
            if name in RECIPES:
                shipped = resources.files("transformer_nfn.zoo.recipes").joinpath(f"{name}.toml")
                source = shipped.read_text("utf-8")
            elif Path(name).suffix == ".toml" and Path(name).is_file():
                source = Path(name).read_text("utf-8")
            else:
                raise RecipeError(
                    f"no recipe {str(name)!r}: give one of {', '.join(RECIPES)} or the path of a "
                    "TOML file"
                )
            return Recipe.model_validate(tomllib.loads(source))
        except (ValidationError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RecipeError(f"recipe {str(name)!r} is not valid: {error}") from error

    def with_seeds(self, seeds: str) -> "Recipe":
        """The same recipe on the other track.

        Raises:
            RecipeError: If it is neither "run" nor "shared".
        """
        if seeds not in ("run", "shared"):
            raise RecipeError(f'seeds are "run" or "shared", got {seeds!r}')
        return Recipe.model_validate({**self.model_dump(), "seeds": seeds})

    def with_data(self, digest: str) -> "Recipe":
        """The same recipe, for these data: the ids of its runs depend on them."""
        return Recipe.model_validate({**self.model_dump(), "data": digest})

    @cached_property
    def shape(self) -> NetShape:
        """The sizes of its nets."""
        if self.patch is None:
            tokens, inputs = _TEXT_TOKENS, 0
        else:
            tokens, inputs = (_IMAGE_SIDE[self.task] // self.patch) ** 2, self.patch**2
        return NetShape(
            block=self.block,
            tokens=tokens,
            inputs=inputs,
            D=self.D,
            heads=self.heads,
            D_A=self.D_A,
            blocks=self.blocks,
            classes=_CLASSES[self.task],
        )

    @cached_property
    def all_runs(self) -> tuple[Run, ...]:
        """Every run of the grid in a fixed random order: the first N are a fair zoo.

        The order of configurations does not depend on `seeds`, so that tracks have the same ones.
        Further runs of a configuration come later, every third run.
        """
        fields = list(Family.model_fields)
        grid = [
            Hyperparameters.model_validate(dict(zip(fields, values, strict=True)))
            for values in self._grid()
        ]
        grid.sort(key=lambda h: content_hash(["order", self.seed, h.model_dump()]))
        first = [self._run(h) for h in grid]
        if self.replicates is None or self.seeds == "shared":
            return tuple(first)
        repeated = grid[: self.replicates.configurations]
        again = [self._run(h, n) for n in range(1, self.replicates.runs) for h in repeated]
        return tuple(_every_third(first, again, len(repeated)))

    def first_runs(self, count: int) -> Sequence[Run]:
        """The first runs of the order.

        Raises:
            RecipeError: If the grid has fewer.
        """
        if not 0 < count <= len(self.all_runs):
            raise RecipeError(
                f"{self.name} has {len(self.all_runs):,} runs, asked for {count:,}: choose --runs "
                f"from 1 to {len(self.all_runs)}"
            )
        return self.all_runs[:count]

    def _run(self, hyperparameters: Hyperparameters, replicate: int = 0) -> Run:
        h = hyperparameters.model_dump()
        seed = derived_seed("run", self.seed, h if self.seeds == "run" else "shared")
        if replicate:
            seed = derived_seed("replicate", seed, replicate)
        content = {
            "trainer": TRAINER_VERSION,
            "task": self.task,
            "data": self.data,
            "patch": self.patch,
            "net": self.shape.model_dump(),
            "training": self.training.model_dump(),
            "hyperparameters": h,
            "seed": seed,
        }
        return Run(content_hash(content)[:32], seed, hyperparameters)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The names of a run's rows."""
        return (*map(str, self.training.checkpoints), "best")


def _every_third(runs: Sequence[Run], again: Sequence[Run], begin: int) -> Iterator[Run]:
    """The runs, and from the place `begin` on after every two of them one of the others."""
    left = iter(again)
    for number, run in enumerate(runs):
        yield run
        if number >= begin and (number - begin) % 2:
            yield from islice(left, 1)
    yield from left
