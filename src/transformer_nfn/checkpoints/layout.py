"""A block's tensors on disk as its declared tensors, and back: axes, fused matrices, bias rows."""

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.checkpoints.family import Matrix
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.space import Block, BlockSpec, Index, WeightBatch

#: What rounding does to a sum of about 1 in float32, as a standard deviation.
_SUM = torch.finfo(torch.float32).eps / 12**0.5
#: Labels of the stream on disk: without a bias row, and with one.
_STREAM = ("x", "z")


class Layout(NamedTuple):
    """The axes of a matrix on disk: several tensors stand side by side along one place of it.

    Attributes:
        before: Axes that all of them have before that place.
        parts: For each tensor its own axes there, joined.
        after: Axes that all of them have after it.
    """

    before: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]
    after: tuple[str, ...]

    @staticmethod
    @cache
    def of(matrix: Matrix) -> "Layout":
        """From ``"h k x"`` of one tensor, ``"h (k + k + v) x"`` of three."""
        before, bracket, rest = matrix.axes.partition("(")
        if not bracket:
            return Layout((), (tuple(before.split()),), ())
        inside, _, after = rest.partition(")")
        parts = tuple(tuple(part.split()) for part in inside.split("+"))
        return Layout(tuple(before.split()), parts, tuple(after.split()))

    @cache  # noqa: B019 -- there are few layouts, and each is small
    def without_stream(self) -> "Layout":
        """The same of a bias."""
        before, after, *parts = (
            tuple(label for label in labels if label not in _STREAM)
            for labels in (self.before, self.after, *self.parts)
        )
        return Layout(before, tuple(parts), after)

    def sizes(self, spec: BlockSpec) -> tuple[list[int], list[int], list[int]]:
        """Of the axes before, of what stands side by side, and of the axes after."""
        return (
            [spec.size(label) for label in self.before],
            [prod(spec.size(label) for label in part) for part in self.parts],
            [spec.size(label) for label in self.after],
        )

    def split(
        self, spec: BlockSpec, tensor: Tensor, leading: int = 0
    ) -> list[tuple[Tensor, tuple[str, ...]]]:
        """The tensors of one on disk, and the labels of their axes.

        Args:
            spec: Declaration and sizes of the block.
            tensor: As stored; axes of the layout may be joined.
            leading: Axes before them that are none of the layout's.
        """
        before, beside, after = self.sizes(spec)
        lead = tensor.shape[:leading]
        whole = tensor.reshape(*lead, *before, sum(beside), *after)
        pieces = [whole]
        if len(beside) > 1:
            pieces = list(torch.split(whole, beside, dim=leading + len(before)))
        found = []
        for piece, part in zip(pieces, self.parts, strict=True):
            own = [spec.size(label) for label in part]
            labels = (*self.before, *part, *self.after)
            found.append((piece.reshape(*lead, *before, *own, *after), labels))
        return found

    def join(self, spec: BlockSpec, tensors: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`, where nothing stands before."""
        before, beside, after = self.sizes(spec)
        flat = [
            tensor.reshape(*before, size, *after)
            for tensor, size in zip(tensors, beside, strict=True)
        ]
        return torch.cat(flat, dim=len(before))


def unpack(
    files: TensorFiles, spec: BlockSpec, block: str, matrix: Matrix, dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """The declared tensors of one on disk.

    Args:
        files: Where it is.
        spec: Declaration and sizes of the block.
        block: What stands before the block's names.
        matrix: Which one; its bias, if there is one, becomes the last input row or a tensor.
        dtype: Of the result; as stored if None.
    """
    each = [files.read(block + name) for name in stored_names(spec, matrix)]
    weight = torch.stack(each) if matrix.spread else each[0]
    dtype = dtype or weight.dtype
    weight = weight.to(dtype)
    if matrix.offset and files.values:
        weight = weight + matrix.offset
    elif matrix.offset:  # how far it is off: the sum is made in float32, or was stored so
        weight = torch.where(weight > 0, weight.clamp_min(abs(matrix.offset) * _SUM), weight)
    layout, bias = Layout.of(matrix), None
    if matrix.bias and block + matrix.bias in files:
        bias = files.read(block + matrix.bias).to(dtype)
    weights = layout.split(spec, weight)
    rows = None
    if bias is not None and not matrix.bias_tensor:
        rows = layout.without_stream().split(spec, bias)
    found: dict[str, Tensor] = {}
    for number, tensor in enumerate(matrix.tensors):
        labels = _declared(spec, tensor)
        value = _in_order(spec, *weights[number], _on_disk(labels, weights[number][1]))
        if _has_bias_row(spec, tensor, matrix):
            axis = labels.index("z")
            own = [label for label in labels if label != "z"]
            row = torch.zeros([spec.size(label) for label in own], dtype=dtype)
            if rows is not None:
                row = _in_order(spec, *rows[number], own)
            value = torch.cat([value, row.unsqueeze(axis)], dim=axis)
        found[tensor] = value.reshape(spec.shape(tensor))
    if matrix.bias_tensor and bias is not None:
        found[matrix.bias_tensor] = bias.view(spec.shape(matrix.bias_tensor))
    return found


def outputs(spec: BlockSpec, matrix: Matrix, rows: Tensor) -> dict[str, Tensor]:
    """What each tensor of a reading matrix gives, of "p o" in the order on disk.

    Args:
        spec: Declaration and sizes of the block.
        matrix: The matrix.
        rows: What the whole of it gives, the stream summed away.

    Returns:
        By name "p o" in the order of the declared axes.
    """
    found = {}
    layout = Layout.of(matrix).without_stream()
    for tensor, (value, labels) in zip(
        matrix.tensors, layout.split(spec, rows, leading=1), strict=True
    ):
        own = [label for label in _declared(spec, tensor) if label not in _STREAM]
        found[tensor] = _in_order(spec, value, ("row", *labels), ["row", *own]).flatten(1)
    return found


def pack(
    files: TensorFiles, spec: BlockSpec, block: str, matrix: Matrix, batch: WeightBatch
) -> dict[str, Tensor]:
    """The inverse of `unpack`: weight and bias by their names on disk, in the batch's dtype."""
    layout = Layout.of(matrix)
    parts, biases = [], []
    for tensor, part in zip(matrix.tensors, layout.parts, strict=True):
        labels, stored = _declared(spec, tensor), (*layout.before, *part, *layout.after)
        value = batch[tensor][0, 0, 0]
        value = value.reshape([spec.size(label) for label in labels])
        if _has_bias_row(spec, tensor, matrix):
            axis, D = labels.index("z"), spec.sizes["D"]
            own = [label for label in labels if label != "z"]
            kept = [label for label in stored if label not in _STREAM]
            biases.append(_to_disk(spec, value.select(axis, D), own, kept))
            value = value.narrow(axis, 0, D)
        parts.append(_to_disk(spec, value, _on_disk(labels, stored), stored))
    names = [block + name for name in stored_names(spec, matrix)]
    joined = layout.join(spec, parts) - matrix.offset
    packed = {
        name: part.reshape(files.entry(name).shape)
        for name, part in zip(names, joined.reshape(len(names), -1), strict=True)
    }
    if matrix.bias and block + matrix.bias in files:
        if matrix.bias_tensor:
            flat = batch[matrix.bias_tensor][0, 0, 0]
        else:
            flat = layout.without_stream().join(spec, biases)
        packed[block + matrix.bias] = flat.reshape(files.entry(block + matrix.bias).shape)
    return packed


def stored_names(spec: BlockSpec, matrix: Matrix) -> list[str]:
    """What the tensors of a matrix are called, after the block's name."""
    return matrix.names(spec.sizes.get("experts", 1))


def weight_shape(spec: BlockSpec, matrix: Matrix, *, joined: bool) -> tuple[int, ...]:
    """The shape on disk of a weight, or of that of one expert.

    Args:
        spec: Declaration and sizes of the block.
        matrix: Which one.
        joined: A Linear joins all axes but the stream's; a zoo's net keeps each of them.
    """
    matrix = matrix.single
    layout = Layout.of(matrix)
    if not joined:
        return tuple(spec.size(label) for label in layout.parts[0])
    if matrix.axes == "x":  # a vector of the stream
        return (spec.sizes["D"],)
    if not {"x", "z"} & set(matrix.axes.replace("(", " ").split()):  # it touches no stream
        return bias_shape(spec, matrix, own=False)
    others, D = bias_shape(spec, matrix, own=False)[0], spec.sizes["D"]
    return (D, others) if matrix.axes.startswith("x") else (others, D)


def bias_shape(spec: BlockSpec, matrix: Matrix, *, own: bool = True) -> tuple[int]:
    """The bias' shape on disk, where it has one.

    Args:
        spec: Declaration and sizes of the block.
        matrix: Which one.
        own: Whether a bias that is a tensor of its own has the shape of that.
    """
    if own and matrix.bias_tensor:
        return (prod(spec.shape(matrix.bias_tensor)),)
    before, beside, after = Layout.of(matrix).without_stream().sizes(spec)
    return (prod(before) * sum(beside) * prod(after),)


def stored_axes(matrix: Matrix) -> list[tuple[str, ...]]:
    """The axes on disk of each of its tensors, in order."""
    layout = Layout.of(matrix)
    return [(*layout.before, *part, *layout.after) for part in layout.parts]


def declared_axes(block: Block, tensor: str, matrix: Matrix) -> list[str]:
    """The axes that a tensor of a matrix should have on disk, in any order."""
    stored = {label for part in stored_axes(matrix) for label in part}
    labels = _labels(block.tensors[tensor])
    # A bias row may stand there as well, or be a tensor of its own.
    return ["x" if label == "z" and "z" not in stored else label for label in labels]


def _declared(spec: BlockSpec, tensor: str) -> tuple[str, ...]:
    """Labels of a tensor as declared; scales are no axes on disk, and one stream is as another."""
    return _labels(spec.block.tensors[tensor])


@cache
def _labels(indices: tuple[Index, ...]) -> tuple[str, ...]:
    labels = (index.label for index in indices if index.label not in "si")
    return tuple("z" if label == "w" else label for label in labels)


def _on_disk(declared: Sequence[str], stored: Sequence[str]) -> list[str]:
    """Declared labels where the disk has no bias row: the stream itself."""
    return [label if label in stored else "x" for label in declared]


def _in_order(
    spec: BlockSpec, tensor: Tensor, stored: Sequence[str], wanted: Sequence[str]
) -> Tensor:
    """A tensor with its axes in another order, and their coordinates as declared."""
    value = tensor.permute([stored.index(label) for label in wanted])
    for axis, label in enumerate(wanted):
        if (places := _places(spec, label)) is not None:
            value = value.index_select(axis, places)
    return value


def _to_disk(
    spec: BlockSpec, tensor: Tensor, declared: Sequence[str], wanted: Sequence[str]
) -> Tensor:
    """The inverse of `_in_order`."""
    value = tensor
    for axis, label in enumerate(declared):
        if (places := _places(spec, label)) is not None:
            value = value.index_select(axis, places.argsort())
    return value.permute([list(declared).index(label) for label in wanted])


def _places(spec: BlockSpec, label: str) -> Tensor | None:
    """Where the coordinates of an axis stand on disk; None where in their own order."""
    if label not in spec.block.axes:
        return None
    found = (half.part.stored_places(label, spec.size(label)) for half in spec.block.halves)
    return next((places for places in found if places is not None), None)


def _has_bias_row(spec: BlockSpec, tensor: str, matrix: Matrix) -> bool:
    """Whether the bias is an input row as declared, but a tensor of its own on disk."""
    return "z" in _declared(spec, tensor) and "z" not in matrix.axes
