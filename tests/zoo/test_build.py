import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from tests.zoo.conftest import built, digests, logs, shard_bytes, write_tiny
from transformer_nfn.group import relative_error
from transformer_nfn.jobs import Done, Failed, InProcess
from transformer_nfn.zoo import Build, DataError, Recipe, RecipeError, StoreError, load_task
from transformer_nfn.zoo import build as build_module
from transformer_nfn.zoo.build import GroupJob, train_job
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.finished.verification import verify
from transformer_nfn.zoo.format.schema import COLUMNS, FORMAT, MAY_BE_NULL, zoo_schema


class Untouched(InProcess):
    """An executor that nobody may use."""

    def run(self, function, jobs):
        raise AssertionError("nothing is to be trained")


def interrupted_after(count: int):
    """A watcher that is interrupted after so many groups."""

    def watch(outcomes: Iterator[object]) -> Iterator[object]:
        for number, outcome in enumerate(outcomes, start=1):
            yield outcome
            if number == count:
                raise KeyboardInterrupt

    return watch


def test_a_built_zoo_has_a_row_for_each_run_and_checkpoint(tiny_zoo):
    table = tiny_zoo.table()
    assert table.column_names == list(COLUMNS)
    keys = zip(*(table.column(name).to_pylist() for name in ("run", "checkpoint")), strict=True)
    assert sorted(keys) == sorted((run, c) for run in range(10) for c in ("1", "2", "best"))
    for row in table.to_pylist():
        run = tiny_zoo.recipe.all_runs[row["run"]]
        h = run.hyperparameters
        assert (row["run_id"], row["seed"]) == (run.id, run.seed)
        assert {name: row[name] for name in h.model_dump()} == h.model_dump()
        assert (row["twins"], row["fold"]) == (h.twins, h.fold)
        assert (row["task"], row["block"]) == ("digits", "paper")
        assert row["checkpoint"] == "best" or row["epoch"] == int(row["checkpoint"])
    for name in tiny_zoo.names():
        schema = tiny_zoo.shards.read(name).schema
        assert schema.equals(zoo_schema(tiny_zoo.recipe.shape), check_metadata=True)


def test_a_run_with_an_absurd_rate_is_kept_as_diverged_and_the_others_are_not(tiny_zoo):
    whole = pa.concat_tables(tiny_zoo.shards.read(name) for name in tiny_zoo.names())
    diverged = whole.filter(pc.field("status") == "diverged")
    assert set(diverged.column("run").to_pylist()) == {0}
    assert set(diverged.column("lr").to_pylist()) == {1e30}
    figures = [*sorted(MAY_BE_NULL), "weights"]
    for name in figures:
        assert diverged.column(name).null_count == len(diverged) == 3
    assert {row["checkpoint"]: row["epoch"] for row in diverged.to_pylist()} == {
        "1": 1,
        "2": 2,
        "best": 0,
    }
    ok = whole.filter(pc.field("status") == "ok")
    assert len(ok) == 27
    for name in figures:
        assert ok.column(name).null_count == 0
    # Also those that were trained beside it.
    beside = {"sgdm-f1000-000000-000003" in name for name in tiny_zoo.names()}
    assert beside == {True, False}


def test_the_best_row_is_that_of_its_epoch(tiny_zoo):
    table, _ = tiny_zoo.rows()
    rows = {(row["run"], row["checkpoint"]): row for row in table.to_pylist()}
    for run in range(1, 10):
        best, epochs = rows[run, "best"], [rows[run, "1"], rows[run, "2"]]
        highest = max(row["validation_accuracy"] for row in epochs)
        first = next(row for row in epochs if row["validation_accuracy"] == highest)
        for name in ("epoch", "train_loss", "train_accuracy", "validation_accuracy"):
            assert best[name] == first[name]
        assert best["test_accuracy"] == first["test_accuracy"]


def test_the_description_has_the_recipe_and_the_versions(tiny_recipe, tiny_zoo):
    described = json.loads((Path(tiny_zoo.url) / "zoo.json").read_text("utf-8"))
    assert set(described) == {"format", "recipe", "data", "versions"}
    assert described["format"] == FORMAT
    assert set(described["versions"]) == {"transformer-nfn", "torch", "python"}
    assert described["versions"]["torch"] == torch.__version__
    assert "runs" not in described["recipe"]  # it may be extended
    built = Recipe.model_validate({**described["recipe"], "runs": 10})
    assert built == tiny_recipe.with_data(load_task("digits", patch=4).digest)


def test_a_session_leaves_a_log(tiny_zoo):
    (log,) = logs(tiny_zoo.url)
    assert set(log) == {
        "started",
        "wall_seconds",
        "worker_seconds",
        "workers",
        "runs",
        "compiled_runs",
    }
    assert (log["runs"], log["workers"]) == (10, 1)
    assert 0 < log["worker_seconds"] <= log["wall_seconds"] + 0.1
    time.strptime(log["started"], "%Y-%m-%dT%H:%M:%SZ")


