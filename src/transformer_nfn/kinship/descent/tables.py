"""Networks of files that no family reads: tensors by name, their axes from a small table."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from transformer_nfn.checkpoints import CheckpointError, TensorFiles
from transformer_nfn.kinship.descent.networks import Network
from transformer_nfn.kinship.descent.units import View

#: The stream; units of blocks have other names, and axes that nothing may move begin with "_".
_STREAM = "x"
_TOKEN = re.compile(
    r"\s*(?:(?P<open>\()|(?P<close>\))|(?P<label>\w+)(?::(?P<size>\d{1,9})(?!\d))?(?![\w:]))"
)
#: The other axis of a table of positions.
_POSITIONS = "positions"
#: No table is larger.
_BYTES = 2**20


@dataclass(frozen=True)
class Axes:
    """The axes of one tensor as a table writes them: "(heads:8 value) x".

    Attributes:
        labels: Their names, those in parentheses one by one.
        stored: For each axis of the tensor which of them it holds.
        sizes: Those that are given.
    """

    labels: tuple[str, ...]
    stored: tuple[tuple[int, ...], ...]
    sizes: Mapping[int, int]

    @staticmethod
    def parse(text: str, where: str) -> "Axes":
        """Read what stands in a table.

        Raises:
            CheckpointError: If it is not of that form.
        """
        labels: list[str] = []
        stored: list[tuple[int, ...]] = []
        sizes: dict[int, int] = {}
        inside: list[int] | None = None
        place = 0
        while place < len(text.rstrip()):
            token = _TOKEN.match(text, place)
            if token is None or (token["open"] and inside is not None):
                break
            if token["close"] and not inside:
                break
            place = token.end()
            if token["open"]:
                inside = []
            elif token["close"]:
                stored.append(tuple(inside or ()))
                inside = None
            else:
                number = len(labels)
                labels.append(token["label"])
                if token["size"]:
                    sizes[number] = int(token["size"])
                if inside is None:
                    stored.append((number,))
                else:
                    inside.append(number)
        if place < len(text.rstrip()) or inside is not None or len(set(labels)) < len(labels):
            raise CheckpointError(f"{where}: {text!r} is not of the form '(heads:8 value) x'")
        return Axes(tuple(labels), tuple(stored), sizes)

    def shape(self, stored: tuple[int, ...], where: str) -> tuple[int, ...]:
        """The sizes of all axes of a tensor of a shape.

        Raises:
            CheckpointError: If they do not fit.
        """
        found = dict(self.sizes)
        if len(stored) != len(self.stored):
            raise CheckpointError(
                f"{where} has the shape {list(stored)}, not {len(self.stored)} axes"
            )
        if 0 in stored:
            raise CheckpointError(f"{where} is empty, of the shape {list(stored)}")
        for size, numbers in zip(stored, self.stored, strict=True):
            unknown = [number for number in numbers if number not in found]
            known = prod(found[number] for number in numbers if number in found)
            if len(unknown) > 1 or known == 0 or size % known or (not unknown and size != known):
                raise CheckpointError(
                    f"{where}: an axis of {size} does not fit what the table says"
                )
            if unknown:
                found[unknown[0]] = size // known
        return tuple(found[number] for number in range(len(self.labels)))

    def views(self, name: str, shape: tuple[int, ...]) -> list[View]:
        """The units of the tensor; inside parentheses a unit belongs to those before it."""
        found = []
        for numbers in self.stored:
            for position, place in enumerate(numbers):
                label = self.labels[place]
                if label == _STREAM or label.startswith("_") or shape[place] < 2:
                    continue
                outer = tuple(n for n in numbers[:position] if not self.labels[n].startswith("_"))
                groups = prod(shape[n] for n in outer)
                width = prod(shape) // (groups * shape[place])
                found.append(View(label, name, outer, place, groups, shape[place], width))
        return found


def read_table(path: Path) -> dict[str, dict[str, Axes]]:
    """Read a table: a section for each network, in it patterns of names and their axes.

    Raises:
        CheckpointError: If it is not of that form.
    """
    try:
        if path.stat().st_size > _BYTES:
            raise CheckpointError(f"{path} is no table: it has more than {_BYTES} bytes")
        with path.open("rb") as file:
            given = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:  # CheckpointError is one of them
        raise CheckpointError(f"{path}: {error}") from None
    found = {}
    for network, tensors in given.items():
        if not isinstance(tensors, dict) or not all(isinstance(v, str) for v in tensors.values()):
            raise CheckpointError(f"{path}: [{network}] is to have names of tensors and their axes")
        found[network] = {
            name: Axes.parse(axes, f"{path}, {name}") for name, axes in tensors.items()
        }
    names = [name for tensors in found.values() for name in tensors]
    if len(set(names)) < len(names):
        raise CheckpointError(f"{path} names a tensor twice")
    if not found:
        raise CheckpointError(f"{path} names no network; write for example ['network']")
    return found


def networks_by_table(files: TensorFiles, table: Mapping[str, Mapping[str, Axes]]) -> list[Network]:
    """The networks of a file as a table says.

    Args:
        files: The file.
        table: For each network patterns of names, with {} for the number of a block, and axes;
            without {} the tensor writes into the stream before the first block.

    Raises:
        CheckpointError: If a tensor is missing or has another shape.
    """
    return [_network(files, name, patterns) for name, patterns in table.items()]


def _network(files: TensorFiles, network: str, patterns: Mapping[str, Axes]) -> Network:
    inside = {name: axes for name, axes in patterns.items() if "{}" in name}
    blocks = _count(files, inside)
    views: list[View] = []
    coarsest = torch.float64
    for pattern, axes in inside.items():
        shapes = {tuple(files.entry(named(pattern, i)).shape) for i in range(blocks)}
        if len(shapes) > 1:
            raise CheckpointError(f"{files.path}: {pattern} has several shapes")
        for shape in shapes:
            views += axes.views(pattern, axes.shape(shape, f"{files.path}: {pattern}"))
        dtypes = [files.entry(named(pattern, i)).dtype for i in range(blocks)]
        if not all(dtype.is_floating_point for dtype in dtypes):
            raise CheckpointError(
                f"{files.path}: {pattern} is quantised; write it as numbers first"
            )
        coarsest = max([coarsest, *dtypes], key=lambda dtype: torch.finfo(dtype).eps)

    def tensors(number: int) -> dict[str, Tensor]:
        return {name: _read(files, named(name, number), axes) for name, axes in inside.items()}

    words: dict[str, Callable[[], Tensor]] = {}
    positions: dict[str, Callable[[], Tensor]] = {}
    for name, axes in patterns.items():
        if "{}" in name:
            continue
        if name not in files or axes.labels.count(_STREAM) != 1 or len(axes.labels) < 2:
            raise CheckpointError(f"{files.path}: {name} is no table that writes into x")
        axes.shape(tuple(files.entry(name).shape), f"{files.path}: {name}")
        tables = positions if _POSITIONS in axes.labels else words
        tables[name] = partial(_table, files, name, axes)
    return Network(network, blocks, tuple(views), tensors, words, positions, coarsest)


def named(pattern: str, number: int) -> str:
    """The name of a tensor of a block."""
    return pattern.replace("{}", str(number))


def _count(files: TensorFiles, inside: Mapping[str, Axes]) -> int:
    blocks = 0
    while inside and all(named(pattern, blocks) in files for pattern in inside):
        blocks += 1
    if inside and not blocks:
        missing = next(name for name in inside if named(name, 0) not in files)
        raise CheckpointError(f"{files.path} has no {named(missing, 0)}")
    return blocks


def _read(files: TensorFiles, name: str, axes: Axes) -> Tensor:
    tensor = files.read(name)
    return tensor.float().reshape(axes.shape(tuple(tensor.shape), f"{files.path}: {name}"))


def _table(files: TensorFiles, name: str, axes: Axes) -> Tensor:
    tensor = _read(files, name, axes)
    place = axes.labels.index(_STREAM)
    return tensor.movedim(place, -1).reshape(-1, tensor.shape[place])
