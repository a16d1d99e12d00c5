"""Read a network from a safetensors file as a flat row."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float32
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.tensors import AnyShape, TensorShape

#: Kinds of numbers that are weights; tensors of others, such as counters, are not read.
FLOATS = ("F64", "F32", "F16", "BF16")
#: A tensor's shape and its kind of numbers, by name, as the header of a file says.
Header = Mapping[str, tuple[tuple[int, ...], str]]
_SHOWN = 3  # names that an error shows


class NetFile(NamedTuple):
    """What a file says before its weights are read."""

    header: Header
    metadata: dict[str, str]


def read_header(path: Path) -> NetFile:
    """The header of a file.

    Raises:
        StoreError: If it is no safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            header = {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
            return NetFile(header, dict(file.metadata() or {}))
    except (SafetensorError, OSError) as error:
        raise StoreError(f"cannot be read: {error}") from error


def shape_of(file: NetFile) -> AnyShape:
    """What a file holds: a net of a zoo's kind if it says so and is one, else tensors by name.

    Raises:
        StoreError: If it has no weights, or too many.
    """
    if "net" in file.metadata:
        try:
            net = NetShape.model_validate_json(file.metadata["net"])
            check_header(file.header, net)
            return net
        except (ValidationError, StoreError):
            pass  # somebody else's word for something else
    floats = sorted((n, dims) for n, (dims, dtype) in file.header.items() if dtype in FLOATS)
    try:
        return TensorShape(tensors=tuple(floats))
    except ValidationError as error:
        raise StoreError(f"is no network that is read: {error.errors()[0]['msg']}") from None


def check_header(found: Header, shape: AnyShape) -> None:
    """Compare names, shapes and kinds of numbers of a file with what is read.

    Raises:
        StoreError: If they differ.
    """
    plain = isinstance(shape, TensorShape)
    names = {name for name, (_, dtype) in found.items() if not plain or dtype in FLOATS}
    if names != set(shape.stored):
        missing, unknown = sorted(set(shape.stored) - names), sorted(names - set(shape.stored))
        raise StoreError(
            f"has other tensors: {len(missing)} are missing {missing[:_SHOWN]}, "
            f"{len(unknown)} unknown {unknown[:_SHOWN]}"
        )
    for name, (_, dims) in shape.stored.items():
        there, dtype = found[name]
        if there != dims:
            raise StoreError(f"has {name} of {there}, not of {dims}")
        if not plain and dtype != "F32":
            raise StoreError(f"has {name} in {dtype}, not in F32")


def read_row(path: Path, shape: AnyShape) -> tuple[Float32[Tensor, " weights"], dict[str, str]]:
    """The flat row of a file, and its metadata; all is checked before anything is loaded.

    Raises:
        StoreError: If it cannot be read, or is another kind of network.
    """
    file = read_header(path)
    check_header(file.header, shape)
    try:
        with safe_open(path, framework="pt") as opened:
            parts = [opened.get_tensor(name).to(torch.float32).flatten() for name in shape.stored]
    except (SafetensorError, OSError) as error:
        raise StoreError(f"cannot be read: {error}") from error
    return torch.cat(parts), file.metadata