def test_building_again_does_nothing(tiny_recipe, own_zoo):
    before = {path: path.stat().st_mtime_ns for path in Path(own_zoo.url).rglob("*.*")}
    build = Build(tiny_recipe, own_zoo.url)
    assert (build.missing, build.groups) == (0, [])
    assert build.run(InProcess()) == []
    assert {path: path.stat().st_mtime_ns for path in Path(own_zoo.url).rglob("*.*")} == before
    assert len(logs(own_zoo.url)) == 1


@pytest.mark.parametrize("groups", [1, 3])
def test_an_interrupted_build_goes_on_to_the_same_bytes(tiny_recipe, tiny_zoo, tmp_path, groups):
    build = Build(tiny_recipe, tmp_path)
    assert (build.missing, len(build.groups)) == (10, 5)
    with pytest.raises(KeyboardInterrupt):
        build.run(InProcess(), interrupted_after(groups))
    zoo = Zoo(tmp_path)
    assert len(zoo.names()) == groups
    assert shard_bytes(zoo).items() < shard_bytes(tiny_zoo).items()

    resumed = Build(tiny_recipe, tmp_path)
    assert len(resumed.groups) == 5 - groups
    assert resumed.run(InProcess()) == []
    assert digests(zoo) == digests(tiny_zoo)
    assert shard_bytes(zoo) == shard_bytes(tiny_zoo)
    assert sum(log["runs"] for log in logs(tmp_path)) == 10
    assert len(logs(tmp_path)) == 2


def test_the_comparison_of_zoos_notices_another_seed(tiny_recipe, tiny_zoo, tmp_path):
    shared = built(tiny_recipe.with_seeds("shared"), tmp_path, runs=1)
    assert digests(shared).keys() <= digests(tiny_zoo).keys()
    assert not set(digests(shared).values()) & set(digests(tiny_zoo).values())


def test_more_runs_extend_a_zoo_and_leave_its_shards_alone(tiny_recipe, tiny_zoo, tmp_path):
    six = built(tiny_recipe, tmp_path, runs=6)
    before = shard_bytes(six)
    assert set(six.table().column("run").to_pylist()) == set(range(6))

    build = Build(tiny_recipe, tmp_path, runs=10)
    assert build.missing == 4
    assert build.run(InProcess()) == []
    assert before.items() < shard_bytes(six).items()
    assert digests(six).keys() == digests(tiny_zoo).keys()
    # Runs that stand in groups of another size agree within rounding.
    got, expected = six.rows(), tiny_zoo.rows()
    assert got.table.column("run_id") == expected.table.column("run_id")
    assert relative_error(got.nets.blocks, expected.nets.blocks) <= 1e-4
    assert [problems for _, _, problems in verify(six) if problems] == []
    assert Build(tiny_recipe, tmp_path, runs=6).missing == 0


def test_a_folder_takes_one_recipe(tiny_recipe, own_zoo, tmp_path):
    before = shard_bytes(own_zoo), (Path(own_zoo.url) / "zoo.json").read_bytes()
    longer = Recipe.load(write_tiny(tmp_path, ("epochs = 2", "epochs = 3")))
    for other in (longer, tiny_recipe.with_seeds("shared")):
        with pytest.raises(StoreError, match=r"holds another zoo.*another folder"):
            Build(other, own_zoo.url)
    fewer = Recipe.load(write_tiny(tmp_path, ("runs = 10", "runs = 2")))
    assert Build(fewer, own_zoo.url).missing == 0
    assert (shard_bytes(own_zoo), (Path(own_zoo.url) / "zoo.json").read_bytes()) == before


def test_a_foreign_shard_stops_the_build(tiny_recipe, own_zoo):
    names = own_zoo.names()
    (Path(own_zoo.shards.url) / names[0]).rename(Path(own_zoo.shards.url) / "foreign.parquet")
    with pytest.raises(StoreError, match=r"foreign.parquet.*holds no runs of this recipe"):
        Build(tiny_recipe, own_zoo.url)


def test_a_wrong_number_of_runs_is_reported_before_anything_is_written(tiny_recipe, tmp_path):
    with pytest.raises(RecipeError, match="34 runs, asked for 35"):
        Build(tiny_recipe, tmp_path / "zoo", runs=35)
    assert not (tmp_path / "zoo").exists()


def test_missing_data_are_reported_before_any_job(tmp_path):
    (tmp_path / "empty").mkdir()
    recipe = Recipe.load(write_tiny(tmp_path, ('"digits"', '"mnist"')))
    with pytest.raises(DataError, match="empty"):
        Build(recipe, tmp_path / "zoo", data=tmp_path / "empty")
    assert not (tmp_path / "zoo").exists()


