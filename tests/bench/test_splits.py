import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import small_examples
from transformer_nfn.bench.errors import BenchError, LeakError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.protocol.splits import (
    FILE,
    SPLITS,
    check_split,
    split_rows,
    stored_splits,
)
from transformer_nfn.zoo.dataset import Zoo


def sides(examples: Examples, number: int = 0) -> tuple[Examples, Examples, Examples]:
    train, validation, test = (
        examples.take(mask) for mask in split_rows(examples.table, SPLITS[number])
    )
    return train, validation, test


def with_column(examples: Examples, name: str, values: list[object]) -> Examples:
    place = examples.table.column_names.index(name)
    kind = examples.table.schema.field(name).type
    return replace(examples, table=examples.table.set_column(place, name, pa.array(values, kind)))


def test_every_run_is_tested_in_exactly_one_split():
    examples = small_examples(40)
    tested = sum(split_rows(examples.table, folds).test.astype(int) for folds in SPLITS)
    assert (tested == 1).all()


@pytest.mark.parametrize("number", range(5))
def test_a_split_puts_every_row_on_one_side(number):
    split = split_rows(small_examples(40).table, SPLITS[number])
    assert (sum(side.astype(int) for side in split) == 1).all()
    assert all(side.any() for side in split)


@pytest.mark.parametrize("number", range(5))
def test_a_clean_split_passes(number):
    check_split(*sides(small_examples(40), number))


def test_a_run_on_two_sides_is_caught():
    examples = small_examples(40)
    fold = examples.column("fold").copy()
    fold[0] = 5  # the first checkpoint of a test run goes to the training set
    with pytest.raises(LeakError, match="run_id run0000"):
        check_split(*sides(with_column(examples, "fold", fold.tolist())))


def test_near_twins_on_two_sides_are_caught():
    examples = small_examples(40)
    twins = examples.table.column("twins").to_pylist()
    twins = ["twins0005" if one == "twins0000" else one for one in twins]  # folds 0 and 5
    with pytest.raises(LeakError, match="twins twins0005"):
        check_split(*sides(with_column(examples, "twins", twins)))


def test_the_same_weights_under_another_name_are_caught():
    examples = small_examples(40)
    weights = examples.weights.clone()
    weights[0] = weights[5 * 3]  # run 0, to be tested, holds the weights of run 5
    with pytest.raises(LeakError, match="weights"):
        check_split(*sides(replace(examples, weights=weights)))


def test_an_empty_side_is_refused():
    train, _, test = sides(small_examples(40))
    with pytest.raises(BenchError, match="validation set is empty"):
        check_split(train, train.take(np.array([], dtype=np.int64)), test)


def test_splits_are_stored_with_the_zoo_once(tmp_path):
    zoo = Zoo(write_zoo(tmp_path / "zoo", small_examples(20)))
    assert stored_splits(zoo) == SPLITS
    written = json.loads((tmp_path / "zoo" / FILE).read_text())
    assert [tuple(split["test"]) for split in written["splits"]] == [s.test for s in SPLITS]
    assert stored_splits(zoo) == SPLITS


def test_other_splits_beside_the_zoo_are_refused(tmp_path):
    zoo = Zoo(write_zoo(tmp_path / "zoo", small_examples(20)))
    stored_splits(zoo)
    file = tmp_path / "zoo" / FILE
    file.write_text(file.read_text().replace('"test": [\n    0', '"test": [\n    7'))
    with pytest.raises(BenchError, match="other splits"):
        stored_splits(zoo)
    file.write_text("[]")
    with pytest.raises(BenchError, match="cannot be read"):
        stored_splits(zoo)


def test_a_zoo_that_can_only_be_read_has_its_splits(tmp_path, monkeypatch):
    zoo = Zoo(write_zoo(tmp_path / "zoo", small_examples(20)))

    def refuse(name: str, data: bytes) -> bool:
        raise OSError("read-only")

    monkeypatch.setattr(zoo.root, "write_once", refuse)
    assert stored_splits(zoo) == SPLITS
