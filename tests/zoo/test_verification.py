import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.zoo.conftest import built, plant, write_tiny
from transformer_nfn.zoo import Checked, Recipe, verify
from transformer_nfn.zoo.dataset import Zoo

#: The shard of the run that diverged, and another.
WILD, CALM = "sgdm-f1000-000000-000003", "sgdm-f700-000000-000003"

Rows = list[dict[str, Any]]


def shard(zoo: Zoo, start: str) -> str:
    (name,) = (name for name in zoo.names() if name.startswith(start))
    return name


def path_of(zoo: Zoo, start: str) -> Path:
    return Path(zoo.shards.url) / shard(zoo, start)


def problems(zoo: Zoo) -> dict[str, list[str]]:
    """What is found by a reader who comes anew, without the shards that are sound."""
    return {one.name: one.problems for one in verify(Zoo(zoo.url)) if one.problems}


def check_found(zoo: Zoo, start: str, *texts: str) -> None:
    """These texts are reported of this shard, and nothing of others."""
    found = problems(zoo)
    assert list(found) == [shard(zoo, start)]
    said = "\n".join(found[shard(zoo, start)])
    for text in texts:
        assert text in said


def test_a_sound_zoo_has_no_problems(tiny_zoo):
    checked = list(verify(tiny_zoo))
    assert [one.name for one in checked] == tiny_zoo.names()
    assert sum(one.rows for one in checked) == 30
    assert problems(tiny_zoo) == {}


def test_a_shard_that_is_written_again_unchanged_is_sound(own_zoo):
    plant(own_zoo, shard(own_zoo, WILD), lambda rows: None)
    plant(own_zoo, shard(own_zoo, CALM), lambda rows: None, sign=True)
    assert problems(own_zoo) == {}


def test_a_zoo_in_another_folder_or_half_built_is_sound(tiny_recipe, own_zoo, tmp_path):
    assert problems(own_zoo) == {}
    path_of(own_zoo, CALM).unlink()
    assert problems(own_zoo) == {}
    assert problems(built(tiny_recipe.with_seeds("shared"), tmp_path / "shared", runs=1)) == {}


def flip_a_bit(rows: Rows) -> None:
    weights = np.array(rows[4]["weights"], dtype=np.float32)
    weights.view(np.uint32)[77] ^= 1  # the last of the mantissa
    rows[4]["weights"] = weights.tolist()


def put_nan(rows: Rows) -> None:
    rows[5]["weights"][3] = float("nan")


def put_infinity(rows: Rows) -> None:
    rows[5]["weights"][3] = float("inf")


def exchange_weights(rows: Rows) -> None:
    first, second = rows[0], rows[3]
    first["weights"], second["weights"] = second["weights"], first["weights"]


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (flip_a_bit, "row 4 "),
        (put_nan, "row 5 "),
        (exchange_weights, "row 3 "),
        (lambda rows: rows[2].update(test_accuracy=0.25), "row 2 (run 3, checkpoint best)"),
        (lambda rows: rows[2].update(test_accuracy=None), "row 2 "),
        (lambda rows: rows[1].update(lr=0.5), "row 1 "),
        (lambda rows: rows[1].update(seed=0), "row 1 "),
        (lambda rows: rows[1].update(digest="0" * 64), "row 1 "),
    ],
)
def test_a_change_is_caught_by_the_checksum(own_zoo, change: Callable[[Rows], object], row):
    plant(own_zoo, shard(own_zoo, CALM), change)
    check_found(own_zoo, CALM, row, "checksum is wrong")


def test_a_changed_byte_of_the_file_is_caught(own_zoo):
    path = path_of(own_zoo, CALM)
    content = bytearray(path.read_bytes())
    weights = pq.read_table(path).column("weights").combine_chunks().flatten().to_numpy()
    place = content.index(weights[1690 : 1690 + 50].tobytes())
    content[place + 11] ^= 0x10
    path.write_bytes(bytes(content))
    check_found(own_zoo, CALM, "checksum is wrong")


def no_weights(rows: Rows) -> None:
    rows[4]["weights"] = None


def weights_for_diverged(rows: Rows) -> None:
    for row in rows:
        if row["status"] == "diverged":
            row["weights"] = [0.0] * 1690


