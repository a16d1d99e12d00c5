"""Whether a zoo has runs enough for the cells of a benchmark, before any of them is computed."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.loading import chosen_table
from transformer_nfn.bench.protocol.splits import SPLITS, Folds, split_rows
from transformer_nfn.zoo.dataset import RECIPES, Recipe, StoreError, Zoo

#: Runs that each side of a split needs: rows of a single run say nothing of an order of runs.
LEAST = 2


def check_enough(cells: Iterable[Cell]) -> None:
    """Refuse a zoo in which a training, validation or test set would have fewer than two runs.

    Raises:
        BenchError: If a set would, saying how many runs it takes and which command builds them.
    """
    alike: dict[Cell, list[int]] = {}  # cells that differ only in model, split and seed
    for cell in cells:
        one = cell.model_copy(update={"model": "", "split": 0, "seed": 0, "augment": None})
        if cell.split < len(SPLITS):  # others are refused by `divide`
            alike.setdefault(one, []).append(cell.split)
    for cell, splits in alike.items():
        for split in sorted(set(splits)):
            for side, count in _runs_of_sides(cell, split).items():
                if count < LEAST:
                    raise BenchError(
                        f"{cell.zoo} has too few runs{_limits(cell)}: the {side} set of split "
                        f"{split} would have {count}, it needs {LEAST}; {_remedy(cell, splits)}"
                    )


def _runs_of_sides(cell: Cell, split: int) -> dict[str, int]:
    table = chosen_table(cell.zoo, cell.checkpoints, cell.runs)
    rows, run = split_rows(table, SPLITS[split]), table.column("run").to_numpy()
    early = np.full(len(run), True) if cell.train_runs is None else run < cell.train_runs
    sides = {"training": rows.train & early, "validation": rows.validation & early}
    if cell.test_zoo is None:
        sides["test"] = rows.test
    if cell.threshold is not None:
        good = table.column("test_accuracy").to_numpy() >= cell.threshold
        sides = {name: rows & good for name, rows in sides.items()}
    return {name: len(np.unique(run[rows])) for name, rows in sides.items()}


def _limits(cell: Cell) -> str:
    """What is left of the zoo, where that is not all."""
    parts = [] if cell.runs is None else [f"with --runs {cell.runs}"]
    if cell.train_runs is not None:
        parts.append(f"among its first {cell.train_runs}")
    if cell.threshold is not None:
        parts.append(f"with an accuracy of {cell.threshold:.3g} or more")
    return "".join(f" {part}" for part in parts)


def _remedy(cell: Cell, splits: Sequence[int]) -> str:
    """What a user can do."""
    zoo = Zoo(cell.zoo)
    try:
        recipe = zoo.recipe
    except StoreError:  # of another version, or made by hand: then its next runs are not known
        recipe = None
    if cell.threshold is not None or cell.train_runs is not None or recipe is None:
        return "take a larger zoo"
    there = int(np.max(zoo.table(columns=["run"]).column("run").to_numpy())) + 1
    counted = there if cell.runs is None else min(there, cell.runs)
    needed = _runs_needed(cell, recipe, [SPLITS[split] for split in splits], counted)
    if needed is None:
        return f"{recipe.name} has no more runs than these, so take a larger recipe"
    if needed <= there:
        return f"`--runs {needed}` is enough"
    name = recipe.name if recipe.name in RECIPES else f"{recipe.name}.toml"
    seeds = " --seeds shared" if recipe.seeds == "shared" else ""
    return f"`tnfn zoo build {name} --runs {needed}{seeds} --out {cell.zoo}` adds what is missing"


def _runs_needed(cell: Cell, recipe: Recipe, splits: Sequence[Folds], counted: int) -> int | None:
    """How many runs of the recipe fill all sides, if none of those to come diverges."""
    table = chosen_table(cell.zoo, cell.checkpoints, cell.runs)
    rows = table.group_by("run").aggregate([("fold", "min")])
    filled = Counter(rows.column("fold_min").to_pylist())
    for number in range(counted, len(recipe.all_runs)):
        filled[recipe.all_runs[number].hyperparameters.fold] += 1
        if all(_is_filled(filled, one) for one in splits):
            return number + 1
    return None


def _is_filled(filled: Counter[int], folds: Folds) -> bool:
    test = sum(filled[fold] for fold in folds.test)
    validation = sum(filled[fold] for fold in folds.validation)
    return min(test, validation, filled.total() - test - validation) >= LEAST
