"""Cut a recipe's runs into groups, each one job and one shard.

Runs of a group share optimizer and train fraction, so they take the same steps in lockstep. A
shard's name says which runs of its kind it holds, so a listing of the folder is the whole state of
a build: what is left is cut into the same groups again after an interruption, and a larger number
of runs only adds groups.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.recipe import Recipe
from transformer_nfn.zoo.runs import Run, content_hash

_NAME = re.compile(r"([a-z]+)-f(\d{3,4})-(\d{6})-(\d{6})-([0-9a-f]{12})\.parquet")


class Group(NamedTuple):
    """Runs that are trained in one job; `numbers` are their places in the recipe's order."""

    name: str
    numbers: tuple[int, ...]
    runs: tuple[Run, ...]


class Kind(NamedTuple):
    """What the runs of a group share."""

    optimizer: str
    fraction: int  # in thousandths


def kind_of(run: Run) -> Kind:
    """The kind of a run."""
    h = run.hyperparameters
    return Kind(h.optimizer, round(1000 * h.train_fraction))


def runs_by_kind(runs: Sequence[Run]) -> dict[Kind, list[int]]:
    """Places of the runs of each kind, in order."""
    kinds: dict[Kind, list[int]] = {}
    for number, run in enumerate(runs):
        kinds.setdefault(kind_of(run), []).append(number)
    return dict(sorted(kinds.items()))


def shard_name(kind: Kind, start: int, runs: Sequence[Run]) -> str:
    """The name of the shard that holds these runs, the first being the start-th of its kind."""
    digest = content_hash([run.id for run in runs])[:12]
    stop = start + len(runs)
    return f"{kind.optimizer}-f{kind.fraction:03d}-{start:06d}-{stop:06d}-{digest}.parquet"


def group_of_shard(recipe: Recipe, name: str) -> Group:
    """The runs that a committed shard holds.

    Raises:
        StoreError: If it is not a shard of this recipe.
    """
    match = _NAME.fullmatch(name)
    if match is not None:
        kind, start, stop = Kind(match[1], int(match[2])), int(match[3]), int(match[4])
        numbers = _numbers(recipe).get(kind, [])[start:stop]
        runs = tuple(recipe.all_runs[number] for number in numbers)
        if len(runs) == stop - start > 0 and shard_name(kind, start, runs) == name:
            return Group(name, tuple(numbers), runs)
    raise StoreError(
        f"shard {name!r} holds no runs of this recipe ({recipe.name}, seeds {recipe.seeds!r}): "
        "build into another folder"
    )


def open_groups(recipe: Recipe, count: int, committed: Iterable[str]) -> list[Group]:
    """The groups among the first `count` runs that no committed shard holds.

    In the order of their first runs, so that what a stopped build has is of all kinds.
    """
    done = {number for name in committed for number in group_of_shard(recipe, name).numbers}
    recipe.first_runs(count)  # checks the count
    groups = []
    for kind, numbers in _numbers(recipe).items():
        wanted = [
            (place, number)
            for place, number in enumerate(numbers)
            if number < count and number not in done
        ]
        for stretch in _stretches(wanted, recipe.group):
            runs = tuple(recipe.all_runs[number] for _, number in stretch)
            name = shard_name(kind, stretch[0][0], runs)
            groups.append(Group(name, tuple(number for _, number in stretch), runs))
    return sorted(groups, key=lambda group: group.numbers)


@lru_cache(maxsize=4)  # a check or a plan asks once for each shard
def _numbers(recipe: Recipe) -> dict[Kind, list[int]]:
    return runs_by_kind(recipe.all_runs)


def _stretches(places: Sequence[tuple[int, int]], most: int) -> list[list[tuple[int, int]]]:
    """Neighbouring places together, at most so many."""
    stretches: list[list[tuple[int, int]]] = []
    for place in places:
        last = stretches[-1] if stretches else []
        if last and len(last) < most and last[-1][0] + 1 == place[0]:
            last.append(place)
        else:
            stretches.append([place])
    return stretches
