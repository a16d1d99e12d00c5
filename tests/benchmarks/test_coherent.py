from pathlib import Path

import pytest
import torch

from transformer_nfn.checkpoints import Checkpoint

coherent = pytest.importorskip("benchmarks.same.coherent", reason="no benchmarks in an sdist")


def test_each_number_is_a_rounding_and_the_rank_is_one() -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(40, 24, generator=generator, dtype=torch.float64)
    change = coherent.rank_one(value, generator)
    stored = value.to(torch.bfloat16).double()
    ratio = change.square().mean() / (stored - value).square().mean()
    assert ratio.sqrt().item() == pytest.approx(1, rel=0.1)
    assert torch.linalg.matrix_rank(change) == 1


def test_no_change_is_an_honest_copy_and_a_large_one_is_none(tmp_path: Path) -> None:
    base = coherent.small(tmp_path, 0)
    apart = []
    for size in (0.0, 30.0):
        other = coherent.changed(base, tmp_path / f"{size}", size, seed=1)
        with Checkpoint(base) as ours, Checkpoint(other) as theirs:
            apart.append(coherent.outputs_apart(ours, theirs))
    assert apart[0] < 2
    assert apart[1] > 10


def test_the_curve_ends_where_one_verdict_says_the_same(tmp_path: Path) -> None:
    results = [
        {"net": "n", "size": size, "same": same, "apart": 1.0, "answer": "different"}
        for size, same in ((0.0, True), (1.0, False), (2.0, True), (2.0, False), (4.0, False))
    ]
    found = coherent.curve(results, "n")
    assert found["told"] == [0, 1, 0.5, 1]
    assert coherent.smallest(found) == 4.0
    assert coherent.smallest(coherent.curve(results[:1], "n")) is None
    coherent.picture({"n": found}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
