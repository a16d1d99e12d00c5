import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.strategies import generator, seeds
from transformer_nfn.zoo.tasks import Cropper, DataError, patches


def slow_crops(pixels: Tensor, index: Tensor, shift: Tensor, patch: int, pad: int) -> Tensor:
    """Pixel by pixel; outside of the image it is black."""
    _, height, width = pixels.shape
    crops = torch.full((*index.shape, height, width), -1.0, dtype=pixels.dtype)
    for i in range(index.shape[0]):
        for j in range(index.shape[1]):
            for row in range(height):
                for column in range(width):
                    y = row + int(shift[i, j, 0]) - pad
                    x = column + int(shift[i, j, 1]) - pad
                    if 0 <= y < height and 0 <= x < width:
                        crops[i, j, row, column] = pixels[index[i, j], y, x]
    return patches(crops, patch)


@given(st.integers(1, 3), st.integers(0, 3), seeds)
def test_crops_are_those_of_a_loop_over_pixels(patch: int, pad: int, seed: int) -> None:
    random = generator(seed)
    pixels = torch.rand(7, 2 * patch, 3 * patch, generator=random)
    index = torch.randint(7, (3, 4), generator=random)
    shift = torch.randint(2 * pad + 1, (3, 4, 2), generator=random)
    crops = Cropper(pixels, patch, pad)(index, shift)
    assert crops.shape == (3, 4, 6, patch**2)
    assert torch.equal(crops, slow_crops(pixels, index, shift, patch, pad))


def test_the_middle_crop_is_the_image_itself() -> None:
    pixels = torch.rand(5, 4, 6, generator=generator(0))
    index = torch.tensor([[4, 0, 3]])
    crops = Cropper(pixels, 2)(index, torch.full((1, 3, 2), 2))
    assert torch.equal(crops[0], patches(pixels, 2)[index[0]])


@pytest.mark.parametrize(
    ("index", "shift", "message"),
    [
        (5, (0, 0), r"index is in 0\.\.4, got 5\.\.5"),
        (-1, (0, 0), r"index is in 0\.\.4, got -1\.\.-1"),
        (4, (5, 0), r"shift is in 0\.\.4, got 0\.\.5"),
        (4, (0, -1), r"shift is in 0\.\.4, got -1\.\.0"),
    ],
)
def test_no_crop_reads_another_image(index: int, shift: tuple[int, int], message: str) -> None:
    crop = Cropper(torch.zeros(5, 4, 6), 2)
    with pytest.raises(DataError, match=message):
        crop(torch.tensor([[index]]), torch.tensor([[shift]]))


def test_wrong_patches_and_paddings_are_refused() -> None:
    with pytest.raises(DataError, match="4 x 6 pixels, got 3"):
        Cropper(torch.zeros(5, 4, 6), 3)
    with pytest.raises(DataError, match="pad is 0 or more pixels, got -1"):
        Cropper(torch.zeros(5, 4, 6), 2, pad=-1)
