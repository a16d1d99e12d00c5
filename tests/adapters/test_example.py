"""The example in examples/adapters, with hardly any training."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from transformer_nfn.adapters import AdapterCollection, read_adapters

FOLDER = Path(__file__).parents[2] / "examples" / "adapters"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    """`run.py`; its folder and its modules are forgotten afterwards."""
    sys.path.insert(0, str(FOLDER))
    import run

    yield run
    sys.path.remove(str(FOLDER))
    for name in ("run", "training", "learning"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def built(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("adapters")
    for _ in script.build(recipe(script), out):
        pass
    return out


def recipe(script: ModuleType, **changes: int) -> object:
    return script.Recipe(**{"tasks": 1, "copies": 2, "base_steps": 2, "steps": 1, **changes})


def read(script: ModuleType, out: Path) -> AdapterCollection:
    return read_adapters([out / "adapters" / run.name for run in script.runs(recipe(script))])


def test_folders_that_are_there_are_not_trained_again(script: ModuleType, built: Path) -> None:
    files = sorted((built / "adapters").glob("*/adapter_model.safetensors"))
    assert len(files) == 4 * 2
    before = [file.stat().st_mtime_ns for file in files]
    files[3].unlink()
    for file in files[3].parent.iterdir():
        file.unlink()
    files[3].parent.rmdir()
    runs = list(script.build(recipe(script), built))
    assert len(runs) == len(files)
    after = [file.stat().st_mtime_ns for file in files]
    assert [one != two for one, two in zip(before, after, strict=True)].count(True) == 1
    assert before[3] != after[3]
    assert not (built / "unfinished").exists()


def test_another_recipe_needs_another_folder(script: ModuleType, built: Path) -> None:
    with pytest.raises(SystemExit, match="choose another --out"):
        next(script.build(recipe(script, steps=2), built))


def test_all_forms_are_the_same_updates(script: ModuleType, built: Path, tmp_path: Path) -> None:
    found = read(script, built)
    assert set(found.ranks) == {1, 2, 4, 8}
    others = script.moved_on_disk(found, tmp_path / "moved"), script.moved_when_padded(found)
    for other in others:
        for one, two in zip(found.batches, other.batches, strict=True):
            assert not torch.allclose(one["A"], two["A"], rtol=0.1)
            update = one.product("AB")
            apart = (two.product("AB") - update).norm() / update.norm()
            assert apart < 1e-5
    counts = [script.counted(form) for form in (found, *others)]
    assert [c["columns of A that are not 0"] for c in counts] == [1.0, 1.0, 0.25]


def test_a_split_holds_out_some_of_each_task_and_rank(script: ModuleType) -> None:
    plan = script.runs(recipe(script, tasks=2, copies=4))
    train, test = script.split(plan, seed=1)
    assert sorted(train + test) == list(range(len(plan)))
    assert len({(plan[number].task, plan[number].rank) for number in test}) == len(test) == 8


def test_figures_are_plain_data_and_targets_can_fail(script: ModuleType, built: Path) -> None:
    found = read(script, built)
    forms = {"as is": found, "moved": found, "padded": found}
    figures = script.learned(forms, script.runs(recipe(script)), seeds=1, epochs=1)
    figures["rank_counted"] = {form: script.counted(found) for form in forms}
    figures["shared_start"] = False
    targets = script.judged(json.loads(json.dumps(figures)))
    figures["logits_apart_when_moved"] = 0.1
    assert sum(targets.values()) - sum(script.judged(figures).values()) == 1
    assert script.table(figures).count("\n") == 10
