"""Random crops, so that a network never sees quite the same image twice."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from transformer_nfn.zoo.tasks.errors import DataError
from transformer_nfn.zoo.tasks.part import check_patch, patches

#: The value of a black pixel, with which images are padded.
BLACK = -1.0


class Cropper:
    """Crops of images that were padded with black, cut into patches.

    The padding is done once, here. A batch is then a single gather: in the flat padded images,
    each row of each patch is a run of pixels, and the run starts at a sum of the image's place,
    the shift's and the row's.

    Args:
        pixels: The images.
        patch: The side of a patch.
        pad: How many black pixels go around each image.

    Raises:
        DataError: If the patch does not divide the images.

    Examples:
        >>> import torch
        >>> from transformer_nfn.zoo.tasks import Cropper
        >>> crop = Cropper(torch.ones(5, 4, 4), patch=2, pad=1)
        >>> corner = torch.zeros(1, 1, 2, dtype=torch.int64)
        >>> crop(torch.tensor([[3]]), corner)[0, 0]
        tensor([[-1., -1., -1.,  1.],
                [-1., -1.,  1.,  1.],
                [-1.,  1., -1.,  1.],
                [ 1.,  1.,  1.,  1.]])
    """

    def __init__(self, pixels: Float[Tensor, "m height width"], patch: int, pad: int = 2) -> None:
        height, width = pixels.shape[1:]
        check_patch(height, width, patch)
        if pad < 0:
            raise DataError(f"pad is 0 or more pixels, got {pad}")
        self.images, self.patch, self.pad = len(pixels), patch, pad
        padded = F.pad(pixels, (pad, pad, pad, pad), value=BLACK)
        self._row = padded.shape[2]
        self._image = padded.shape[1] * padded.shape[2]
        self._runs = padded.flatten().unfold(0, patch, 1)
        place = torch.arange(height, device=pixels.device)[:, None] * self._row
        place = place + torch.arange(width, device=pixels.device)
        self._starts = patches(place.double(), patch)[:, ::patch].long()

    def __call__(
        self, index: Int64[Tensor, "n b"], shift: Int64[Tensor, "n b 2"]
    ) -> Float[Tensor, "n b t p"]:
        """The crops of the chosen images.

        Args:
            index: Which images.
            shift: The upper left corner of each crop in its padded image, row and column, in
                0..2 pad; (pad, pad) gives the image itself.

        Raises:
            DataError: If an index or a shift is out of range: it would read another image.
        """
        for name, values, most in (
            ("index", index, self.images - 1),
            ("shift", shift, 2 * self.pad),
        ):
            if values.numel() and (values.min() < 0 or values.max() > most):
                raise DataError(
                    f"{name} is in 0..{most}, got {int(values.min())}..{int(values.max())}"
                )
        corner = index * self._image + shift[..., 0] * self._row + shift[..., 1]
        starts = corner[..., None, None] + self._starts
        runs = self._runs.index_select(0, starts.flatten())
        return runs.view(*index.shape, len(self._starts), self.patch**2)
