"""Whether config.json and the tensors are of one network; headers only, no tensor is read.

A loader goes by the config: what it does not name is left out, what is missing is made up. So where
the two disagree, nobody knows which function is meant.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError, UnsupportedError
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.checkpoints.settings.keys import SIZES, Biases, Keys

#: Distances in both directions are counted one by one for half of a table's rows on each side.
_LEAST_DISTANCES = 4


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


def check_encoder(files: TensorFiles, own: Mapping[str, int], encoder: Mapping[str, int]) -> None:
    """An encoder has the sizes of its decoder that the same keys say."""
    for size, wanted in own.items():
        if encoder.get(size) != wanted:
            raise CheckpointError(
                f"{files.path}: {size} is {encoder.get(size)} in the encoder, "
                f"{wanted} in the decoder"
            )


def check_tables_of_distances(files: TensorFiles, names: Collection[str], heads: int) -> None:
    """A table that all blocks share has some rows, and a column for each head."""
    for name in names:
        shape = files.entry(name).shape
        if len(shape) != 2 or shape[0] < _LEAST_DISTANCES or shape[1] != heads:
            raise CheckpointError(
                f"{files.path}: {name} is {tuple(shape)}; it should have a column for each of "
                f"{heads} heads, and {_LEAST_DISTANCES} rows or more"
            )


def check_refused(files: TensorFiles, family: Family, prefix: str) -> None:
    """No tensor of a head that the family does not read: others would then read something else."""
    refused = tuple(before + name for name in family.refused for before in ("", prefix))
    for name in files:
        if name.startswith(refused or "\0"):
            raise UnsupportedError(
                f"{files.path}: {name[:100]!r} belongs to a kind of {family.name} that is not read"
            )


def check_options(
    options: Mapping[str, Any], stated: Mapping[str, Any], family: Family, kind: str
) -> None:
    """A setting of the user is one that somebody reads, or that config.json has as well.

    Args:
        options: What the user says.
        stated: The file's config.json.
        family: What it is.
        kind: Its model_type.
    """
    for name in options:
        if name not in family.sayable(kind) and name not in stated:
            raise CheckpointError(
                f"--set {name[:60]!s}: {kind} has no such setting; `tnfn families {kind}` lists "
                f"those it reads"
            )


def check_prefixes(files: TensorFiles, family: Family, prefix: str, owned: Collection[str]) -> None:
    """No tensor is one of ours under another prefix: a loader adds and strips them, name by name.

    Args:
        files: The tensors.
        family: What they are.
        prefix: What stands before the names of this file.
        owned: All that was read of it.
    """
    heads = tuple(f"{reader.name}." for reader in family.readers if reader.own)
    for name in files:
        bare = [name] + [name.removeprefix(p) for p in family.prefixes if p and name.startswith(p)]
        twin = any(name != prefix + one and prefix + one in owned for one in bare)
        head = any(one != name and one.startswith(heads or "\0") for one in bare)
        if name not in owned and (twin or head):
            raise CheckpointError(
                f"{files.path}: {name[:100]!r} has not the prefix that others of its kind have, "
                f"and a loader may take it for one of them; rename or remove it"
            )


def check_architectures(config: Mapping[str, Any], keys: Keys, where: str) -> None:
    """The class of config.json is one, and of this model: others read other tensors."""
    stated = config.get("architectures")
    names = stated if isinstance(stated, list) else []
    if len(names) > 1:
        raise CheckpointError(
            f"{where}: config.json names {len(names)} architectures, {names[:2]!r:.80}; leave the "
            f"one that the file is"
        )
    for name in names:
        rest = str(name).removeprefix(keys.classes or "")
        known = ("For", "Model", "LMHead", "DoubleHeads")
        if keys.refused and str(name).endswith(keys.refused):
            raise UnsupportedError(
                f"{where}: config.json names the architecture {name!r:.60}, which is not read"
            )
        if keys.classes and (rest == name or not rest.startswith(known)):
            raise UnsupportedError(
                f"{where}: config.json names the architecture {name!r:.60}, which is no "
                f"{keys.classes}"
            )


def check_labels(files: TensorFiles, config: Mapping[str, Any], weights: Collection[str]) -> None:
    """The labels of config.json are as many as the rows of what gives them."""
    labels, count = config.get("id2label"), config.get("num_labels")
    # A loader takes the number where both are stated and differ.
    stated = count if count is not None or not isinstance(labels, dict) else len(labels)
    for name in weights:
        rows = files.entry(name).shape[0]
        if isinstance(stated, int) and stated != rows:
            raise CheckpointError(
                f"{files.path}: {name} has {rows} rows, config.json says {stated} labels"
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
    for key, of in {**SIZES, **keys.sizes}.items():
        stated = config.get(key)
        if stated is None:
            continue
        if isinstance(of, str):
            if of not in sizes:
                raise CheckpointError(
                    f"the table says that {key} is the size {of!r:.40}; sizes are "
                    f"{', '.join(sizes)}"
                )
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
