import numpy as np
import pytest
import torch

from transformer_nfn.kinship import (
    COPY,
    NEAR,
    Fingerprint,
    Index,
    Kinship,
    Stack,
    copy_limit,
    distance,
)
from transformer_nfn.kinship.distances import summaries


def made_up(seed: int = 0, dtype: str = "float32", parts: int = 5, shape: str = "s") -> Fingerprint:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(parts, 16, generator=generator, dtype=torch.float64)
    return Fingerprint(
        f"f{seed}", shape, dtype, {f"part {i}": row for i, row in enumerate(numbers)}
    )


def near(one: Fingerprint, share: float, seed: int = 1) -> Fingerprint:
    generator = torch.Generator().manual_seed(seed)
    parts = {}
    for name, value in one.parts.items():
        noise = torch.randn(16, generator=generator, dtype=torch.float64)
        parts[name] = value + noise * share * value.norm() / noise.norm()
    return Fingerprint(f"{one.path}+", one.shape, one.dtype, parts)


def test_distances_are_relative_to_the_size() -> None:
    one = made_up()
    far = distance(one, near(one, 0.01))
    assert far.median == pytest.approx(0.01, rel=0.05)
    assert set(far.parts) == set(one.parts)
    larger = {name: 1000 * value for name, value in one.parts.items()}
    big = Fingerprint("big", "s", "float32", larger)
    assert distance(big, near(big, 0.01)).median == pytest.approx(far.median)


def test_the_kinds() -> None:
    one = made_up()
    assert distance(one, one).kinship is Kinship.COPY
    assert distance(one, near(one, COPY["float32"] / 2)).kinship is Kinship.COPY
    assert distance(one, near(one, COPY["float32"] * 2)).kinship is Kinship.KIN
    assert distance(one, near(one, NEAR * 0.8)).kinship is Kinship.KIN
    assert distance(one, made_up(1)).kinship is Kinship.STRANGER


def test_the_coarser_dtype_sets_the_limit() -> None:
    one = made_up()
    rounded = near(one, 0.01)
    rounded = Fingerprint("r", "s", "bfloat16", rounded.parts)
    assert distance(one, rounded).kinship is Kinship.COPY
    assert copy_limit("float64", "float32") == COPY["float32"]
    assert COPY["float64"] < COPY["float32"] < COPY["float16"] < COPY["bfloat16"] < NEAR


def test_a_new_part_is_no_copy_but_near() -> None:
    one = made_up()
    more = Fingerprint("m", "s", "float32", {**one.parts, "head": torch.ones(16).double()})
    far = distance(one, more)
    assert far.parts["head"] == 2.0
    assert far.kinship is Kinship.KIN


def test_one_changed_part_is_no_copy() -> None:
    one = made_up()
    parts = {**one.parts, "part 2": made_up(1).parts["part 2"]}
    assert distance(one, Fingerprint("o", "s", "float32", parts)).kinship is Kinship.KIN


def test_other_shapes_are_infinitely_far() -> None:
    far = distance(made_up(), made_up(shape="t"))
    assert far.largest == far.median == np.inf
    assert far.kinship is Kinship.STRANGER


def test_many_at_once_are_the_same_as_two() -> None:
    prints = [made_up(0), near(made_up(0), 1e-6), made_up(2, parts=4), near(made_up(0), 0.1, 3)]
    stack = Stack.of(prints)
    for i in range(4):
        to_all = {number: near for number, *near in stack.nearest(prints[i], 4)}
        for j in range(4):
            far = distance(prints[i], prints[j])
            pair = stack.judge(np.array([i]), np.array([j]))
            assert (pair.median[0], pair.kinship(0)) == (pytest.approx(far.median), far.kinship)
            assert to_all[j] == [pytest.approx(far.median), far.kinship]
    assert [(i, j, kind) for i, j, _, kind in Index.of(prints).pairs()] == [
        (0, 1, "copy"), (0, 3, "related"), (1, 3, "related"),
    ]  # fmt: skip


def test_a_query_may_have_parts_that_no_other_has() -> None:
    one = made_up()
    more = Fingerprint("m", "s", "float32", {"head": torch.ones(16).double(), **one.parts})
    found = Stack.of([one, near(one, 1e-6)]).nearest(more, 1)
    assert found == [(0, pytest.approx(distance(one, more).median), Kinship.KIN)]


@pytest.mark.filterwarnings("error")
def test_of_networks_of_zeros_nothing_is_said() -> None:
    """Neither has any part: no distance, and no warning of numpy to a user."""
    parts = np.array([[0.5, np.nan, 0.1], [np.nan, np.nan, np.nan]])
    largest, median = summaries(parts)
    assert (largest[0], median[0]) == (0.5, 0.3)
    assert np.isnan([largest[1], median[1]]).all()
