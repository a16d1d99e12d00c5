from dataclasses import replace

import pytest

from transformer_nfn.space import GROUPED, PAPER, RESIDUAL, BlockSpec, DeclarationError

SIZES = {"D": 32, "heads": 2, "D_k": 16, "D_v": 16, "D_A": 64}


def test_shapes_follow_from_the_declaration() -> None:
    spec = BlockSpec(RESIDUAL, **SIZES)
    assert spec.shape("Q") == (2, 33, 16)
    assert spec.shape("QK") == (33, 33)
    assert spec.shape("bO") == (32,)


def test_the_paper_s_zoo_has_8288_weights_a_block() -> None:
    assert BlockSpec(PAPER, **SIZES).weights == 8288  # 16,576 for its two blocks


def test_missing_and_unknown_sizes_are_named() -> None:
    with pytest.raises(DeclarationError, match="missing: D_A, unknown: hidden"):
        BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=2, hidden=5)


def test_permuted_axes_of_size_one_are_refused_but_one_head_is_fine() -> None:
    assert BlockSpec(PAPER, **{**SIZES, "heads": 1}).shape("Q") == (1, 32, 16)
    with pytest.raises(DeclarationError, match=r"'a' .* has size 1, needs at least 2"):
        BlockSpec(PAPER, **{**SIZES, "D_A": 1})
    with pytest.raises(DeclarationError, match=r"'m' .* has size 1"):
        BlockSpec(GROUPED, D=8, groups=2, heads_per_group=1, D_k=4, D_v=4, D_A=16)


def test_equality_is_by_declaration_and_sizes() -> None:
    assert BlockSpec(PAPER, **SIZES) == BlockSpec(PAPER, **SIZES)
    assert hash(BlockSpec(PAPER, **SIZES)) == hash(BlockSpec(PAPER, **SIZES))
    assert BlockSpec(PAPER, **SIZES) != BlockSpec(RESIDUAL, **SIZES)
    # Nothing is decided by a name.
    assert BlockSpec(PAPER, **SIZES) == BlockSpec(replace(PAPER, name="ours"), **SIZES)
    assert BlockSpec(PAPER, **SIZES) != BlockSpec(replace(RESIDUAL, name="paper"), **SIZES)
    assert len({BlockSpec(PAPER, **SIZES), BlockSpec(replace(PAPER, name="ours"), **SIZES)}) == 1
    assert BlockSpec(PAPER, **SIZES) != BlockSpec(PAPER, **{**SIZES, "D": 8})
    assert repr(BlockSpec(PAPER, **SIZES)) == (
        "BlockSpec(paper, D=32, heads=2, D_k=16, D_v=16, D_A=64)"
    )
