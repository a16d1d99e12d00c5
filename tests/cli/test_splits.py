"""Splits on the command line: how many, or which."""

import pytest
import typer

from transformer_nfn.bench.protocol.splits import SPLITS as KNOWN
from transformer_nfn.cli.early import SPLITS, chosen_splits


@pytest.mark.parametrize(
    ("text", "splits"),
    [("5", (0, 1, 2, 3, 4)), ("1", (0,)), ("1,2", (1, 2)), ("3,", (3,)), ("2,0,2", (2, 0))],
)
def test_a_number_or_a_list(text: str, splits: tuple[int, ...]) -> None:
    assert chosen_splits(text) == splits


@pytest.mark.parametrize("text", ["", ",", "0", "6", "-1", "1,5", "two", "1;2", "1.5"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no number of splits, 1 to 5"):
        chosen_splits(text)


def test_there_are_as_many_as_the_benchmark_has() -> None:
    assert len(KNOWN) == SPLITS
