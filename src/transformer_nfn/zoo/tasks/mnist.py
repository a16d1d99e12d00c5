"""MNIST: 28 x 28 handwritten digits, from the idx files or from the hub."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from jaxtyping import UInt8
from torch import Tensor

from transformer_nfn.zoo.tasks.errors import DataError
from transformer_nfn.zoo.tasks.files import HubFiles, find
from transformer_nfn.zoo.tasks.idx import MOST, read_idx
from transformer_nfn.zoo.tasks.parquet import read_columns
from transformer_nfn.zoo.tasks.part import Part, Task, patches, permutation

#: The seed of the choice of the validation images; another seed is another task.
SEED = 20240918
VALIDATION = 5_000
SIDE = 28
CLASSES = 10

TRAIN = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")
TEST = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
HUB = HubFiles(
    "ylecun/mnist",
    ("mnist/train-00000-of-00001.parquet", "mnist/test-00000-of-00001.parquet"),
)

_Raw = tuple[UInt8[Tensor, "m height width"], UInt8[Tensor, " m"]]


def mnist_task(data: Path | None = None, patch: int = 4) -> Task:
    """MNIST: of the 60,000 training images 5,000 to validate; the official 10,000 to test.

    Args:
        data: The data folder, with the idx files in ``mnist/``; see `find`.
        patch: The side of a patch.

    Raises:
        DataError: If the files are missing or damaged.
    """
    files = find(data, "mnist", (*TRAIN, *TEST), HUB)
    if HUB.names[0] in files:
        train, test = (_from_parquet(files[name]) for name in HUB.names)
    else:
        train, test = (_from_idx(*(files[name] for name in names)) for names in (TRAIN, TEST))
    count = len(train[0])
    if count <= VALIDATION:
        raise DataError(f"MNIST has 60,000 training images, got {count}: fetch the files again")
    order = permutation(count, SEED)
    return Task(
        "mnist",
        CLASSES,
        train=_part((train[0][order[VALIDATION:]], train[1][order[VALIDATION:]]), patch),
        validation=_part((train[0][order[:VALIDATION]], train[1][order[:VALIDATION]]), patch),
        test=_part(test, patch),
        patch=patch,
        about=f"MNIST (LeCun and Cortes, CC BY-SA 3.0): {count:,} of its 60,000 training images "
        f"and {len(test[0]):,} of its 10,000 test images",
    )


def _part(raw: _Raw, patch: int) -> Part:
    images, labels = raw
    pixels = images.float().div_(255).mul_(2).sub_(1)
    return Part(patches(pixels, patch), labels.long(), pixels=pixels)


def _from_idx(images: Path, labels: Path) -> _Raw:
    raw = read_idx(images, (SIDE, SIDE)), read_idx(labels)
    if len(raw[0]) != len(raw[1]):
        raise DataError(f"{images} has {len(raw[0])} images, {labels} {len(raw[1])} labels")
    if raw[1].max() >= CLASSES:
        raise DataError(f"{labels} has a label {int(raw[1].max())}, expected 0..{CLASSES - 1}")
    return raw


def _from_parquet(path: Path) -> _Raw:
    columns = read_columns(
        path,
        {"image": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()},
        MOST,
    )
    wrong = [label for label in columns["label"] if not 0 <= label < CLASSES]
    if wrong:
        raise DataError(f"{path} has a label {wrong[0]}, expected 0..{CLASSES - 1}")
    pixels = np.stack(
        [_decode(path, row, image["bytes"]) for row, image in enumerate(columns["image"])]
    )
    return torch.from_numpy(pixels), torch.tensor(columns["label"], dtype=torch.uint8)


def _decode(path: Path, row: int, png: bytes | None) -> UInt8[np.ndarray, "height width"]:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            f"{path} has PNG images, Pillow decodes them: `pip install 'transformer-nfn[zoo]'`"
        ) from error
    try:
        with Image.open(BytesIO(png or b""), formats=["PNG"]) as image:
            if image.size != (SIDE, SIDE) or image.mode != "L":
                raise DataError(
                    f"{path}, row {row}: image of {image.size} pixels and mode {image.mode}, "
                    f"expected {(SIDE, SIDE)} and L"
                )
            return np.array(image)
    except (OSError, SyntaxError) as error:  # Pillow's errors of a broken PNG
        raise DataError(f"{path}, row {row}: not a PNG image: {error}") from error
