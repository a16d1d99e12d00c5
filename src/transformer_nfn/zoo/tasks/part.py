"""A task and its parts: examples as tokens, with their labels."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transformer_nfn.zoo.tasks.errors import DataError

_FIELDS = {
    "inputs": (torch.float32, "m t p"),
    "labels": (torch.int64, "m"),
    "lengths": (torch.int64, "m"),
    "pixels": (torch.float32, "m height width"),
}


@dataclass(frozen=True, eq=False)
class Part:
    """Train, validation or test examples of a task, on the CPU. Do not write into the tensors.

    Attributes:
        inputs: The tokens, float32 "m t p": patches of pixels, or word vectors.
        labels: The class of each example, from 0; int64 "m".
        lengths: How many tokens of each example count, at least 1; int64 "m", None if all do.
        pixels: The images in [-1, 1] that the patches were cut from, since a random crop needs
            them; float32 "m height width", None for text.
    """

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None = None
    pixels: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes and dtypes, that all have m examples, and the range of the lengths."""
        if 0 in self.inputs.shape:
            raise DataError(f"inputs have at least one of each, got {tuple(self.inputs.shape)}")
        for name, (dtype, axes) in _FIELDS.items():
            tensor = getattr(self, name)
            if tensor is None:
                continue
            if (tensor.dtype, tensor.dim()) != (dtype, len(axes.split())):
                raise DataError(
                    f"{name} are {dtype} with axes {axes!r}, got {tensor.dtype} of shape "
                    f"{tuple(tensor.shape)}"
                )
            if len(tensor) != len(self):
                raise DataError(f"{name} are of {len(tensor)} examples, inputs of {len(self)}")
        if self.lengths is not None:
            low, high = _range(self.lengths)
            if low < 1 or high > self.inputs.shape[1]:
                raise DataError(
                    f"lengths are 1..{self.inputs.shape[1]}, the tokens of the inputs, "
                    f"got {low}..{high}"
                )

    def __len__(self) -> int:
        """m, how many examples."""
        return len(self.inputs)

    def first(self, count: int) -> "Part":
        """The first examples, as views.

        Raises:
            DataError: If there are fewer.
        """
        if not 1 <= count <= len(self):
            raise DataError(f"the first {count} of {len(self)} examples: 1..{len(self)} can be had")
        return Part(
            self.inputs[:count],
            self.labels[:count],
            None if self.lengths is None else self.lengths[:count],
            None if self.pixels is None else self.pixels[:count],
        )


@dataclass(frozen=True, eq=False)
class Task:
    """What the networks of a zoo learn: to classify sequences of tokens.

    Attributes:
        name: One of `TASKS`, or your own.
        classes: How many; labels are 0..classes - 1.
        train: What the networks are trained on.
        validation: For early stopping and selection.
        test: What their accuracy is measured on.
        patch: The side of a patch in pixels; None for text.
        digest: Hash of all examples, which enters the ids of runs; that of the parts if none is
            given. A task whose inputs are computed gives that of what they are computed from:
            other machines round otherwise.
        about: Which data these are, how many, and under which licence, in a sentence.
    """

    name: str
    classes: int
    train: Part
    validation: Part
    test: Part
    patch: int | None
    digest: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        """Check that the parts fit one another, the classes and the patch."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        if not self.digest:
            tensors = (t for p in parts.values() for t in (p.inputs, p.labels, p.lengths))
            object.__setattr__(self, "digest", digest_of(tensors))
        for name, part in parts.items():
            where = f"{name} of task {self.name!r}"
            low, high = _range(part.labels)
            if low < 0 or high >= self.classes:
                raise DataError(f"{where}: labels are 0..{self.classes - 1}, got {low}..{high}")
            if part.inputs.shape[1:] != self.train.inputs.shape[1:]:
                raise DataError(
                    f"{where}: inputs have (t, p) = {tuple(part.inputs.shape[1:])}, "
                    f"those of train {tuple(self.train.inputs.shape[1:])}"
                )
            if (part.lengths is None) != (self.train.lengths is None):
                raise DataError(f"{where}: give lengths to all parts, or to none")
            if (part.pixels is None) != (self.patch is None):
                raise DataError(f"{where}: images have pixels and a patch, text has neither")
            if part.pixels is not None and self.patch is not None:
                height, width = part.pixels.shape[1:]
                wanted = (height // self.patch) * (width // self.patch), self.patch**2
                if part.inputs.shape[1:] != wanted:
                    raise DataError(
                        f"{where}: {height} x {width} pixels in patches of side {self.patch} have "
                        f"(t, p) = {wanted}, the inputs have {tuple(part.inputs.shape[1:])}"
                    )

    @property
    def tokens(self) -> int:
        """t, how many tokens an example has, with its padding."""
        return self.train.inputs.shape[1]

    @property
    def width(self) -> int:
        """p, how many numbers a token has."""
        return self.train.inputs.shape[2]


def patches(images: Float[Tensor, "... height width"], size: int) -> Float[Tensor, "... t p"]:
    """Cut images into square patches: row by row, and row by row inside each.

    That is the order of a convolution with stride = size whose kernel is flattened, so that a
    linear map of the patches is that convolution.

    Raises:
        DataError: If the size does not divide height and width.

    Examples:
        >>> import torch
        >>> from transformer_nfn.zoo.tasks import patches
        >>> patches(torch.arange(8.0).reshape(2, 4), 2)
        tensor([[0., 1., 4., 5.],
                [2., 3., 6., 7.]])
    """
    height, width = images.shape[-2:]
    check_patch(height, width, size)
    grid = images.reshape(*images.shape[:-2], height // size, size, width // size, size)
    return grid.transpose(-3, -2).flatten(-4, -3).flatten(-2)


def check_patch(height: int, width: int, size: int) -> None:
    """Raise a DataError if a patch of this size does not divide the image."""
    if size < 1 or height % size or width % size:
        raise DataError(
            f"a patch has a side that divides the image's {height} x {width} pixels, got {size}"
        )


def digest_of(tensors: Iterable[Tensor | None]) -> str:
    """SHA-256 of tensors, one after the other: shape, dtype and content."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        if tensor is None:
            hashed.update(b"none;")
            continue
        hashed.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        hashed.update(tensor.contiguous().numpy().data)
    return hashed.hexdigest()


def permutation(count: int, seed: int) -> Int64[Tensor, " m"]:
    """The order in which a task deals its examples to the parts: the same for everybody."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _range(numbers: Int64[Tensor, " m"]) -> tuple[int, int]:
    low, high = torch.aminmax(numbers)
    return int(low), int(high)
