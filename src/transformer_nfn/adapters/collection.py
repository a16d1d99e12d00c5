"""Many adapters to one base model, as batches of weights: a network is an adapter.

Modules of the same shape are the blocks of one batch. The scale of an adapter is in its B.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.adapters.adapter import Adapter, is_adapter
from transformer_nfn.adapters.block import LORA
from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.space import BlockSpec, WeightBatch

#: What adapters of one collection must agree on, beside their modules and shapes.
_BASE = ("base_model_name_or_path", "revision")


class ModuleShape(NamedTuple):
    """The sizes of a module: numbers that it reads and numbers that it writes."""

    inputs: int
    outputs: int


@dataclass(frozen=True, eq=False)
class AdapterCollection:
    """Adapters to the same modules of one base model.

    Attributes:
        paths: The folder of each adapter.
        ranks: Its r, before zeros were added.
        modules: For each batch the names of its blocks, in order.
        batches: One for each shape of modules: adapters are networks, modules are blocks.
    """

    paths: tuple[Path, ...]
    ranks: tuple[int, ...]
    modules: tuple[tuple[str, ...], ...]
    batches: tuple[WeightBatch, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def select(self, numbers: Sequence[int]) -> "AdapterCollection":
        """Some of its adapters, by their numbers."""
        return AdapterCollection(
            tuple(self.paths[number] for number in numbers),
            tuple(self.ranks[number] for number in numbers),
            self.modules,
            tuple(batch.select(networks=numbers) for batch in self.batches),
        )


def find_adapters(folder: str | Path) -> list[Path]:
    """The folders below one folder that hold an adapter, sorted by name.

    Raises:
        CheckpointError: If there are none.
    """
    found = sorted(path for path in Path(folder).glob("*") if path.is_dir() and is_adapter(path))
    if not found:
        raise CheckpointError(
            f"{folder}: no folder in it has an adapter_config.json; give the folder that holds "
            f"the folders of the adapters"
        )
    return found


def read_adapters(
    source: str | Path | Sequence[Adapter | str | Path],
    *,
    rank: int | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Callable[[int, int], None] | None = None,
) -> AdapterCollection:
    """Read many adapters of one base model, one after the other.

    Adapters of a smaller rank get columns of zeros in A and rows of zeros in B. Each of them adds a
    0 to the sum A B = Σ_k A_k B_k, so the update stays what it was. Layers have no parameters on
    the axis k, so they keep these zeros, and what a model says does not depend on how many there
    are.

    Args:
        source: A folder of folders, or adapters, or their folders.
        rank: The r that all are padded to; the largest among them if not given. A model that was
            trained on other adapters needs theirs.
        dtype: Of the batches.
        progress: Called with the number of adapters read so far, and of all.

    Raises:
        CheckpointError: If there is none, one cannot be read, or they are not of one kind.
    """
    places = find_adapters(source) if isinstance(source, str | Path) else list(source)
    if not places:
        raise CheckpointError("a collection needs at least one adapter, and got none")
    layout, ranks = _layout(places)
    largest = max(ranks)
    if rank is not None and rank < largest:
        raise CheckpointError(
            f"{_path(places[ranks.index(largest)])} has r = {largest}, which does not fit into "
            f"rank={rank}; a part of it would be another function, so ask for rank={largest}"
        )
    groups = _groups(layout)
    specs = [BlockSpec(LORA, D_x=x, D_y=y, rank=rank or largest) for x, y in groups]
    # Filled in place: beside the batches there is never more than one adapter in memory.
    filled = [
        {
            name: torch.zeros(len(places), 1, len(names), *spec.shape(name), dtype=dtype)
            for name in LORA.tensors
        }
        for spec, names in zip(specs, groups.values(), strict=True)
    ]
    for number, place in enumerate(places):
        with _opened(place) as adapter:
            for tensors, names in zip(filled, groups.values(), strict=True):
                for block, name in enumerate(names):
                    down, up = _factors(adapter, name)
                    tensors["A"][number, 0, block, :, : adapter.rank] = down
                    tensors["B"][number, 0, block, : adapter.rank] = up
        if progress is not None:
            progress(number + 1, len(places))
    return AdapterCollection(
        tuple(map(_path, places)),
        tuple(ranks),
        tuple(map(tuple, groups.values())),
        tuple(WeightBatch(spec, tensors) for spec, tensors in zip(specs, filled, strict=True)),
    )


def _factors(adapter: Adapter, name: str) -> tuple[Tensor, Tensor]:
    """A "x k" and B "k y" of a module in float64, with the scale in B."""
    down, up = (matrix.double() for matrix in adapter.module(name))
    if not (down.isfinite().all() and up.isfinite().all()):
        raise CheckpointError(
            f"{adapter.path}: {name[:80]!r} has numbers that are not finite; leave this adapter out"
        )
    return down.T, adapter.scale * up.T


def _layout(places: Sequence[Adapter | str | Path]) -> tuple[dict[str, ModuleShape], list[int]]:
    """The shape of each module, which all adapters share, and the rank of each adapter."""
    ranks: list[int] = []
    with _opened(places[0]) as first:
        wanted, base = _shapes(first), {key: first.config.get(key) for key in _BASE}
        for place in places:
            with _opened(place) as adapter:
                _check(adapter, first.path, wanted, base)
                ranks.append(adapter.rank)
    return wanted, ranks


def _check(
    adapter: Adapter, first: Path, wanted: Mapping[str, ModuleShape], base: Mapping[str, object]
) -> None:
    """Refuse an adapter that is not of the same kind as the first."""
    for key, value in base.items():
        if adapter.config.get(key) != value:
            raise CheckpointError(
                f"{adapter.path}: {key} is {adapter.config.get(key)!r:.60}, and {value!r:.60} in "
                f"{first}; a collection is of one base model, so read them apart, or correct "
                f"adapter_config.json if both are the same network"
            )
    found = _shapes(adapter)
    if only := sorted(found.keys() ^ wanted.keys()):
        where = adapter.path if only[0] in found else first
        raise CheckpointError(
            f"{adapter.path} and {first} are for different modules: only {where} has "
            f"{only[0][:80]!r} ({len(only)} such modules); read adapters with other "
            f"target_modules as a collection of their own"
        )
    for name, shape in found.items():
        if shape != wanted[name]:
            raise CheckpointError(
                f"{adapter.path}: {name[:80]!r} goes from {shape.inputs} to {shape.outputs} "
                f"numbers, and from {wanted[name].inputs} to {wanted[name].outputs} in {first}; "
                f"these base models differ in width, so read them apart"
            )


def _shapes(adapter: Adapter) -> dict[str, ModuleShape]:
    entries = {name: adapter.stored_entries(name) for name in adapter.modules}
    return {n: ModuleShape(down.shape[1], up.shape[0]) for n, (down, up) in entries.items()}


def _groups(layout: Mapping[str, ModuleShape]) -> dict[ModuleShape, list[str]]:
    """Modules by their shape; shapes and names are sorted, so that two readings agree."""
    return {
        shape: sorted(name for name, other in layout.items() if other == shape)
        for shape in sorted(set(layout.values()))
    }


def _path(place: Adapter | str | Path) -> Path:
    return place.path if isinstance(place, Adapter) else Path(place)


@contextmanager
def _opened(place: Adapter | str | Path) -> Iterator[Adapter]:
    """An adapter that is open anyway, or one that is closed again."""
    if isinstance(place, Adapter):
        yield place
    else:
        with Adapter(place) as adapter:
            yield adapter
