from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.bench.small import RESIDUAL, SHAPE, WORD_VECTORS, small_examples
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.features.blockwise import blockwise_values
from transformer_nfn.bench.models.features.kinds import (
    FEATURES,
    NUMBERS,
    OPTIMIZERS,
    hyperparameters,
    invariant_values,
    invariants,
    statistics,
    weights,
)
from transformer_nfn.group import GroupElement, conditioned, random_element
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch, declare
from transformer_nfn.zoo.nets import NetShape

SHAPES = {
    "paper": SHAPE,
    "residual": RESIDUAL,
    "word vectors": WORD_VECTORS,
    "three heads wider than deep": NetShape(
        tokens=4, inputs=3, D=6, heads=3, D_A=5, blocks=3, hidden=7, classes=2
    ),
}


def elements(examples: Examples, condition: float = 10.0) -> GroupElement:
    return random_element(
        examples.shape.spec,
        networks=len(examples),
        blocks=examples.shape.blocks,
        generator=torch.Generator().manual_seed(1),
        matrices=conditioned(condition),
    )


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The largest change of a feature, relative to the largest of its values over the rows."""
    return float((np.abs(one - other).max(0) / np.abs(one).max(0)).max())


def values(examples: Examples) -> np.ndarray:
    return invariant_values(examples.nets()).numpy()


@pytest.mark.parametrize("name", SHAPES)
def test_every_feature_is_float32_and_of_its_own_row(name: str) -> None:
    examples = small_examples(4, shape=SHAPES[name])
    for make in FEATURES.values():
        rows = make(examples)
        assert rows.dtype == np.float32
        assert rows.shape[0] == len(examples)
        assert np.isfinite(rows).all()
        some = np.array([7, 2, 5])
        np.testing.assert_array_equal(make(examples.take(some)), rows[some])
        assert make(examples.take(np.arange(0))).shape == (0, rows.shape[1])


@pytest.mark.parametrize("name", SHAPES)
def test_invariants_do_not_change_under_the_group(name: str) -> None:
    examples = small_examples(4, shape=SHAPES[name], dtype=torch.float64)
    assert difference(values(examples), values(examples.moved(elements(examples)))) < 1e-9


@pytest.mark.parametrize("name", SHAPES)
def test_invariants_in_float32_and_bad_coordinates_change_little(name: str) -> None:
    examples = small_examples(4, shape=SHAPES[name])
    moved = examples.moved(elements(examples, condition=1e3))
    assert difference(invariants(examples), invariants(moved)) < 1e-3
    assert difference(statistics(examples), statistics(moved)) > 0.1


def test_weights_and_statistics_do_change_under_the_group() -> None:
    examples = small_examples(4)
    moved = examples.moved(elements(examples))
    for make in (weights, statistics):
        assert difference(make(examples), make(moved)) > 0.1


def swapped_heads(name: str) -> Callable[[WeightBatch], WeightBatch]:
    return lambda batch: batch.replace({name: batch[name].flip(3)})


NO_SYMMETRY: dict[str, Callable[[WeightBatch], WeightBatch]] = {
    "V and O of the heads swapped": lambda batch: batch.replace(
        {"V": batch["V"].flip(3), "O": batch["O"].flip(3)}
    ),
    "only K of the heads swapped": swapped_heads("K"),
    "output of B permuted": lambda batch: batch.replace({"B": batch["B"].flip(-1)}),
    "hidden neurons of A alone": lambda batch: batch.replace({"A": batch["A"].flip(-1)}),
    "attention output of O alone": lambda batch: batch.replace({"O": batch["O"].flip(-1)}),
    "Q scaled": lambda batch: batch.replace({"Q": 2 * batch["Q"]}),
    "bA negated": lambda batch: batch.replace({"bA": -batch["bA"]}),
    "bB scaled": lambda batch: batch.replace({"bB": 2 * batch["bB"]}),
    "blocks swapped": lambda batch: batch.map(lambda tensor: tensor.flip(2)),
}


@pytest.mark.parametrize("name", NO_SYMMETRY)
def test_invariants_see_what_is_no_symmetry(name: str) -> None:
    examples = small_examples(4)
    changed = examples.with_blocks(NO_SYMMETRY[name](examples.nets().blocks))
    assert difference(invariants(examples), invariants(changed)) > 1e-2


@pytest.mark.parametrize("name", ["bO", "Q", "K", "V"])
def test_invariants_see_the_biases_of_a_residual_block(name: str) -> None:
    examples = small_examples(4, shape=SHAPES["residual"])
    blocks = examples.nets().blocks
    tensor = blocks[name].clone()
    tensor[..., -1:, :] *= 3  # the row of biases of Q, K and V; of bO all of it, the last block
    changed = examples.with_blocks(blocks.replace({name: tensor}))
    assert difference(invariants(examples), invariants(changed)) > 1e-2


@pytest.mark.parametrize("name", ["embedding.weight", "classifier.weight2", "classifier.bias2"])
@pytest.mark.parametrize("make", [statistics, invariants])
def test_embedding_and_classifier_are_seen(name: str, make: Callable) -> None:
    examples = small_examples(4)
    changed = examples.take(np.arange(len(examples)))
    offset, dims = SHAPE.stored[name]
    changed.weights[:, offset : offset + int(np.prod(dims))] *= 2
    assert difference(make(examples), make(changed)) > 0.1


def test_statistics_are_what_numpy_says() -> None:
    examples = small_examples(3)
    rows = statistics(examples).reshape(len(examples), -1, 7)
    for number, (offset, dims) in enumerate(SHAPE.stored.values()):
        part = examples.weights[:, offset : offset + int(np.prod(dims))].double().numpy()
        quantiles = np.quantile(part, [0, 0.25, 0.5, 0.75, 1], axis=1).T
        expected = np.column_stack([part.mean(1), part.var(1), quantiles])
        np.testing.assert_allclose(rows[:, number], expected, rtol=1e-5, atol=1e-7)


def test_first_invariants_are_singular_values_of_the_products() -> None:
    examples = small_examples(3, dtype=torch.float64)
    blocks = examples.nets().blocks
    product = blocks["Q"][:, 0] @ blocks["K"][:, 0].mT  # n l h x y
    singular = np.linalg.svd(product.numpy(), compute_uv=False)[..., :4]  # rank k = 4
    per_block = values(examples)[:, : 2 * (4 + 4 + 5)].reshape(len(examples), 2, -1)
    np.testing.assert_allclose(per_block[..., :4], singular.min(2), rtol=1e-9)


def test_hyperparameters_ignore_the_weights_and_the_accuracy() -> None:
    examples = small_examples(4)
    table = examples.table
    place = table.column_names.index("test_accuracy")
    blind = Examples(
        table.set_column(place, "test_accuracy", pa.array(np.zeros(len(table)))),
        torch.full_like(examples.weights, torch.nan),
        SHAPE,
    )
    rows = hyperparameters(examples)
    np.testing.assert_array_equal(rows, hyperparameters(blind))
    assert rows.shape == (len(examples), len(OPTIMIZERS) + len(NUMBERS))
    np.testing.assert_array_equal(rows[:, :4].sum(1), 1)
    assert rows[0, 0] == 1  # the first run is of sgd
    np.testing.assert_array_equal(rows[:, -1], examples.column("epoch"))


def test_an_unknown_optimizer_is_refused() -> None:
    examples = small_examples(2)
    place = examples.table.column_names.index("optimizer")
    table = examples.table.set_column(place, "optimizer", pa.array(["lion"] * len(examples)))
    with pytest.raises(BenchError, match="lion"):
        hyperparameters(Examples(table, examples.weights, SHAPE))


def test_huge_weights_stay_finite() -> None:
    examples = small_examples(1)
    huge = Examples(examples.table, examples.weights * 1e30, SHAPE)
    assert np.isfinite(invariants(huge)).all()
    assert np.isfinite(statistics(huge)).all()


@pytest.mark.parametrize("features", [invariant_values, blockwise_values])
def test_a_tensor_that_nobody_owns_is_refused(features: Callable) -> None:
    tables = PAPER.tables()
    block = declare("mine", PAPER.axes, {**tables["tensors"], "cross": "x a"}, tables["products"])
    spec = BlockSpec(block, D=4, heads=2, D_k=2, D_v=3, D_A=5)
    blocks = WeightBatch.random(spec, networks=2, generator=torch.manual_seed(0))
    with pytest.raises(BenchError, match="'mine' has cross, which these features do not see"):
        features(NetBatch(blocks))