def test_other_data_than_those_of_the_zoo_are_refused(tiny_recipe, own_zoo, tmp_path, monkeypatch):
    task = load_task("digits", patch=4)
    build = Build(tiny_recipe, tmp_path)
    other = replace(task, test=task.test.first(len(task.test) - 1), digest="")
    monkeypatch.setattr(build_module, "_task", lambda *_: other)
    with pytest.raises(StoreError, match="holds another zoo"):
        Build(tiny_recipe, own_zoo.url)
    # A worker whose data are others than those where the build was started.
    with pytest.raises(DataError, match="not those that this zoo was begun with"):
        train_job(GroupJob(build.recipe, build.groups[0], build.shards.url, None, "cpu"))
    assert not build.shards.names()


def test_the_executor_that_nobody_may_use_is_noticed(tiny_recipe, tmp_path):
    with pytest.raises(AssertionError, match="nothing is to be trained"):
        Build(tiny_recipe, tmp_path).run(Untouched())


def test_a_zoo_can_be_built_in_an_object_store(tiny_recipe, tiny_zoo):
    zoo = built(tiny_recipe, f"memory://{uuid4().hex}")
    assert digests(zoo) == digests(tiny_zoo)
    assert shard_bytes(zoo) == shard_bytes(tiny_zoo)
    assert logs(zoo.url)[0]["runs"] == 10
    assert Build(tiny_recipe, zoo.url).missing == 0


def test_a_group_that_fails_stops_no_other_and_is_trained_the_next_time(
    tiny_recipe, tiny_zoo, tmp_path, monkeypatch
):
    build = Build(tiny_recipe, tmp_path)
    bad = build.groups[1].name
    table = build_module.zoo_table

    def failing(shape, rows, weights):
        if rows[0]["run"] == build.groups[1].numbers[0]:
            raise ArithmeticError("planted")
        return table(shape, rows, weights)

    with monkeypatch.context() as patched:
        patched.setattr(build_module, "zoo_table", failing)
        failures = build.run(InProcess())
    (failure,) = failures
    assert isinstance(failure, Failed)
    assert failure.job.group.name == bad
    assert "ArithmeticError: planted" in failure.error
    assert set(Zoo(tmp_path).names()) == set(tiny_zoo.names()) - {bad}
    assert digests(built(tiny_recipe, tmp_path)) == digests(tiny_zoo)


def test_if_all_groups_fail_nothing_is_written(tmp_path):
    recipe = Recipe.load(write_tiny(tmp_path, ("train_examples = 96", "train_examples = 5000")))
    failures = Build(recipe, tmp_path / "zoo").run(InProcess())
    assert len(failures) == 5
    assert all("the first 5000 of 1097 examples" in failure.error for failure in failures)
    assert logs(tmp_path / "zoo") == []
    with pytest.raises(StoreError, match="no shards yet"):
        Zoo(tmp_path / "zoo").names()


def test_a_job_that_runs_twice_commits_once(tiny_recipe, tiny_zoo, tmp_path):
    build = Build(tiny_recipe, tmp_path)
    group = next(one for one in build.groups if one.name.startswith("adam-") and len(one.runs) > 1)
    job = GroupJob(build.recipe, group, build.shards.url, None, "cpu")
    first, second = train_job(job), train_job(job)
    assert (first.committed, second.committed) == (True, False)
    assert first._replace(committed=False) == second
    assert (first.name, first.runs, first.ok, first.diverged) == (group.name, 2, 6, 0)
    assert build.shards.names() == {group.name}
    assert build.shards.read_bytes(group.name) == tiny_zoo.shards.read_bytes(group.name)


def test_a_job_leaves_the_number_of_threads_as_it_was(tiny_recipe, tmp_path):
    build = Build(tiny_recipe, tmp_path)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train_job(GroupJob(build.recipe, build.groups[-1], build.shards.url, None, "cpu"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_only_old_temporaries_are_swept(tiny_recipe, own_zoo):
    folder = Path(own_zoo.shards.url) / "_tmp"
    folder.mkdir(exist_ok=True)
    old, new = folder / "old.parquet.1", folder / "new.parquet.2"
    for path, age in ((old, 2 * build_module.SWEEP_AGE), (new, 0)):
        path.write_bytes(b"half")
        os.utime(path, times=(time.time() - age,) * 2)
    Build(tiny_recipe, own_zoo.url)
    assert own_zoo.shards.leftovers() == ["_tmp/new.parquet.2"]


def test_outcomes_pass_through_the_watcher(tiny_recipe, tmp_path):
    seen = []

    def watch(outcomes):
        for outcome in outcomes:
            seen.append(outcome)
            yield outcome

    build = Build(tiny_recipe, tmp_path, runs=2)
    assert build.run(InProcess(), watch) == []
    assert [outcome.job.group for outcome in seen] == build.groups
    assert all(isinstance(outcome, Done) for outcome in seen)
    assert sum(outcome.result.diverged for outcome in seen) == 3
