"""Batches of networks and group elements as torch treats tensors."""

import copy
import pickle  # noqa: TID251 - what a DataLoader's workers do

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset, default_collate

import transformer_nfn
from tests.strategies import generator
from transformer_nfn.group import GroupElement, random_element
from transformer_nfn.space import (
    BLOCKS,
    PAPER,
    ROTARY,
    BlockSpec,
    Container,
    DeclarationError,
    NetBatch,
    ShapeError,
    WeightBatch,
    declare,
    free,
    permuted,
)

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=6)


def weights(networks: int = 3) -> WeightBatch:
    return WeightBatch.random(SPEC, networks=networks, blocks=2, generator=generator(0))


def nets(networks: int = 3) -> NetBatch:
    seed = generator(1)
    return NetBatch(
        weights(networks),
        {"weight": torch.randn(networks, 7, 4, generator=seed)},
        {"bias2": torch.randn(networks, 9, generator=seed)},
    )


def elements(networks: int = 3) -> GroupElement:
    return random_element(SPEC, networks=networks, blocks=2, generator=generator(2))


ALL = [weights, nets, elements]


def leaves(container: Container) -> list[torch.Tensor]:
    return pytree.tree_leaves(container)


def assert_equal(one: Container, two: Container) -> None:
    assert type(one) is type(two)
    assert pytree.tree_structure(one) == pytree.tree_structure(two)
    for a, b in zip(leaves(one), leaves(two), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@pytest.mark.parametrize("make", ALL)
class TestEach:
    def test_copies_and_pickles(self, make) -> None:
        one = make()
        for two in (copy.deepcopy(one), copy.copy(one), pickle.loads(pickle.dumps(one))):
            assert_equal(one, two)
        deep = copy.deepcopy(one)
        assert leaves(deep)[0].data_ptr() != leaves(one)[0].data_ptr()

    def test_is_a_pytree(self, make) -> None:
        one = make()
        found, structure = pytree.tree_flatten(one)
        assert found
        assert all(isinstance(leaf, torch.Tensor) for leaf in found)
        assert_equal(pytree.tree_unflatten(found, structure), one)
        assert len(pytree.tree_flatten_with_path(one)[0]) == len(found)
        # Transforms put other things there: no check may stand in the way.
        assert leaves(pytree.tree_map(lambda _: 7, one)) == [7] * len(found)

    def test_numbers_slices_masks_and_lists_pick_networks(self, make) -> None:
        one = make()
        assert len(one) == 3
        assert [len(part) for part in one] == [1, 1, 1]
        assert_equal(one[1], one[1:2])
        assert_equal(one[-1], one[2:])
        assert_equal(one[[2, 0]], one[torch.tensor([2, 0])])
        assert_equal(one[[2, 0]], one[np.array([2, 0])])
        assert_equal(one[np.int64(1)], one[1])
        assert_equal(one[torch.tensor(1)], one[1])
        assert_equal(one[torch.tensor([True, False, True])], one[[0, 2]])
        assert len(one[:0]) == 0

    @pytest.mark.parametrize("number", [3, -4])
    def test_a_network_that_is_not_there(self, make, number) -> None:
        with pytest.raises(IndexError, match=f"network {number} of a batch of 3"):
            make()[number]

    @pytest.mark.parametrize("key", [(0, 1), None, 1.5, True, torch.zeros(2, 2), torch.zeros(2)])
    @pytest.mark.wrong_types
    def test_what_picks_no_network_is_refused_in_words(self, make, key) -> None:
        with pytest.raises(ShapeError, match="networks are picked by"):
            make()[key]

    def test_cat_and_stack(self, make) -> None:
        one, kind = make(), type(make())
        assert_equal(kind.cat([one[:1], one[1:]]), one)
        assert_equal(kind.stack(list(one)), one)
        with pytest.raises(ShapeError, match=rf"one of these has 2; use {kind.__name__}\.cat"):
            kind.stack([one[:1], one[1:]])
        with pytest.raises(ShapeError, match="there are no"):
            kind.cat([])

    def test_default_collate(self, make) -> None:
        one = make()
        joined, targets = default_collate([(part, float(i)) for i, part in enumerate(one)])
        assert_equal(joined, one)
        assert targets.tolist() == [0, 1, 2]

    def test_to(self, make) -> None:
        one = make()
        for two in (one.to(torch.float16), one.to("cpu", torch.float16), one.to(dtype=torch.half)):
            pairs = zip(leaves(one), leaves(two), strict=True)
            kinds = {(a.is_floating_point(), b.dtype) for a, b in pairs}
            assert kinds <= {(True, torch.float16), (False, torch.int64)}
        assert all(leaf.is_meta for leaf in leaves(one.to("meta", non_blocking=True)))
        assert_equal(one.to(), one)

    @pytest.mark.parametrize("where", [("cpu", "cpu"), (1.5,), (torch.half, torch.half)])
    @pytest.mark.wrong_types
    def test_to_nowhere(self, make, where) -> None:
        with pytest.raises(ShapeError, match="to takes a device, a dtype or both"):
            make().to(*where)

    def test_to_whole_numbers_is_refused(self, make) -> None:
        with pytest.raises(ShapeError, match="floating-point"):
            make().to(torch.int8)
        with pytest.raises(ShapeError, match="floating-point"):
            make().to(torch.complex64)

    def test_detach(self, make) -> None:
        one = pytree.tree_map(
            lambda t: t.clone().requires_grad_() if t.is_floating_point() else t, make()
        )
        assert any(leaf.requires_grad for leaf in leaves(one))
        assert not any(leaf.requires_grad for leaf in leaves(one.detach()))

    def test_repr_is_short(self, make) -> None:
        assert len(repr(make())) < 200


class Nets(Dataset):
    """A dataset as anybody would write it."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> tuple[NetBatch, torch.Tensor]:
        return nets(5)[number], torch.tensor(number)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_of_a_data_loader(context) -> None:
    loader = DataLoader(Nets(), batch_size=2, num_workers=1, multiprocessing_context=context)
    got = list(loader)
    assert_equal(NetBatch.cat([net for net, _ in got]), nets(5))
    assert torch.cat([number for _, number in got]).tolist() == [0, 1, 2, 3, 4]


def test_names_are_of_tensors() -> None:
    batch = weights()
    assert "Q" in batch
    assert "gate" not in batch
    with pytest.raises(KeyError, match="block 'paper' has no tensor 'gate', but Q K V O A B"):
        batch["gate"]


def test_networks_with_other_parts_are_not_joined() -> None:
    with pytest.raises(ShapeError, match="only some of these networks have weight in their embed"):
        NetBatch.cat([nets(), NetBatch(weights())])


@pytest.mark.wrong_types
def test_cat_along_nothing() -> None:
    with pytest.raises(ShapeError, match="networks, channels, blocks, not 'heads'"):
        WeightBatch.cat([weights()], "heads")  # type: ignore[arg-type]


@pytest.mark.parametrize("block", [*BLOCKS.values(), ROTARY], ids=lambda block: block.name)
def test_a_block_and_its_spec_pickle(block) -> None:
    symbols = dict.fromkeys(axis.symbol for axis in block.axes.values() if axis.symbol)
    spec = BlockSpec(block, **dict.fromkeys(symbols, 4))
    again = pickle.loads(pickle.dumps(spec))
    assert again == spec
    assert again.block is not block
    assert again.block.to_dict() == block.to_dict()
    assert again.block.halves == block.halves
    assert copy.deepcopy(spec).block is block
    tensors = {t: torch.zeros(1, 1, 1, *spec.shape(t)) for t in block.tensors}
    assert WeightBatch(again, tensors).spec == spec
    assert len(repr(block)) < 100


def test_a_function_of_ones_own_goes_along() -> None:
    axes = {"x": free("D"), "a": permuted("D_A")}
    block = declare("mine", axes, {"A": "x a"}, {}, function=my_function)
    assert pickle.loads(pickle.dumps(block)).function is my_function


def test_a_lambda_stays_behind() -> None:
    """It does not pickle, and a worker would wait for ever."""
    axes = {"x": free("D"), "a": permuted("D_A")}
    block = declare("mine", axes, {"A": "x a"}, {}, function=lambda w, tokens, eps: tokens)
    assert pickle.loads(pickle.dumps(block)).function is None


@pytest.mark.wrong_types
def test_sizes_and_weights_are_numbers_of_their_kind() -> None:
    with pytest.raises(DeclarationError, match=r"whole numbers, not D=4\.0"):
        BlockSpec(PAPER, D=4.0, heads=2, D_k=3, D_v=5, D_A=6)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"Q is torch.int64, weights are floating-point"):
        WeightBatch(SPEC, {name: tensor.long() for name, tensor in weights().tensors.items()})


def my_function(w, tokens, eps):
    return tokens


def test_the_rooms_are_seen_without_being_imported() -> None:
    assert {"space", "group", "layers", "models", "identity", "__version__"} <= set(
        dir(transformer_nfn)
    )
    assert transformer_nfn.space.WeightBatch is WeightBatch
    with pytest.raises(AttributeError, match="no 'spaces'; its rooms are"):
        transformer_nfn.spaces  # noqa: B018
