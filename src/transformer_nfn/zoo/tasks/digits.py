"""The 8 x 8 digits that come with scikit-learn: a task without downloads."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from transformer_nfn.zoo.tasks.part import Part, Task, patches, permutation

#: The seed of the order in which images are dealt to the parts; another seed is another task.
SEED = 20240917
TEST, VALIDATION = 400, 300
#: The largest value of a pixel.
WHITE = 16


def digits_task(patch: int = 2) -> Task:
    """1,797 handwritten digits: 1,097 to train, 300 to validate, 400 to test."""
    table = _table()
    images, labels = table[:, :-1], table[:, -1]
    order = permutation(len(images), SEED)
    pixels = torch.from_numpy(images).float().reshape(-1, 8, 8)[order] / WHITE * 2 - 1
    classes = torch.from_numpy(labels).long()[order]
    sizes = [TEST, VALIDATION, len(images) - TEST - VALIDATION]

    def part(pixels: Float32[Tensor, "m height width"], labels: Tensor) -> Part:
        return Part(patches(pixels, patch), labels, pixels=pixels)

    test, validation, train = map(part, torch.split(pixels, sizes), torch.split(classes, sizes))
    about = f"the {len(images):,} digits of scikit-learn (UCI, CC BY 4.0)"
    return Task("digits", 10, train, validation, test, patch, about=about)


def _table() -> Float64[np.ndarray, "m 65"]:
    """What `sklearn.datasets.load_digits` reads: 64 pixels and the label of each image.

    Its file is read here, where it is: to import scikit-learn takes longer than all else that a
    worker needs.

    Raises:
        ModuleNotFoundError: If scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("scikit-learn is not installed", name="sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        table: np.ndarray = np.loadtxt(file, delimiter=",")
    else:  # another version keeps it elsewhere
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        table = np.column_stack(load_digits(return_X_y=True))
    return table
