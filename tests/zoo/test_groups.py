import random
from collections import Counter
from multiprocessing.reduction import ForkingPickler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.zoo.conftest import write_tiny
from transformer_nfn.zoo import Recipe, StoreError
from transformer_nfn.zoo import groups as groups_module
from transformer_nfn.zoo.build import GroupJob
from transformer_nfn.zoo.groups import (
    Group,
    group_of_shard,
    kind_of,
    open_groups,
    runs_by_kind,
    shard_name,
)


def numbers(groups: list[Group]) -> list[int]:
    return sorted(number for group in groups for number in group.numbers)


def names(groups: list[Group]) -> set[str]:
    return {group.name for group in groups}


def check(recipe: Recipe, groups: list[Group]) -> None:
    """Each group has runs of one kind, at most so many, and is what its name says."""
    for group in groups:
        assert 0 < len(group.runs) <= recipe.group
        assert group.runs == tuple(recipe.all_runs[number] for number in group.numbers)
        assert len({kind_of(run) for run in group.runs}) == 1
        assert group_of_shard(recipe, group.name) == group
    assert len(names(groups)) == len(groups)


@given(count=st.integers(1, 34))
def test_the_groups_hold_each_of_the_first_runs_once(tiny_recipe, count):
    groups = open_groups(tiny_recipe, count, ())
    assert numbers(groups) == list(range(count))
    check(tiny_recipe, groups)


def test_runs_next_to_each_other_are_of_different_kinds(tiny_recipe):
    # Negative control: without sorting them by kind a group would have several.
    assert len({kind_of(run) for run in tiny_recipe.first_runs(3)}) > 1


@given(count=st.integers(1, 34), seed=st.integers(0, 2**32 - 1))
def test_whatever_was_committed_the_open_groups_are_the_others(tiny_recipe, count, seed):
    groups = open_groups(tiny_recipe, count, ())
    chance = random.Random(seed)
    chance.shuffle(groups)
    committed: set[str] = set()
    while groups:
        done = groups[: chance.randint(1, len(groups))]
        groups = groups[len(done) :]
        committed |= names(done)
        assert names(open_groups(tiny_recipe, count, committed)) == names(groups)


