"""Zoos that are too small are refused before any work, with the command that mends it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import small_examples
from tests.bench.test_cells import run
from tests.cli.run import tnfn
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import fit_and_save
from transformer_nfn.bench.protocol.enough import check_enough
from transformer_nfn.bench.protocol.runner import Bench
from transformer_nfn.bench.report.writing import write_report
from transformer_nfn.zoo.format.schema import FORMAT
from transformer_nfn.zoo.recipe import Recipe

SHIPPED = Recipe.load("digits-mini")
#: With 160 of its 16,000 runs, which are made anew for each zoo.
RECIPE = Recipe.model_validate(
    {
        **SHIPPED.model_dump(),
        "families": [
            {**family.model_dump(), "lr": [1e-3], "l2": [1e-4, 1e-2], "optimizer": ["adam"]}
            for family in SHIPPED.families[1:]
        ],
    }
)


def recipe_zoo(folder: Path, runs: int, recipe: Recipe = RECIPE) -> str:
    """The first runs of a recipe, with their folds; nothing was trained."""
    examples = small_examples(runs)
    numbers = examples.table.column("run").to_pylist()
    folds = pa.array([recipe.all_runs[n].hyperparameters.fold for n in numbers], pa.int8())
    place = examples.table.column_names.index("fold")
    folds = folds.cast(examples.table.schema.field("fold").type)
    table = examples.table.set_column(place, examples.table.schema.field("fold"), folds)
    write_zoo(folder, replace(examples, table=table))
    described = {"format": FORMAT, "recipe": recipe.model_dump(mode="json", exclude={"runs"})}
    (folder / "zoo.json").write_text(json.dumps(described), encoding="utf-8")
    return str(folder)


def cells(zoo: str, splits: int = 5, **changes: object) -> list[Cell]:
    return [Cell(zoo=zoo, model="statistics", split=s, **changes) for s in range(splits)]


def refusal(wanted: list[Cell]) -> str:
    with pytest.raises(BenchError) as refused:
        check_enough(wanted)
    return str(refused.value)


@pytest.mark.parametrize("splits", [1, 5])
def test_the_number_of_runs_that_is_named_is_enough_and_no_smaller_one_is(splits, tmp_path):
    said = refusal(cells(recipe_zoo(tmp_path / "zoo", 6), splits))
    named = re.search(r"`tnfn zoo build digits-mini --runs (\d+) --out (\S+)` adds", said)
    assert named is not None, said
    assert named[2] == str(tmp_path / "zoo")
    needed = int(named[1])
    check_enough(cells(recipe_zoo(tmp_path / "enough", needed), splits))
    refusal(cells(recipe_zoo(tmp_path / "one less", needed - 1), splits))


def test_the_command_has_the_seeds_of_the_zoo(tmp_path):
    shared = recipe_zoo(tmp_path / "zoo", 6, RECIPE.with_seeds("shared"))
    assert re.search(r"--runs \d+ --seeds shared --out", refusal(cells(shared)))


def test_a_recipe_of_ones_own_is_named_as_a_file(tmp_path):
    own = Recipe.model_validate({**RECIPE.model_dump(), "name": "mine"})
    assert "`tnfn zoo build mine.toml --runs" in refusal(cells(recipe_zoo(tmp_path, 6, own)))


def test_a_limit_that_is_too_low_is_what_is_named(tmp_path):
    zoo = recipe_zoo(tmp_path / "zoo", 128)
    check_enough(cells(zoo))
    said = refusal(cells(zoo, runs=6))
    named = re.search(r"too few runs with --runs 6: .*`--runs (\d+)` is enough", said)
    assert named is not None, said
    check_enough(cells(zoo, runs=int(named[1])))


def test_a_grid_with_no_more_runs_is_said(tmp_path):
    small = RECIPE.families[0].model_dump() | {"lr": [1e-3], "l2": [1e-4], "dropout": [0.0]}
    small |= {"init_std": [0.1], "optimizer": ["sgd"], "train_fraction": [1.0, 0.9]}
    tiny = Recipe.model_validate({**RECIPE.model_dump(), "runs": 2, "families": [small]})
    assert "has no more runs than these" in refusal(cells(recipe_zoo(tmp_path, 2, tiny)))


def test_an_accuracy_that_few_runs_reach_is_said(zoo_folder):
    said = refusal(cells(zoo_folder, threshold=0.99))
    assert "with an accuracy of 0.99 or more" in said
    assert said.endswith("take a larger zoo")


def test_smaller_sizes_are_counted_among_the_first_runs(zoo_folder):
    check_enough(cells(zoo_folder, train_runs=20))
    assert "among its first 12" in refusal(cells(zoo_folder, train_runs=12))


def test_nothing_is_done_before_the_refusal(tmp_path):
    zoo = recipe_zoo(tmp_path / "zoo", 12)
    with pytest.raises(BenchError, match="too few runs"):
        Bench(cells(zoo), tmp_path / "out")
    with pytest.raises(BenchError, match="too few runs"):
        fit_and_save(cells(zoo)[0], tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["zoo"]


@pytest.mark.parametrize("command", ["plan", "run", "fit"])
def test_every_command_refuses_in_one_line(command, tmp_path, capsys):
    zoo = recipe_zoo(tmp_path / "zoo", 12)
    more = ["--model", "statistics", "--name", "mine"] if command == "fit" else ["--out", "out"]
    ended = tnfn(capsys, "bench", command, "--zoo", zoo, *more)
    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert ended.err.startswith(f"error: {zoo} has too few runs: the ")
    assert "`tnfn zoo build digits-mini --runs" in ended.err


@pytest.mark.usefixtures("plain_pictures")
def test_a_zoo_that_grew_is_reported_without_its_earlier_cells(tmp_path):
    out = tmp_path / "out"
    for runs in (60, 80):
        zoo = str(write_zoo(tmp_path / str(runs), small_examples(runs)))  # shards never change
        run([Cell(zoo=zoo, model="hyperparameters", split=s) for s in (0, 1)], out)
    write_report(out, tmp_path / "report")
    page = (tmp_path / "report" / "index.md").read_text(encoding="utf-8")
    assert "2 cells are left out that were computed when a zoo had fewer runs." in page
    detail = (tmp_path / "report" / "small-independent.md").read_text(encoding="utf-8")
    assert "2 splits, 96 test rows of 32 runs of 32 configurations." in detail
