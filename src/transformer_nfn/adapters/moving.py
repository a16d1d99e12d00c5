"""Another adapter with the same products."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import save

from transformer_nfn.adapters.adapter import CONFIG, WEIGHTS, Adapter, Module
from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.group import conditioned


def move_adapter(
    adapter: Adapter, out: str | Path, generator: torch.Generator, *, condition: float = 10.0
) -> Path:
    """Write an adapter whose A and B are M A and B M⁻¹, for a random M of each module.

    Args:
        adapter: The one to start from.
        out: A folder that has no adapter.
        generator: Of the matrices.
        condition: Their condition number.

    Raises:
        CheckpointError: If the folder has one.
    """
    folder = Path(out)
    if (folder / CONFIG).exists() or (folder / WEIGHTS).exists():
        raise CheckpointError(f"{folder} has an adapter already; choose another --out")
    changed: dict[str, torch.Tensor] = {}
    for name in adapter.modules:
        down, up = adapter.module(name)
        M = conditioned(condition)((), adapter.rank, generator)
        moved = Module(
            (M @ down.double()).to(down.dtype).contiguous(),
            torch.linalg.solve(M, up.double(), left=False).to(up.dtype).contiguous(),
        )
        changed |= adapter.stored(name, moved)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(save(changed, {"format": "pt"}))
    shutil.copyfile(adapter.path / CONFIG, folder / CONFIG)
    return folder
