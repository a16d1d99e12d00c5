from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies import generator, seeds
from tests.zoo.small import images_task, text_task
from transformer_nfn.zoo.tasks import DataError, Part, Task, patches


def part(m: int = 5, *, lengths: bool = False, labels: Tensor | None = None) -> Part:
    """Images of 4 x 6 pixels in patches of side 2, or text of the same shape."""
    pixels = torch.rand(m, 4, 6, generator=generator(0)) * 2 - 1
    return Part(
        patches(pixels, 2),
        torch.arange(m) % 3 if labels is None else labels,
        torch.arange(m) % 6 + 1 if lengths else None,
        None if lengths else pixels,
    )


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), seeds)
def test_a_linear_map_of_patches_is_a_convolution(
    size: int, high: int, wide: int, seed: int
) -> None:
    random = generator(seed)
    images = torch.randn(2, 3, high * size, wide * size, generator=random, dtype=torch.float64)
    kernel = torch.randn(7, 1, size, size, generator=random, dtype=torch.float64)
    cut = patches(images, size)
    assert cut.shape == (2, 3, high * wide, size**2)
    wanted = F.conv2d(images.flatten(0, 1)[:, None], kernel, stride=size).flatten(2).mT
    torch.testing.assert_close(cut.flatten(0, 1) @ kernel.flatten(1).T, wanted)


@pytest.mark.parametrize("size", [0, -2, 3, 4, 8])
def test_a_patch_divides_the_image(size: int) -> None:
    with pytest.raises(DataError, match=rf"divides the image's 4 x 6 pixels, got {size}"):
        patches(torch.zeros(4, 6), size)


def test_the_first_examples() -> None:
    for whole in (part(), part(lengths=True)):
        some = whole.first(3)
        assert (len(whole), len(some)) == (5, 3)
        for name in ("inputs", "labels", "lengths", "pixels"):
            tensor = getattr(whole, name)
            if tensor is None:
                assert getattr(some, name) is None
            else:
                assert torch.equal(getattr(some, name), tensor[:3])
    assert len(part().first(5)) == 5


@pytest.mark.parametrize("count", [6, 0, -1])
def test_no_more_examples_than_there_are(count: int) -> None:
    with pytest.raises(DataError, match=r"1\.\.5 can be had"):
        part().first(count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": torch.zeros(5, 6)}, r"inputs are torch.float32 with axes 'm t p', .*\(5, 6\)"),
        ({"inputs": torch.zeros(5, 6, 4).double()}, "inputs are .* got torch.float64"),
        ({"inputs": torch.zeros(0, 6, 4)}, "inputs have at least one"),
        ({"labels": torch.zeros(5)}, "labels are torch.int64 .* got torch.float32"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "labels are of 4 examples, inputs of 5"),
        ({"lengths": torch.ones(5, 1, dtype=torch.int64)}, "lengths are .* with axes 'm'"),
        ({"lengths": torch.tensor([1, 2, 0, 4, 5])}, r"1\.\.6, .* got 0\.\.5"),
        ({"lengths": torch.tensor([1, 2, 7, 4, 5])}, r"1\.\.6, .* got 1\.\.7"),
        ({"pixels": torch.zeros(3, 4, 6)}, "pixels are of 3 examples, inputs of 5"),
    ],
)
def test_a_part_is_checked(change: dict[str, Tensor], message: str) -> None:
    good = {"inputs": torch.zeros(5, 6, 4), "labels": torch.zeros(5, dtype=torch.int64)}
    Part(**good)
    with pytest.raises(DataError, match=message):
        Part(**(good | change))


def test_a_task_knows_its_sizes() -> None:
    for lengths, patch in ((False, 2), (True, None)):
        parts = [part(m, lengths=lengths) for m in (5, 2, 3)]
        task = Task("mine", 3, *parts, patch=patch)
        assert (task.tokens, task.width) == (6, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 2}, r"train of task 'mine': labels are 0\.\.1, got 0\.\.2"),
        ({"test": part(labels=torch.tensor([0, 1, 2, 1, -1]))}, r"test .* got -1\.\.2"),
        ({"patch": None}, "text has neither"),
        ({"patch": 1}, r"\(24, 1\), the inputs have \(6, 4\)"),
        ({"validation": part(lengths=True)}, "validation .* give lengths to all parts"),
        ({"test": Part(torch.zeros(5, 4, 6), torch.arange(5) % 3)}, r"\(4, 6\), those of train"),
    ],
)
def test_a_task_is_checked(change: dict[str, object], message: str) -> None:
    good = {"name": "mine", "classes": 3, "patch": 2}
    parts = {"train": part(), "validation": part(2), "test": part(3)}
    Task(**good, **parts)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        Task(**(good | parts | change))  # type: ignore[arg-type]


def test_a_tasks_digest_follows_from_all_examples():
    task = images_task()
    assert task.digest == images_task().digest
    assert len(task.digest) == 64
    assert text_task().digest != task.digest
    for name in ("train", "validation", "test"):
        part = getattr(task, name)
        labels = part.labels.clone()
        labels[-1] = (labels[-1] + 1) % 3
        assert (
            replace(task, digest="", **{name: replace(part, labels=labels)}).digest != task.digest
        )
        inputs = part.inputs.clone()
        inputs[-1, -1, -1] += 1e-3
        assert (
            replace(task, digest="", **{name: replace(part, inputs=inputs)}).digest != task.digest
        )
