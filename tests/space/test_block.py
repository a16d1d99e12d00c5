from dataclasses import replace

import pytest
import torch

from transformer_nfn.space import (
    BLOCKS,
    GLOSSARY,
    PAPER,
    RESIDUAL,
    Block,
    DeclarationError,
    declare,
    free,
    linear,
    permuted,
)

AXES = {"x": free("D"), "y": free("D"), "h": permuted("heads"), "k": linear("D_k", per="h")}
TENSORS = {"Q": "h x k", "K": "h x k*"}
QK = {"QK": "Q h x k, K h y k* -> x y"}


@pytest.mark.parametrize("name", BLOCKS)
def test_declaration_survives_a_round_trip_through_plain_data(name: str) -> None:
    block = BLOCKS[name]
    again = Block.from_dict(block.to_dict())
    assert again.to_dict() == block.to_dict()
    assert again.tensors == block.tensors
    assert again.products == block.products


def test_pointwise_tensors_of_the_paper_are_its_mlp() -> None:
    assert PAPER.pointwise == ("A", "B", "bA", "bB")


def test_glossary_names_every_axis_of_the_shipped_blocks() -> None:
    for block in BLOCKS.values():
        assert set(block.axes) <= set(GLOSSARY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": {**AXES, "n": free("D")}}, "reserved for networks in a batch"),
        ({"axes": {**AXES, "q": free("D")}}, r"axes that no tensor has: \['q'\]"),
        ({"axes": {**AXES, "k": linear("D_k", per="x")}}, r"axis 'k' needs \['x'\] beside it"),
        ({"axes": {**AXES, "k": linear("D_k", per="v")}}, "must be a permuted or free axis"),
        ({"tensors": {**TENSORS, "Q": "h x x"}}, "occurs twice"),
        ({"tensors": {**TENSORS, "Q": "x k"}}, r"needs \['h'\] beside it"),
        ({"tensors": {**TENSORS, "Q": "h x* k"}}, "have no dual"),
        ({"tensors": {**TENSORS, "Q": "h xx k"}}, "not one lower-case letter"),
        ({"tensors": {**TENSORS, "Q": "h u k"}}, "'u' is not declared"),
        ({"products": {"QK": "Q h x k -> x"}}, "write two factors"),
        ({"products": {"QK": "Q h x k, Z h y k* -> x y"}}, "no tensor 'Z'"),
        ({"products": {"QK": "Q h x k, K h y k -> x y"}}, "only a free axis may be renamed"),
        ({"products": {"QQ": "Q h x k, Q h y k -> x y"}}, "summed against its dual"),
        ({"products": {"QK": "Q h x k, K h y k* -> h x y k"}}, "summed against its dual"),
        ({"products": {"Q": "Q h x k, K h y k* -> x y"}}, "name of a tensor"),
        ({"products": {"QK": "Q h x k, K h y k* -> x z"}}, "'z' is not declared"),
    ],
)
def test_wrong_declarations_are_refused(changes: dict[str, object], message: str) -> None:
    declare("fine", AXES, TENSORS, QK)
    table = {"axes": AXES, "tensors": TENSORS, "products": QK, **changes}
    with pytest.raises(DeclarationError, match=message):
        declare("wrong", **table)  # type: ignore[arg-type]


def test_a_size_is_a_symbol_and_a_number() -> None:
    axis = free("D + 1")
    assert (axis.symbol, axis.offset) == ("D", 1)
    with pytest.raises(DeclarationError, match="write for example 'D'"):
        free("2 * D")


def test_an_axis_indexed_by_an_indexed_axis_names_both() -> None:
    axes = {**AXES, "m": permuted("heads", per="h"), "u": linear("D_k", per="m")}
    with pytest.raises(DeclarationError, match="itself per 'h'; name these before it"):
        declare("deep", axes, TENSORS, QK)


def test_what_a_new_block_says_of_its_tensors_can_be_compiled():
    """A cached property that is not worked out yet takes a lock, which torch.compile refuses."""
    block = replace(RESIDUAL)

    def count(weights: torch.Tensor) -> torch.Tensor:
        said = (block.readers, block.writers, block.gains, block.shifted, block.units)
        return weights * sum(map(len, (*said, block.attentions)))

    torch.compiler.reset()
    compiled = torch.compile(count, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), count(torch.ones(2)))
