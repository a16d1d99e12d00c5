from math import prod

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from transformer_nfn.group import relative_error
from transformer_nfn.space import (
    ShapeError,
    apply_blocks,
    apply_paper_net,
    layer_norm,
    sine_positions,
)
from transformer_nfn.zoo.nets import NetShape, views
from transformer_nfn.zoo.training.lockstep import Lockstep

SIZES = {"tokens": 6, "D": 12, "heads": 3, "D_A": 11, "blocks": 2, "hidden": 5, "classes": 7}
IMAGES = NetShape(inputs=9, **SIZES)
TEXT = NetShape(inputs=0, **SIZES)
RESIDUAL = NetShape(block="residual", inputs=9, **SIZES)
RESIDUAL_TEXT = NetShape(block="residual", inputs=0, **SIZES)
SHAPES = pytest.mark.parametrize(
    "shape",
    [IMAGES, TEXT, RESIDUAL, RESIDUAL_TEXT],
    ids=["paper", "paper text", "residual", "residual text"],
)
NETS, BATCH = 4, 3


def random_flat(shape: NetShape) -> Tensor:
    """Biases are not zero either: else a lost one would not be seen."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(NETS, shape.size, generator=generator, dtype=torch.float64)


def random_inputs(shape: NetShape) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    size = (NETS, BATCH, shape.tokens, shape.inputs or shape.D)
    return torch.randn(size, generator=generator, dtype=torch.float64)


def apply_residual_net(shape: NetShape, stored: Tensor, inputs: Tensor) -> Tensor:
    net = shape.net_batch(stored)
    x = inputs
    if shape.inputs:
        x = inputs @ net.embedding["weight"] + net.embedding["bias"].unsqueeze(1)
    x = x + sine_positions(*x.shape[1:]).to(x)
    pooled = layer_norm(apply_blocks(net.blocks, x), 1e-5).mean(dim=1)
    c = net.classifier
    hidden = (torch.einsum("nx,nxu->nu", pooled, c["weight1"]) + c["bias1"]).relu()
    return torch.einsum("nu,nuo->no", hidden, c["weight2"]) + c["bias2"]


def stored_function(shape: NetShape, stored: Tensor, inputs: Tensor) -> Tensor:
    """Logits of the stored net for one sequence for each network."""
    if shape.block == "paper":
        return apply_paper_net(shape.net_batch(stored), inputs)
    return apply_residual_net(shape, stored, inputs)


def test_the_papers_nets_have_18506_and_17764_numbers():
    mnist, ag_news = (
        NetShape(tokens=49, inputs=16),
        NetShape(tokens=32, inputs=0, classes=4),
    )
    assert (mnist.size, ag_news.size) == (18_506, 17_764)
    block = 3 * 32 * 32 + 32 * 32 + 2 * 32 * 64 + 64 + 32
    assert mnist.size == 2 * block + (16 * 32 + 32) + (32 * 32 + 32 + 32 * 10 + 10)
    assert ag_news.size == 2 * block + (32 * 32 + 32 + 32 * 4 + 4)
    assert mnist.spec.weights == block


@SHAPES
def test_both_layouts_cover_the_row_without_gaps_and_overlaps(shape):
    for laid in (shape.trained, shape.stored):
        end = 0
        for offset, dims in laid.values():
            assert offset == end
            end += prod(dims)
        assert end == shape.size


def test_the_layouts_have_the_expected_names():
    assert list(RESIDUAL.stored)[:9] == [
        f"blocks.0.{name}" for name in ("Q", "K", "V", "O", "A", "B", "bA", "bB", "bO")
    ]
    tail = [
        "embedding.weight",
        "embedding.bias",
        "classifier.weight1",
        "classifier.bias1",
        "classifier.weight2",
        "classifier.bias2",
    ]
    assert list(IMAGES.stored)[16:] == tail
    assert list(TEXT.stored)[16:] == tail[2:]
    assert {"bQKV0", "bO1"} <= set(RESIDUAL.trained)
    assert not {"bQKV0", "bO1", "embedding"} & set(TEXT.trained)


@SHAPES
def test_the_way_to_files_only_moves_numbers(shape):
    places = torch.arange(shape.size, dtype=torch.float64).expand(2, -1)
    moved = shape.to_stored(places)
    assert torch.equal(moved.sort(dim=1).values, places)
    assert not torch.equal(moved, places)


@SHAPES
def test_net_batch_has_the_tensors_of_the_stored_layout(shape):
    stored = shape.to_stored(random_flat(shape))
    net, tensors = shape.net_batch(stored), views(stored, shape.stored)
    for name, tensor in tensors.items():
        part, *rest = name.split(".")
        if part == "blocks":
            assert torch.equal(net.blocks[rest[1]][:, 0, int(rest[0])], tensor)
        else:
            assert torch.equal(getattr(net, part)[rest[0]], tensor)
    back = torch.cat([tensors[name].flatten(1) for name in shape.stored], dim=1)
    assert torch.equal(back, stored)
    assert bool(net.embedding) == bool(shape.inputs)


@SHAPES
def test_the_stored_net_is_the_trained_function(shape):
    flat, inputs = random_flat(shape), random_inputs(shape)
    logits = Lockstep(shape, flat, BATCH, train=False).logits(inputs)
    stored = shape.to_stored(flat)
    for place in range(BATCH):
        got = stored_function(shape, stored, inputs[:, place])
        assert relative_error(got, logits[:, place]) <= 1e-10
    # Negative controls: rows of the trainer are not rows of files, and each net has its own.
    assert relative_error(stored_function(shape, flat, inputs[:, 0]), logits[:, 0]) > 1e-3
    other = stored_function(shape, stored.roll(1, 0), inputs[:, 0])
    assert relative_error(other, logits[:, 0]) > 1e-3


@SHAPES
def test_padded_tokens_do_not_count(shape):
    flat, inputs = random_flat(shape), random_inputs(shape)
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(1, shape.tokens, (NETS, BATCH), generator=generator)
    lengths[0, 0], lengths[1, 1] = 1, shape.tokens
    logits = Lockstep(shape, flat, BATCH, train=False).logits(inputs, lengths)
    stored = shape.to_stored(flat)
    for net in range(NETS):
        for place in range(BATCH):
            words = inputs[net : net + 1, place, : lengths[net, place]]
            got = stored_function(shape, stored[net : net + 1], words)[0]
            assert relative_error(got, logits[net, place]) <= 1e-10
    whole = Lockstep(shape, flat, BATCH, train=False).logits(inputs)
    assert relative_error(whole[0, 0], logits[0, 0]) > 1e-3


def test_the_same_seed_gives_the_same_start_up_to_scale():
    first, second = IMAGES.start([5, 5], [0.1, 0.3])
    torch.testing.assert_close(second, 3 * first, rtol=1e-4, atol=1e-6)
    assert first.std() > 0.05


def test_a_start_is_that_of_its_seed_alone_and_of_its_dtype_only_in_precision():
    group = IMAGES.start([5, 6, 7], [0.1, 0.2, 0.3])
    assert torch.equal(group[1:2], IMAGES.start([6], [0.2]))
    assert torch.equal(group.double(), IMAGES.start([5, 6, 7], [0.1, 0.2, 0.3], torch.float64))
    assert not torch.equal(IMAGES.start([5], [0.2]), IMAGES.start([6], [0.2]))


def test_a_start_has_zero_biases_and_its_scale_within_two():
    shape = NetShape(tokens=49, inputs=16)
    small, large = views(shape.start([1, 2], [0.1, 3.0]), shape.trained).values(), None
    for tensor in small:
        if tensor.dim() == 2:
            assert not tensor.any()
        else:
            assert tensor[0].std() == pytest.approx(0.1, rel=0.15)
            large = tensor[1].abs().max() if large is None else max(large, tensor[1].abs().max())
    assert 1.9 < large <= 2


def test_a_row_of_another_width_is_no_net_of_this_shape():
    with pytest.raises(ShapeError, match=rf"has {IMAGES.size} numbers, got {IMAGES.size + 1}"):
        IMAGES.net_batch(torch.zeros(1, IMAGES.size + 1))


@pytest.mark.parametrize("sizes", [{"D": 10, "heads": 4}, {"D": 9, "heads": 3}])
def test_a_width_that_heads_or_sine_positions_cannot_share_is_refused(sizes):
    with pytest.raises(ValidationError, match="even and a multiple of heads"):
        NetShape(tokens=6, inputs=4, **sizes)
