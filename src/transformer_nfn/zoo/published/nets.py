"""Read the `.pt` files of the published Small Transformer Zoo, each the state dict of one net.

They come from strangers. A pickle can be a program, an archive can be a bomb and a path can lead
anywhere, so a file is found, bounded and inspected before anything parses it.
"""

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space import PAPER, sine_positions
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.published.metadata import FILE, PublishedTask

MAX_FILE = 4_000_000  # bytes of a file, and of what its archive declares; real ones have 100 kB

_PARTS = {
    "Q": "attention.queries.weight",
    "K": "attention.keys.weight",
    "V": "attention.values.weight",
    "O": "attention.out_projection.weight",
    "A": "fc1.weight",
    "bA": "fc1.bias",
    "B": "fc2.weight",
    "bB": "fc2.bias",
}
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_POSITIONS = "embedding.pos_embedding"


def read_state(source: Path, task: PublishedTask, file: str) -> dict[str, Tensor]:
    """Load a state dict, on the CPU.

    Raises:
        StoreError: If there is no such file inside the source, or it is too large or no state dict.
    """
    data = _bytes_inside(source, task, file)
    try:
        _check_archive(data)
        # The published files are pickles, there is no other form of them. weights_only builds
        # tensors and plain containers and calls no code, and the bytes are few and inspected.
        state = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")  # noqa: TID251
    except StoreError as error:
        raise StoreError(f"{file!r}: {error}") from error
    except Exception as error:  # whatever a broken file makes the parsers raise
        raise StoreError(f"{file!r} cannot be loaded: {type(error).__name__}") from error
    if not isinstance(state, dict) or not all(
        isinstance(key, str)
        and isinstance(tensor, Tensor)
        and (tensor.layout, tensor.device.type) == (torch.strided, "cpu")
        for key, tensor in state.items()
    ):
        raise StoreError(f"{file!r} is not a dict of dense tensors")
    return state


def _bytes_inside(source: Path, task: PublishedTask, file: str) -> bytes:
    """The content of a file that is inside the source after all links are followed."""
    root, name = source.resolve(), PurePosixPath(file).name
    # The authors' script for these tables puts folders of their own before the file of a "best"
    # line. It lies among the others, and its name is unique.
    places = [file, f"{task}/{name}"] if FILE.fullmatch(name) else [file]
    for place in places:
        try:
            path = (root / place).resolve(strict=True)
            if path.is_relative_to(root) and path.is_file():
                with path.open("rb") as opened:
                    data = opened.read(MAX_FILE + 1)
                break
        except (OSError, ValueError, RuntimeError):  # not there, no path at all, a loop of links
            continue
    else:
        raise StoreError(f"there is no readable file {file!r} inside the source")
    if len(data) > MAX_FILE:
        raise StoreError(f"{file!r} has more than {MAX_FILE} bytes")
    return data


def _check_archive(data: bytes) -> None:
    """Refuse what a small file could blow up to."""
    # torch.load goes by the first bytes, zipfile by the last: what either takes for a zip is one.
    if data.startswith(b"PK\x03\x04") or zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
        if sum(member.file_size for member in members) > MAX_FILE:
            raise StoreError(f"declares more than {MAX_FILE} bytes")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise StoreError("is compressed, which torch.save never does")
    # weights_only lets a pickle call bytearray(n), which fills as much memory as it asks for. Its
    # name stands in the open, since nothing is compressed; weights do not spell it.
    if b"bytearray" in data:
        raise StoreError("builds a bytearray, which is no part of a state dict")


def _published(name: str, dims: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Key and shape in a published file of what we store by this name and shape."""
    match name.split("."):
        case ["blocks", number, tensor]:
            key = f"encoder.{number}.{_PARTS[tensor]}"
            if len(dims) == 3:
                h, rows, columns = dims
                return key, (columns, h * rows) if tensor == "O" else (h * columns, rows)
            return key, dims[::-1]
        case ["embedding", tensor]:
            side = math.isqrt(dims[0])
            return f"embedding.conv1.{tensor}", (
                dims if tensor == "bias" else (dims[1], 1, side, side)
            )
        case [part, tensor]:
            return f"{part}.fc{tensor[-1]}.{tensor[:-1]}", dims[::-1]
    raise AssertionError(name)


def _converted(name: str, dims: tuple[int, ...], tensor: Tensor) -> Tensor:
    """A published tensor as we store it: ours multiply from the right, theirs from the left."""
    if len(dims) == 1:
        return tensor
    if len(dims) == 3 and not name.endswith(".O"):  # (h k) x -> h x k
        return tensor.reshape(dims[0], dims[2], dims[1]).transpose(1, 2)
    return tensor.flatten(1).T  # out in -> in out; of O, r (h v) -> (h v) r


def published_row(state: Mapping[str, Tensor], shape: NetShape) -> Float[Tensor, " weights"]:
    """The weights of a published state dict as one row of a zoo, in float32.

    A file may also hold the fixed positions, which the published images' nets keep as a parameter.
    They have to be ours, since the net would compute something else with others.

    Args:
        state: Tensors by their published names; Linear weights are [out, in].
        shape: The net, of the paper's block.

    Raises:
        StoreError: If keys, shapes, dtypes or positions are not those of such a net.
    """
    if not shape.spec.block.has_tables_of(PAPER):
        raise StoreError(f"the published nets are of the block {PAPER.name!r}, not {shape.block!r}")
    wanted = {name: _published(name, dims) for name, (_, dims) in shape.stored.items()}
    sizes = dict(wanted.values())
    if shape.inputs and _POSITIONS in state:
        sizes[_POSITIONS] = (shape.tokens, shape.D)
    missing = [key for key in sizes if key not in state]
    unexpected = [key for key in state if key not in sizes]
    if missing or unexpected:
        raise StoreError(f"not a published net: missing {missing}, unexpected {unexpected}")
    for key, size in sizes.items():
        if tuple(state[key].shape) != size or state[key].dtype not in _FLOATS:
            raise StoreError(
                f"{key}: expected floats of shape {size}, got {state[key].dtype} of shape "
                f"{tuple(state[key].shape)}"
            )
    if _POSITIONS in sizes:
        positions = sine_positions(shape.tokens, shape.D)
        # Theirs are computed in float32, with angles up to the number of tokens.
        if not torch.allclose(state[_POSITIONS].detach().double(), positions, rtol=0, atol=1e-4):
            raise StoreError(f"{_POSITIONS}: these are not the fixed sine positions")
    parts = [
        _converted(name, dims, state[wanted[name][0]].detach().float()).reshape(-1)
        for name, (_, dims) in shape.stored.items()
    ]
    return torch.cat(parts)
