"""The commands on checkpoints for adapters, which are opened and compared in their own way."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_nfn.cli.checkpoints import Blocks

if TYPE_CHECKING:
    from transformer_nfn.identity import Verdict


def are_adapters(*paths: str) -> bool:
    """Whether all of these are adapters.

    Raises:
        CheckpointError: If only some are.
    """
    from transformer_nfn.adapters import is_adapter
    from transformer_nfn.checkpoints import CheckpointError

    found = [is_adapter(path) for path in paths]
    if any(found) and not all(found):
        which = paths[found.index(True)]
        raise CheckpointError(
            f"{which} is a LoRA adapter: compare it with another adapter, or merge it into its "
            "base first (`merge_and_unload` of peft)"
        )
    return all(found)


def compare(first: str, second: str, seed: int | None, *, quiet: bool) -> "Verdict":
    """Whether two adapters are the same function."""
    from transformer_nfn.adapters import Adapter, same_adapters

    with (
        Adapter(first) as ours,
        Adapter(second) as theirs,
        Blocks(len(ours.modules), "modules compared", disable=quiet) as progress,
    ):
        return same_adapters(ours, theirs, progress, seed=seed)


def describe(path: str) -> dict[str, Any]:
    """What an adapter is, as plain data."""
    from transformer_nfn.adapters import Adapter

    with Adapter(path) as adapter:
        entries = adapter.files.entries.values()
        return {
            "kind": "LoRA adapter",
            "base": adapter.config.get("base_model_name_or_path"),
            "modules": len(adapter.modules),
            "rank": adapter.rank,
            "scale": adapter.scale,
            "parameters": sum(entry.shape[0] * entry.shape[1] for entry in entries),
            "dtypes": sorted({str(entry.dtype).removeprefix("torch.") for entry in entries}),
            "symmetries": f"GL({adapter.rank}) for each module",
            "dimension": len(adapter.modules) * adapter.rank**2,
            "not_finite": sum(
                int((~matrix.isfinite()).sum())
                for name in adapter.modules
                for matrix in adapter.module(name)
            ),
        }


def move(path: str, out: Path, seed: int, condition: float) -> dict[str, Any]:
    """Write another adapter of the same function, and say so."""
    import torch

    from transformer_nfn.adapters import Adapter, move_adapter

    with Adapter(path) as adapter:
        generator = torch.Generator().manual_seed(seed)
        written = move_adapter(adapter, out, generator, condition=condition)
    return {"wrote": str(written), "parts": ["rank"], "seed": seed, "condition": condition}