@given(
    counts=st.lists(st.integers(1, 34), min_size=2, max_size=5),
    seed=st.integers(0, 2**32 - 1),
)
def test_extensions_interruptions_and_deletions_leave_each_run_once(tiny_recipe, counts, seed):
    chance = random.Random(seed)
    committed: list[Group] = []
    for count in [*counts, max(counts)]:
        groups = open_groups(tiny_recipe, count, names(committed))
        check(tiny_recipe, groups)
        assert set(numbers(groups)) == set(range(count)) - set(numbers(committed))
        committed += chance.sample(groups, chance.randint(0, len(groups)))
        # Damaged shards are deleted, and their runs are open again.
        committed = chance.sample(committed, chance.randint(len(committed) // 2, len(committed)))
    committed += open_groups(tiny_recipe, max(counts), names(committed))
    assert numbers(committed) == list(range(max(counts)))  # each once


@given(first=st.integers(1, 34), more=st.integers(0, 33))
def test_more_runs_only_add_groups(tiny_recipe, first, more):
    count = min(34, first + more)
    committed = open_groups(tiny_recipe, first, ())
    added = open_groups(tiny_recipe, count, names(committed))
    assert numbers(added) == list(range(first, count))
    assert not open_groups(tiny_recipe, first, names(committed + added))


def test_a_build_that_stops_halfway_has_runs_of_all_kinds():
    recipe = Recipe.load("mnist-small")
    groups = open_groups(recipe, 960, ())
    first = Counter(kind_of(run) for group in groups[: len(groups) // 2] for run in group.runs)
    whole = Counter(kind_of(run) for run in recipe.first_runs(960))
    assert len(whole) == 16
    assert all(0.3 < first[kind] / whole[kind] < 0.8 for kind in whole)


def test_places_are_counted_within_a_kind(tiny_recipe):
    kinds = runs_by_kind(tiny_recipe.all_runs)
    assert [tuple(kind) for kind in kinds] == [
        ("adam", 700),
        ("adam", 1000),
        ("sgdm", 700),
        ("sgdm", 1000),
    ]
    assert sorted(n for places in kinds.values() for n in places) == list(range(34))
    kind, places = ("sgdm", 1000), kinds["sgdm", 1000]
    second = [group for group in open_groups(tiny_recipe, 34, ()) if "sgdm-f1000" in group.name][1]
    assert second.numbers == tuple(places[3:6])
    assert second.name.startswith("sgdm-f1000-000003-000006-")
    assert kind_of(second.runs[0]) == kind


def tampered(name: str) -> dict[str, str]:
    """A shard's name with one part changed."""
    optimizer, fraction, start, stop, digest = name.removesuffix(".parquet").split("-")
    parts = {
        "optimizer": ("adam", fraction, start, stop, digest),
        "fraction": (optimizer, "f700", start, stop, digest),
        "unknown fraction": (optimizer, "f500", start, stop, digest),
        "start": (optimizer, fraction, "000001", stop, digest),
        "stop": (optimizer, fraction, start, "000002", digest),
        "stop beyond the end": (optimizer, fraction, start, "000999", digest),
        "nothing": (optimizer, fraction, stop, stop, digest),
        "backwards": (optimizer, fraction, stop, start, digest),
        "digest": (optimizer, fraction, start, stop, "0" * 12),
        "short digest": (optimizer, fraction, start, stop, digest[:11]),
        "upper case": (optimizer, fraction, start, stop, digest.upper()),
    }
    made = {fault: "-".join(part) + ".parquet" for fault, part in parts.items()}
    return made | {"no name of ours": "part-0.parquet", "path": f"../{name}", "tail": f"{name}.x"}


def test_a_tampered_name_is_no_shard_of_the_recipe(tiny_recipe):
    first = next(g for g in open_groups(tiny_recipe, 34, ()) if "sgdm-f1000-000000" in g.name)
    assert group_of_shard(tiny_recipe, first.name) == first
    for fault, name in tampered(first.name).items():
        assert name != first.name, fault
        with pytest.raises(StoreError, match=r"holds no runs of this recipe \(tiny, seeds 'run'"):
            group_of_shard(tiny_recipe, name)
        with pytest.raises(StoreError, match="build into another folder"):
            open_groups(tiny_recipe, 34, [name])


def test_a_shard_of_another_recipe_or_track_is_refused(tiny_recipe, tmp_path):
    name = open_groups(tiny_recipe, 10, ())[0].name
    longer = Recipe.load(write_tiny(tmp_path, ("epochs = 2", "epochs = 3")))
    for other in (longer, tiny_recipe.with_seeds("shared")):
        with pytest.raises(StoreError, match="holds no runs of this recipe"):
            open_groups(other, 10, [name])


def test_a_name_follows_from_the_runs(tiny_recipe):
    group = open_groups(tiny_recipe, 34, ())[0]
    kind = kind_of(group.runs[0])
    assert shard_name(kind, 0, group.runs) == group.name
    others = {
        shard_name(kind, 0, group.runs[::-1]),
        shard_name(kind, 1, group.runs),
        shard_name(kind, 0, group.runs[:-1]),
    }
    assert len(others | {group.name}) == 4


def test_a_job_does_not_carry_the_runs_of_its_recipe_along(tiny_recipe):
    # It goes to a worker by itself: a paper recipe has 16,000 runs.
    recipe = tiny_recipe.with_seeds("run")  # a fresh one, that has looked up nothing
    before = len(bytes(ForkingPickler.dumps(recipe)))
    group = open_groups(recipe, 10, ())[0]
    assert len(bytes(ForkingPickler.dumps(recipe))) <= before + 500
    job = GroupJob(recipe, group, "folder", None, "cpu")
    assert ForkingPickler.loads(ForkingPickler.dumps(job)) == job


def test_the_state_of_a_zoo_is_read_in_one_pass_over_the_runs(tiny_recipe, monkeypatch):
    recipe = tiny_recipe.with_seeds("run")  # a fresh one, that has looked up nothing
    groups = open_groups(recipe, 34, ())
    looked = []
    monkeypatch.setattr(groups_module, "kind_of", lambda run: looked.append(run) or kind_of(run))
    assert open_groups(recipe, 34, names(groups)) == []
    # Not one pass for each shard: a paper zoo has 16,000 runs and 256 shards.
    assert len(looked) <= 2 * 34
