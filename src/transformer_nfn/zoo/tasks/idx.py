"""The idx format of MNIST's files. Nothing in a file is believed before it is checked."""

import gzip
import zlib
from io import BufferedIOBase
from math import prod
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from transformer_nfn.zoo.tasks.errors import DataError

#: More items than this are no MNIST; so a few bytes cannot unpack to all the memory there is.
MOST = 1_000_000
_UINT8 = 0x08
_CHUNK = 1 << 20


def read_idx(path: Path, item: tuple[int, ...] = ()) -> UInt8[Tensor, "m ..."]:
    """Read bytes from an idx file, gzipped if its name ends in ``.gz``.

    A header has two zero bytes, the type, the number of axes, and their sizes as big-endian
    32-bit numbers; the data follows.

    Args:
        path: The file.
        item: The sizes wanted of all axes but the first: () for labels, (28, 28) for images.

    Raises:
        DataError: If header or length are not as expected.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(path, file, item)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read, fetch it again: {error}") from error


def _read(path: Path, file: BufferedIOBase, item: tuple[int, ...]) -> UInt8[Tensor, "m ..."]:
    axes = 1 + len(item)
    magic = bytes([0, 0, _UINT8, axes])
    header = file.read(4 + 4 * axes)
    if header[:4] != magic:
        raise DataError(
            f"{path} is no idx file of bytes with {axes} axes: it starts with "
            f"{header[:4].hex() or 'nothing'}, expected {magic.hex()}"
        )
    if len(header) < 4 + 4 * axes:
        raise DataError(f"{path} ends inside its header, fetch it again")
    sizes = [int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4)]
    count = sizes[0]
    if tuple(sizes[1:]) != item or not 1 <= count <= MOST:
        raise DataError(f"{path} has sizes {sizes}, expected {['1..' + str(MOST), *item]}")
    data = _exactly(path, file, count * prod(item))
    return torch.frombuffer(data, dtype=torch.uint8).reshape(count, *item)


def _exactly(path: Path, file: BufferedIOBase, size: int) -> bytearray:
    data = bytearray()
    while chunk := file.read(min(_CHUNK, size + 1 - len(data))):
        data += chunk
    if len(data) != size:
        came = "more" if len(data) > size else f"only {len(data)}"
        raise DataError(f"{path} has {size} bytes by its header, but {came}; fetch it again")
    return data
