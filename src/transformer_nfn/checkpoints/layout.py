"""A block's tensors on disk as its declared tensors, and back: axes, fused matrices, bias rows."""

from math import prod

import torch
from torch import Tensor

from transformer_nfn.checkpoints.family import Matrix
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.space import BlockSpec, WeightBatch


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
    weight = files.read(block + matrix.weight)
    dtype = dtype or weight.dtype
    weight = weight.to(dtype).view(_sizes(spec, matrix))
    bias = None
    if matrix.bias and block + matrix.bias in files:
        bias = files.read(block + matrix.bias).to(dtype)
    fused = weight.unbind(matrix.axes.split().index("f")) if "f" in matrix.axes else (weight,)
    axes = _own_axes(matrix)
    found: dict[str, Tensor] = {}
    for number, (tensor, part) in enumerate(zip(matrix.tensors, fused, strict=True)):
        order = _order(spec, tensor, axes)
        canonical = part.permute([axes.index(label) for label in order])
        if _has_bias_row(spec, tensor, matrix):
            row = order.index("x")
            shape = [spec.size(_own_label(label, tensor)) for label in order if label != "x"]
            values = torch.zeros(shape, dtype=dtype)
            if bias is not None:
                values = bias.view(len(fused), *shape)[number]
            canonical = torch.cat([canonical, values.unsqueeze(row)], dim=row)
        found[tensor] = canonical.reshape(spec.shape(tensor))
    if matrix.bias_tensor and bias is not None:
        found[matrix.bias_tensor] = bias.view(spec.shape(matrix.bias_tensor))
    return found


def pack(
    files: TensorFiles, spec: BlockSpec, block: str, matrix: Matrix, batch: WeightBatch
) -> dict[str, Tensor]:
    """The inverse of `unpack`: weight and bias by their names on disk, in the batch's dtype."""
    parts, biases = [], []
    D = spec.sizes["D"]
    axes = _own_axes(matrix)
    for tensor in matrix.tensors:
        order = _order(spec, tensor, axes)
        sizes = [spec.size(_own_label(label, tensor)) for label in order]
        value = batch[tensor][0, 0, 0]
        if _has_bias_row(spec, tensor, matrix):
            row = order.index("x")
            value = value.reshape([*sizes[:row], D + 1, *sizes[row + 1 :]])
            biases.append(value.select(row, D).reshape(-1))
            value = value.narrow(row, 0, D)
        parts.append(value.reshape(sizes).permute([order.index(label) for label in axes]))
    joined = torch.stack(parts, matrix.axes.split().index("f")) if len(parts) > 1 else parts[0]
    packed = {block + matrix.weight: joined.reshape(files.entry(block + matrix.weight).shape)}
    if matrix.bias and block + matrix.bias in files:
        flat = batch[matrix.bias_tensor][0, 0, 0] if matrix.bias_tensor else torch.cat(biases)
        packed[block + matrix.bias] = flat.reshape(files.entry(block + matrix.bias).shape)
    return packed


def weight_shape(spec: BlockSpec, matrix: Matrix, *, joined: bool) -> tuple[int, ...]:
    """The weight's shape on disk.

    Args:
        spec: Declaration and sizes of the block.
        matrix: Which one.
        joined: A Linear joins all axes but the stream's; a zoo's net keeps each of them.
    """
    sizes = _sizes(spec, matrix)
    if not joined:
        return tuple(sizes)
    if matrix.axes.startswith("x"):
        return sizes[0], prod(sizes[1:])
    return prod(sizes[:-1]), sizes[-1]


def bias_shape(spec: BlockSpec, matrix: Matrix) -> tuple[int]:
    """The bias' shape on disk, where it has one."""
    if matrix.bias_tensor:
        return (prod(spec.shape(matrix.bias_tensor)),)
    pairs = zip(matrix.axes.split(), _sizes(spec, matrix), strict=True)
    return (prod(size for label, size in pairs if label != "x"),)


def _sizes(spec: BlockSpec, matrix: Matrix) -> list[int]:
    """Sizes of the weight's axes on disk, none of them joined."""
    return [
        len(matrix.tensors) if label == "f" else spec.size(_own_label(label, matrix.tensors[0]))
        for label in matrix.axes.split()
    ]


def _own_axes(matrix: Matrix) -> list[str]:
    """Axes on disk of one of the tensors in a matrix."""
    return matrix.axes.replace("f", "").split()


def _order(spec: BlockSpec, tensor: str, axes: list[str]) -> list[str]:
    """Declared labels of the weight: the bias row is no axis of it, nor is a neuron's scale."""
    labels = [index.label for index in spec.block.tensors[tensor] if index.label != "s"]
    names = {"z": "x", "v": "k"}  # where the disk has no such axis; v in GPT-2's fused matrix
    return [label if label in axes else names.get(label, label) for label in labels]


def _has_bias_row(spec: BlockSpec, tensor: str, matrix: Matrix) -> bool:
    """Whether the bias is an input row as declared, but a tensor of its own on disk."""
    declared = [index.label for index in spec.block.tensors[tensor]]
    return "z" in declared and "z" not in matrix.axes


def _own_label(label: str, tensor: str) -> str:
    """GPT-2's fused matrix calls the last axis k for all three; of V it is v."""
    return "v" if label == "k" and tensor == "V" else label