@pytest.mark.parametrize(
    ("start", "change", "text"),
    [
        (CALM, put_nan, "row 5 (run 6, checkpoint best): NaN or infinite weights"),
        (CALM, put_infinity, "NaN or infinite weights"),
        (CALM, no_weights, "status 'ok' without weights"),
        (WILD, weights_for_diverged, "status 'diverged' with weights"),
        (CALM, lambda rows: rows[0].update(test_accuracy=1.5), "test_accuracy is 1.5"),
        (CALM, lambda rows: rows[0].update(validation_accuracy=-0.1), "accuracy is -0.1"),
        (CALM, lambda rows: rows[0].update(train_accuracy=float("nan")), "accuracy is nan"),
        (CALM, lambda rows: rows.pop(3), "1 rows are missing and 0 are not of this shard's runs"),
        (CALM, lambda rows: rows.append(rows[3]), "a row is in the shard twice"),
        (CALM, lambda rows: rows[3].update(run_id="0" * 32), "1 rows are missing and 1 are not"),
        (CALM, lambda rows: rows[3].update(checkpoint="7"), "1 rows are missing and 1 are not"),
        (CALM, lambda rows: rows.clear(), "9 rows are missing"),
    ],
)
def test_a_fault_is_caught_also_if_its_checksum_is_right(own_zoo, start, change, text):
    plant(own_zoo, shard(own_zoo, start), change, sign=True)
    check_found(own_zoo, start, text)
    assert "checksum" not in str(problems(own_zoo))


def test_rows_that_are_in_a_second_shard_too_are_caught(own_zoo):
    copied = path_of(own_zoo, "adam-f700").name
    rows = own_zoo.shards.read(copied).to_pylist()
    plant(own_zoo, shard(own_zoo, CALM), lambda there: there.extend(rows[:2]))
    check_found(
        own_zoo,
        CALM,
        f"('{rows[1]['run_id']}', '{rows[1]['checkpoint']}') is in the zoo twice",
        "0 rows are missing and 2 are not of this shard's runs",
    )


def test_a_copy_of_a_shard_under_another_name_is_caught(own_zoo):
    path = path_of(own_zoo, CALM)
    shutil.copy(path, path.with_name("sgdm-f700-000003-000006-000000000000.parquet"))
    check_found(
        own_zoo, "sgdm-f700-000003", "is in the zoo twice", "holds no runs of this recipe (tiny"
    )


def test_a_shard_of_another_zoo_is_caught(tiny_recipe, own_zoo, tmp_path):
    other = built(tiny_recipe.with_seeds("shared"), tmp_path / "other", runs=1)
    (foreign,) = other.names()
    shutil.copy(Path(other.shards.url) / foreign, Path(own_zoo.shards.url) / foreign)
    found = problems(own_zoo)
    assert list(found) == [foreign]
    assert "holds no runs of this recipe" in found[foreign][0]


def write_foreign(zoo: Zoo, name: str) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), Path(zoo.shards.url) / name)


@pytest.mark.parametrize("name", ["foreign.parquet", "a-foreign.parquet"])
def test_a_file_that_is_no_shard_is_caught_and_the_others_are_not(own_zoo, name):
    # Also if it is the first: the sound shards stay sound.
    write_foreign(own_zoo, name)
    found = problems(own_zoo)
    assert list(found) == [name]
    assert found[name] == ["its schema is not the zoo's"]


@pytest.mark.parametrize("name", ["z.parquet", "a.parquet"])
def test_a_shard_of_other_nets_is_caught_and_the_others_are_not(own_zoo, tmp_path, name):
    wider = Recipe.load(write_tiny(tmp_path, ("D_A = 12", "D_A = 16")))
    other = built(wider, tmp_path / "other", runs=1)
    shutil.copy(Path(other.shards.url) / other.names()[0], Path(own_zoo.shards.url) / name)
    assert list(problems(own_zoo)) == [name]


@pytest.mark.parametrize("start", ["adam-f1000", "sgdm-f1000-000003", CALM])
@pytest.mark.parametrize("left", [0, 100, -8, -1])
def test_a_truncated_file_is_caught_and_the_others_are_not(own_zoo, start, left):
    path = path_of(own_zoo, start)
    path.write_bytes(path.read_bytes()[:left])
    found = {one.name: one for one in verify(Zoo(own_zoo.url)) if one.problems}
    assert list(found) == [path.name]
    assert found[path.name] == Checked(path.name, 0, found[path.name].problems)


def test_other_metadata_are_caught(own_zoo):
    path = path_of(own_zoo, CALM)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"transformer_nfn": "{}"}), path)
    check_found(own_zoo, CALM, "its schema is not the zoo's")


def test_a_temporary_that_was_left_is_reported(own_zoo):
    folder = Path(own_zoo.shards.url) / "_tmp"
    folder.mkdir(exist_ok=True)
    (folder / "x.parquet.1").write_bytes(b"half")
    checked = list(verify(own_zoo))
    assert len(checked) == 6
    assert checked[-1].name == "_tmp/x.parquet.1"
    assert "a build is under way, or was killed" in checked[-1].problems[0]
    assert all(one.problems == [] for one in checked[:-1])
