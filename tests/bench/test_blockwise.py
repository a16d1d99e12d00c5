from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.bench.small import RESIDUAL, SHAPE, small_examples
from tests.bench.test_features import SHAPES, elements
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.features.blockwise import blockwise, blockwise_values
from transformer_nfn.space import WeightBatch
from transformer_nfn.zoo.nets import NetShape

OTHERS = {
    **SHAPES,
    "one block": NetShape(tokens=4, inputs=4, D=8, heads=2, D_A=12, blocks=1, hidden=6, classes=3),
    "one head": NetShape(tokens=3, inputs=4, D=4, heads=1, D_A=3, blocks=4, hidden=6, classes=3),
}


def values(examples: Examples) -> np.ndarray:
    return blockwise_values(examples.nets()).numpy()


@pytest.mark.parametrize("name", OTHERS)
def test_every_net_has_as_many_features(name: str) -> None:
    rows = blockwise(small_examples(3, shape=OTHERS[name]))
    assert rows.shape[1] == blockwise(small_examples(1)).shape[1]
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("name", OTHERS)
def test_they_do_not_change_under_the_group(name: str) -> None:
    examples = small_examples(4, shape=OTHERS[name], dtype=torch.float64)
    moved = examples.moved(elements(examples))
    np.testing.assert_allclose(values(moved), values(examples), rtol=1e-7, atol=1e-9)


def test_wide_and_narrow_random_nets_look_alike() -> None:
    """Norms are relative to what random weights have: of nets with the same spread, about equal."""
    wide = NetShape(tokens=4, inputs=4, D=64, heads=4, D_A=128, blocks=3, hidden=6, classes=3)
    examples = small_examples(30, epochs=(1,))
    other = small_examples(30, epochs=(1,), shape=wide)
    assert examples.accuracy.tolist() == other.accuracy.tolist()
    one, two = blockwise(examples)[:, 0], blockwise(other)[:, 0]  # log-norm of Q Kᵀ, least
    assert np.corrcoef(one, two)[0, 1] > 0.95
    assert abs(float(np.mean(one - two))) < 0.5


def test_embedding_classifier_and_biases_of_one_kind_are_left_out() -> None:
    examples = small_examples(3, shape=RESIDUAL)
    blocks = examples.nets().blocks
    flat = blocks.flat().shape[-1]
    changed = examples.take(np.arange(len(examples)))
    changed.weights[:, flat:] *= 3
    biased = {name: blocks[name].clone() for name in ("Q", "K", "V", "bO")}
    for tensor in biased.values():
        tensor[..., -1:, :] += 1  # of bO the last block, all of it
    for other in (changed, examples.with_blocks(blocks.replace(biased))):
        np.testing.assert_array_equal(blockwise(other), blockwise(examples))


NO_SYMMETRY: dict[str, Callable[[WeightBatch], WeightBatch]] = {
    "only K of the heads swapped": lambda batch: batch.replace({"K": batch["K"].flip(3)}),
    "output of B permuted": lambda batch: batch.replace({"B": batch["B"].flip(-1)}),
    "hidden neurons of A alone": lambda batch: batch.replace({"A": batch["A"].flip(-1)}),
    "Q scaled": lambda batch: batch.replace({"Q": 2 * batch["Q"]}),
    "bA negated": lambda batch: batch.replace({"bA": -batch["bA"]}),
    "bB scaled": lambda batch: batch.replace({"bB": 2 * batch["bB"]}),
    "blocks swapped": lambda batch: batch.map(lambda tensor: tensor.flip(2)),
}


@pytest.mark.parametrize("name", NO_SYMMETRY)
def test_they_see_what_is_no_symmetry(name: str) -> None:
    examples = small_examples(4)
    changed = examples.with_blocks(NO_SYMMETRY[name](examples.nets().blocks))
    assert np.abs(blockwise(examples) - blockwise(changed)).max() > 1e-2


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e30])
def test_decayed_and_huge_weights_stay_finite(scale: float) -> None:
    examples = small_examples(1)
    assert np.isfinite(blockwise(Examples(examples.table, examples.weights * scale, SHAPE))).all()


def test_neurons_that_can_never_fire_are_counted() -> None:
    examples = small_examples(1, epochs=(1,))
    blocks = examples.nets().blocks
    bias = blocks["bA"].clone()
    bias[..., :3] = -1e3  # 3 of 12, in both blocks
    changed = blockwise(examples.with_blocks(blocks.replace({"bA": bias})))
    more = np.isclose(changed - blockwise(examples), 0.25, atol=1e-6)
    assert more.sum() >= 3  # of the first block, of the last, and in the mean
