import pytest

from tests.layers import paper_formula
from transformer_nfn.layers import Row, equivariant_rows, invariant_rows
from transformer_nfn.space import (
    GATED,
    GROUPED,
    PAPER,
    RESIDUAL,
    RESIDUAL_NO_BO,
    Block,
    Kind,
    declare,
    free,
    linear,
    permuted,
)

COUNTS = [
    (PAPER, 45, 7),
    (RESIDUAL, 53, 8),
    (RESIDUAL_NO_BO, 41, 7),
    (GATED, 31, 6),
    (GROUPED, 33, 6),
]


@pytest.mark.parametrize(("block", "equivariant", "invariant"), COUNTS, ids=lambda x: str(x)[:20])
def test_number_of_rows(block: Block, equivariant: int, invariant: int) -> None:
    assert len(equivariant_rows(block)) == equivariant
    assert len(invariant_rows(block)) == invariant


def test_the_rows_of_the_paper_s_block_are_those_it_prints() -> None:
    assert {row.name for row in equivariant_rows(PAPER)} == {
        name for name, *_ in paper_formula.EQUIVARIANT
    }
    assert {row.name for row in invariant_rows(PAPER)} == {
        name for name, *_ in paper_formula.INVARIANT
    }


@pytest.mark.parametrize(("block", "equivariant", "invariant"), COUNTS, ids=lambda x: str(x)[:20])
def test_equivariance_can_be_seen(block: Block, equivariant: int, invariant: int) -> None:
    """No symmetric axis in a parameter, every linear axis tied, no row twice."""
    rows = [*equivariant_rows(block), *invariant_rows(block)]
    for row in rows:
        in_parameter = {*row.free_out, *row.free_in} - {"d"}
        assert all(block.axes[label].kind is Kind.FREE for label in in_parameter)
        linear_axes = {a for a in row.source_axes if block.axes[a].kind is Kind.LINEAR}
        assert linear_axes <= set(row.tied)
        assert {*row.tied, *row.summed, *row.free_in} == set(row.source_axes)
        assert {*row.tied, *row.broadcast, *row.free_out} == set(row.target_axes)
    assert len({row.name for row in rows}) == len(rows)


def row(block: Block, name: str) -> Row:
    return next(row for row in equivariant_rows(block) if row.name == name)


def test_parameters_and_fans() -> None:
    sizes = {"x": 3, "y": 3, "h": 2, "k": 5, "v": 7, "r": 3, "a": 11, "d": 1}
    into_b = row(PAPER, "B <- B a x")
    assert into_b.parameter == "e x' c x"
    assert into_b.parameter_shape(sizes, 4, 6) == (6, 3, 4, 3)
    assert into_b.fan_in(sizes, 4) == 4 * 3
    assert row(PAPER, "A <- VO x [r]").parameter == "e c x"
    assert row(PAPER, "A <- VO x [r]").fan_in(sizes, 1) == 3 * 3 * (2 * 7)
    assert row(PAPER, "B <- 1").parameter == "e x'"
    assert row(PAPER, "B <- 1").parameter_shape(sizes, 4, 6) == (6, 3)


def test_an_axis_permuted_within_each_group_is_tied_only_where_the_group_is() -> None:
    """Orbits of pairs under the wreath product: other group, same group, same head."""
    block = declare(
        "gates",
        axes={"g": permuted("groups"), "m": permuted("heads", per="g")},
        tensors={"s": "g m"},
        products={},
    )
    assert [r.name for r in equivariant_rows(block)] == [
        "s <- s [g] [m]",
        "s <- s g [m]",
        "s <- s g m",
        "s <- 1",
    ]


def test_heads_without_a_linear_axis_are_an_ordinary_permuted_axis() -> None:
    """A number for each head, and a product that keeps its head."""
    block = declare(
        "scaled heads",
        axes={
            "x": free("D"),
            "y": free("D"),
            "h": permuted("heads"),
            "k": linear("D_k", per="h"),
        },
        tensors={"Q": "h x k", "K": "h x k*", "s": "h"},
        products={"QK": "Q h x k, K h y k* -> h x y"},
    )
    names = [r.name for r in equivariant_rows(block) if r.target == "s"]
    assert names == ["s <- QK [h] x y", "s <- QK h x y", "s <- s [h]", "s <- s h", "s <- 1"]
