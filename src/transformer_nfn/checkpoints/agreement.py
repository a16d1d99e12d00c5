"""Whether config.json and the tensors are of one network; headers only, no tensor is read.

A loader goes by the config: what it does not name is left out, what is missing is made up. So where
the two disagree, nobody knows which function is meant.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.checkpoints.settings.keys import Biases, Keys


def check_owned(files: TensorFiles, family: Family, stem: str, owned: Collection[str]) -> None:
    """No block has a tensor that the family does not know: it would change what the block does.

    Args:
        files: The tensors.
        family: What they are.
        stem: What stands before the number of a block.
        owned: The tensors of all blocks.
    """
    for name in files:
        if not name.startswith(stem) or name in owned or name.endswith(family.ignored or "\0"):
            continue
        raise CheckpointError(
            f"{files.path}: {name[:100]!r} stands in a block, and {family.name} has no such tensor "
            f"there, or no block before it; remove it if nothing reads it, else the file is of a "
            f"family that is not known"
        )


def check_sizes(
    files: TensorFiles,
    keys: Keys,
    config: Mapping[str, Any],
    sizes: Mapping[str, int],
    name: Callable[[str], str],
) -> None:
    """Sizes that the config states are those of the tensors.

    Args:
        files: The tensors.
        keys: The table of its model.
        config: Its config.json.
        sizes: Of the blocks, and how many they are.
        name: The name of a tensor outside the blocks as it is in this file.
    """
    for key, of in keys.sizes.items():
        stated = config.get(key)
        if stated is None:
            continue
        if isinstance(of, str):
            actual = sizes[of]
        else:
            tensor = next((n for n in (name(of[0]), of[0]) if n in files), None)
            if tensor is None or len(files.entry(tensor).shape) <= of[1]:
                continue
            actual = files.entry(tensor).shape[of[1]]
        if type(stated) is not int or stated != actual:
            raise CheckpointError(
                f"{files.path}: config.json says {key} {stated!r:.40}, the tensors {actual}; "
                f"one of them is of another file"
            )


def check_block_count(
    files: TensorFiles, keys: Keys, config: Mapping[str, Any], blocks: int
) -> None:
    """Where config.json says no number of blocks, a loader takes the format's own."""
    names = [key for key, of in keys.sizes.items() if of == "blocks"]
    if not config or keys.blocks in (None, blocks) or any(config.get(n) for n in names):
        return
    raise CheckpointError(
        f"{files.path}: config.json does not say {names[0]}, for which a loader takes "
        f"{keys.blocks}; the tensors have {blocks} blocks; add it, or --set {names[0]}={blocks}"
    )


def check_biases(
    files: TensorFiles, biases: Collection[Biases], config: Mapping[str, Any], blocks: list[str]
) -> None:
    """The file has the biases that the model has, and no others.

    Args:
        files: The tensors.
        biases: Which of them there should be.
        config: The config.json, which may say it.
        blocks: What stands before the names of each block.
    """
    for bias in biases:
        there = config.get(bias.key, bias.there) if bias.key else bias.there
        if type(there) is not bool:
            raise CheckpointError(f"{bias.key} in the config should be bool, not {there!r:.60}")
        for name in (block + name for block in blocks for name in bias.names):
            if (name in files) == there:
                continue
            why = "the model" if bias.key is None else f"{bias.key} {str(there).lower()} (config)"
            raise CheckpointError(
                f"{files.path}: {why} {'asks for' if there else 'has no place for'} {name}, which "
                f"is {'not ' * there}in the file"
                + (f"; say --set {bias.key}={str(not there).lower()}" if bias.key else "")
            )
