"""A network in memory, in float64, to be changed and then stored in a dtype of one's choice."""

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Entry, TensorFiles
from transformer_nfn.identity.elements.digits import last_digit
from transformer_nfn.identity.running.function import run_each
from transformer_nfn.identity.running.inputs import NetInputs
from transformer_nfn.space import WeightBatch


def differentiable_run(checkpoint: Checkpoint, inputs: NetInputs) -> dict[str, Tensor]:
    """`run` without its `torch.no_grad`: gradients through every family, without new code."""
    return {head: out[0] for head, out in run_each([checkpoint], [inputs])[0].items()}


class _Held(TensorFiles):
    """Tensors in memory in the place of those on disk."""

    def __init__(self, files: TensorFiles, values: Mapping[str, Tensor]) -> None:
        self.__dict__.update(files.__dict__)
        self._values = values
        self._where = {
            name: (0, Entry(value.dtype, tuple(value.shape), 0, value.nbytes))
            for name, value in values.items()
        }

    def read(self, name: str) -> Tensor:
        return self._values[name]

    def slice(self, name: str, first: int, last: int) -> Tensor:
        return self._values[name][first:last]


def held(checkpoint: Checkpoint, values: Mapping[str, Tensor]) -> Checkpoint:
    """The checkpoint with other values in the same places."""
    other = copy.copy(checkpoint)
    other.files = _Held(checkpoint.files, values)
    return other


def jittered(checkpoint: Checkpoint, seed: int) -> Checkpoint:
    """The same network with every stored number moved by up to half its last digit.

    As `identity.comparing.rounding.jittered`, but all in memory, which is faster for small networks
    that are run often; and a stored 0 is exact.
    """
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name in checkpoint.files:
        value = checkpoint.files.read(name)
        if value.is_floating_point():
            share = torch.rand(value.shape, generator=generator, dtype=torch.float64) - 0.5
            value = torch.where(value == 0, 0.0, value.double() + share * last_digit(value))
        moved[name] = value
    return held(checkpoint, moved)


class Draft:
    """All tensors of a checkpoint by their names on disk, float64, and its config.

    `block` and `put` see a block as its family declares it; whatever is done there works for every
    family.

    Attributes:
        values: The tensors.
        dtype: What it will be stored in.
        details: What was drawn for it.
        later: A true symmetry that only the second file of a pair gets.
        inner: Blocks are those of the encoder, where a network has one.
    """

    dtype: torch.dtype
    inner = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.details: dict[str, Any] = {}
        self.later: dict[str, Tensor] = {}
        with Checkpoint(folder) as checkpoint:
            self.checkpoint = checkpoint
            self.metadata = dict(checkpoint.files.shards[0][1].metadata)
            self.values = {name: checkpoint.files.read(name) for name in checkpoint.files}
        for name, value in self.values.items():
            if value.dtype.is_floating_point:
                self.values[name] = value.double()
        file = folder / "config.json"
        self.config: dict[str, Any] | None = json.loads(file.read_text()) if file.exists() else None

    def copy(self) -> "Draft":
        other = copy.copy(self)
        other.values = {name: value.clone() for name, value in self.values.items()}
        other.config = copy.deepcopy(self.config)
        return other

    @property
    def network(self) -> Checkpoint:
        """The one whose blocks are changed."""
        return self.chosen(self.view())

    def chosen(self, whole: Checkpoint) -> Checkpoint:
        """The one whose blocks are changed, of a checkpoint like this one."""
        return whole.encoder if self.inner and whole.encoder is not None else whole

    @property
    def blocks(self) -> int:
        return self.network.blocks

    @property
    def spec(self) -> Any:
        return self.network.spec

    def view(self, dtype: torch.dtype | None = None) -> Checkpoint:
        """A checkpoint of these numbers, rounded if a dtype is given."""
        values = self.values if dtype is None else self.rounded(dtype)
        return held(self.checkpoint, values)

    def rounded(self, dtype: torch.dtype, dither: torch.Generator | None = None) -> dict:
        return {name: _round(value, dtype, dither) for name, value in self.values.items()}

    # ------------------------------------------------------------------- as the family declares it

    def block(self, number: int) -> dict[str, Tensor]:
        """Declared tensors of a block; copies."""
        batch = self.network.block(number)
        return {name: batch[name][0, 0, 0].clone() for name in batch.tensors}

    def packed(self, number: int, block: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Declared tensors by their names on disk; linear, so good for differences as well."""
        batch = WeightBatch(self.spec, {n: t[None, None, None] for n, t in block.items()})
        return {name: value.clone() for name, value in self.network.pack(number, batch).items()}

    def put(self, number: int, block: Mapping[str, Tensor]) -> None:
        self.values.update(self.packed(number, block))

    def zeros(self) -> dict[str, Tensor]:
        """A difference of nothing."""
        return {n: torch.zeros_like(v) for n, v in self.values.items() if v.is_floating_point()}

    def add(self, delta: Mapping[str, Tensor], size: float = 1.0) -> None:
        for name, value in delta.items():
            self.values[name] = self.values[name] + size * value

    # ------------------------------------------------------------------------------------- on disk

    def store(
        self,
        out: Path,
        dtype: torch.dtype,
        *,
        dither: torch.Generator | None = None,
        shards: int = 1,
    ) -> Path:
        """Write it, each number rounded once.

        Args:
            out: A new folder.
            dtype: Of all floating tensors.
            dither: Round up or down at random, so that changes below half a digit are kept on
                average; to nearest if None.
            shards: In how many files.
        """
        out.mkdir(parents=True)
        values = self.rounded(dtype, dither)
        names = sorted(values)
        if shards == 1:
            save_file({n: values[n] for n in names}, out / "model.safetensors", self.metadata)
        else:
            self._store_shards(out, values, [names[i::shards] for i in range(shards)])
        if self.config is not None:
            stated = {**self.config}
            if "dtype" in stated:
                stated["dtype"] = str(dtype).removeprefix("torch.")
            (out / "config.json").write_text(json.dumps(stated, indent=2))
        return out

    def _store_shards(self, out: Path, values: Mapping, parts: list[list[str]]) -> None:
        weight_map = {}
        for number, part in enumerate(parts, 1):
            file = f"model-{number:05}-of-{len(parts):05}.safetensors"
            save_file({n: values[n] for n in part}, out / file, self.metadata)
            weight_map |= dict.fromkeys(part, file)
        total = sum(value.nbytes for value in values.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(json.dumps(index))


def _round(value: Tensor, dtype: torch.dtype, dither: torch.Generator | None) -> Tensor:
    if not value.is_floating_point():
        return value
    top = torch.finfo(dtype).max
    value = value.detach().clamp(-top, top)
    return (value.to(dtype) if dither is None else dithered(value, dtype, dither)).contiguous()


def dithered(value: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Rounded up or down at random, so that the mean is right and no small change is lost."""
    near = value.to(dtype)
    # The neighbour on the other side of the exact number, with the probability of its distance.
    side = torch.where(value > near.double(), torch.inf, -torch.inf).to(dtype)
    far = torch.nextafter(near, side)
    gap = (far.double() - near.double()).abs().clamp_min(1e-300)
    share = (value - near.double()).abs() / gap
    up = torch.rand(value.shape, generator=generator, dtype=torch.float64) < share
    return torch.where(up & torch.isfinite(far), far, near)


def remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
