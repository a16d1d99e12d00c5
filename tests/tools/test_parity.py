import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tools import parity
from tools.parity import Term

ROOT = Path(__file__).parents[2]
WEIGHTS = torch.randn(5, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def term(name: str, equation: str, *shape: int) -> Term:
    """One term of a made-up layer that reads "n l i j" and writes to x or y."""

    def run(parameter: Tensor) -> dict[str, Tensor]:
        made = torch.einsum(equation, WEIGHTS, parameter)
        return {out: made if out == name[0] else torch.zeros_like(made) for out in "xy"}

    return Term(name, shape, run)


THEIRS = [
    term("x of rows", "nlij,leik->nlek", 2, 3, 3),
    term("x of all", "nlij,lek->nlek", 2, 3),
    term("y of all", "nlij,lek->nlek", 2, 3),
]
OURS = [
    term("y sums", "nlij,lke->nlek", 3, 2),
    term("x sums", "nlij,lke->nlek", 3, 2),
    term("x keeps i", "nlij,lkei->nlek", 3, 2, 3),
]


def found(theirs: list[Term], ours: list[Term]) -> parity.Matching:
    return parity.match_terms(theirs, ours, 2, torch.Generator().manual_seed(0))


def test_each_term_has_its_row_whatever_the_order_of_axes() -> None:
    matching = found(THEIRS, OURS)
    assert not matching.problems
    assert [(match.term, match.row, match.order) for match in matching.matches] == [
        ("x of rows", "x keeps i", (2, 0, 1)),
        ("x of all", "x sums", (1, 0)),
        ("y of all", "y sums", (1, 0)),
    ]
    assert matching.error < 1e-14


def test_a_term_without_a_row_is_a_problem() -> None:
    assert found(THEIRS, OURS[1:]).problems == ["term y of all has 0 rows: none"]


def test_a_row_that_is_wrong_by_a_factor_is_not_found() -> None:
    almost = Term("x sums", (3, 2), lambda p: {o: t * 1.001 for o, t in OURS[1].run(p).items()})
    assert found(THEIRS, [OURS[0], almost, OURS[2]]).problems == [
        "term x of all has 0 rows: none",
        "row x sums is of 0 terms",
    ]


def test_two_rows_for_one_term_are_a_problem() -> None:
    assert found(THEIRS[1:2], [OURS[1], OURS[1]]).problems[0] == (
        "term x of all has 2 rows: x sums, x sums"
    )


def test_a_difference_from_zero_is_infinite() -> None:
    zero = torch.zeros(2)
    assert parity.apart({"a": zero}, {"a": zero}) == 0
    assert parity.apart({"a": zero}, {"a": zero + 1e-30}) == float("inf")
    assert parity.apart({"a": zero + 2}, {"a": zero + 1}) == 0.5


def test_a_folder_without_their_code_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(parity.MissingError, match=r"git clone https(.|\n)+checkout c1520e2"):
        parity.load(tmp_path)


@pytest.mark.skipif(
    "TNFN_AUTHORS" not in os.environ,
    reason="TNFN_AUTHORS names no checkout of github.com/Fsoft-AIC/Transformer-NFN",
)
def test_the_authors_code_agrees() -> None:
    command = [sys.executable, str(ROOT / "tools" / "parity.py"), os.environ["TNFN_AUTHORS"]]
    run = subprocess.run([*command, "--quick", "--json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["ok"]
    assert [report["terms"][kind]["terms"] for kind in ("equivariant", "invariant")] == [45, 7]
    assert report["counts"]["of them changed by training"] == 78
