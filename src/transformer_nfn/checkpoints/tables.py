"""Whether a family's table makes sense: mistakes of whoever wrote it, said in its own words."""

from collections.abc import Mapping
from dataclasses import MISSING, fields

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.family import Family, Matrix, Reader, Summary
from transformer_nfn.checkpoints.layout import declared_axes, stored_axes
from transformer_nfn.checkpoints.settings.keys import Keys
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, DeclarationError, Embedding

#: Fields that are tuples, and of what: one thing without a comma after it is none.
_TUPLES: Mapping[str, type] = {
    "prefixes": str,
    "probes": str,
    "matrices": Matrix,
    "norms": str,
    "embeddings": Embedding,
    "readers": Reader,
    "labels": str,
    "summaries": Summary,
    "ignored": str,
    "refused": str,
}
#: What keys say of a file, but for what has places of its own there.
_SETTINGS = {one.name: one for one in fields(Settings) if one.name not in ("sizes", "flags")}
#: Where nothing says how many key heads there are, there are as many as heads.
_NEEDED = {n for n, one in _SETTINGS.items() if one.default is MISSING and n != "groups"}


def check_table(family: Family) -> None:
    """Complain of a table that no file can be read with.

    Raises:
        CheckpointError: If it is one.
    """
    table = f"the table {family.name!r:.60}"
    for name, kind in _TUPLES.items():
        value = getattr(family, name)
        if name == "norms" and value is None:
            continue
        if not isinstance(value, tuple) or not all(isinstance(one, kind) for one in value):
            raise CheckpointError(
                f"{table}: {name} should be a tuple of {kind.__name__}, not {value!r:.100}; one "
                f"alone needs a comma after it"
            )
    if not isinstance(family.block, str) or set("{}") & set(family.block.replace("{}", "", 1)):
        raise CheckpointError(
            f"{table}: block should be a name with one {{}} for the number, not {family.block!r}"
        )
    if not any(step.inputs is not None for step in family.embeddings):
        raise CheckpointError(f"{table}: no step of embeddings says what the network is given")
    if not isinstance(family.keys, Mapping) or not all(
        isinstance(keys, Keys) for keys in family.keys.values()
    ):
        raise CheckpointError(f"{table}: keys should have a Keys for each model_type")
    for model_type, keys in family.keys.items():
        _check_keys(f"{table}, keys of {model_type!r:.60}", keys)
    if family.encoder is not None:
        check_table(family.encoder)


def _check_keys(where: str, keys: Keys) -> None:
    """All that a file must say is said by some key or fixed, and nothing else is."""
    tos = [*(key.to for key in keys.matter), *(joint.to for joint in keys.joint)]
    said = {*keys.fixed, *(to for to in tos if to != "flags" and not to.startswith("sizes."))}
    if unknown := sorted(said - set(_SETTINGS)):
        raise CheckpointError(
            f"{where}: there is no setting {unknown[0]!r:.60}; there are {', '.join(_SETTINGS)}"
        )
    if missing := sorted(_NEEDED - said):
        raise CheckpointError(
            f"{where}: nothing says {missing[0]!r}; give it in fixed=, or a Key for it in matter="
        )


def block_of(family: Family, settings: Settings) -> Block:
    """The block that a table declares for a file, if the rest of the table fits it.

    Raises:
        CheckpointError: If it does not, or there is no such block.
    """
    table = f"the table {family.name!r:.60}"
    try:
        block = family.block_of(settings)
    except (CheckpointError, DeclarationError):
        raise
    except Exception as error:  # it may be anybody's code
        raise CheckpointError(f"{table}: block_of cannot be run: {error!r:.200}") from error
    if not isinstance(block, Block) or not block.halves:
        raise CheckpointError(f"{table}: block_of should return what compose() gives")
    _check_tensors(table, family, block)
    _check_halves(table, family, block, settings)
    return block


def _check_tensors(table: str, family: Family, block: Block) -> None:
    """Each declared tensor is one on disk, a bias at most, with the axes that were declared."""
    named: list[str] = [tensor for matrix in family.matrices for tensor in matrix.tensors]
    for tensor in named:
        if tensor not in block.tensors:
            raise CheckpointError(
                f"{table}: its block has no tensor {tensor!r:.60}, only {', '.join(block.tensors)}"
            )
    for tensor in block.tensors:
        if named.count(tensor) > 1:
            raise CheckpointError(f"{table}: more than one of matrices is {tensor} of its block")
        # A file need not have a bias.
        if tensor not in named and not tensor.startswith("b"):
            raise CheckpointError(f"{table}: none of matrices is {tensor} of its block")
    for matrix in family.matrices:
        stored = stored_axes(matrix)
        wanted = [declared_axes(block, tensor, matrix) for tensor in matrix.tensors]
        if list(map(sorted, stored)) != list(map(sorted, wanted)):
            axes = (
                f"{tensor} should have {' '.join(labels)!r} in some order"
                for tensor, labels in zip(matrix.tensors, wanted, strict=True)
            )
            raise CheckpointError(
                f"{table}: {matrix.weight} has the axes {matrix.axes!r:.60}; {', '.join(axes)}"
            )


def _check_halves(table: str, family: Family, block: Block, settings: Settings) -> None:
    """Symmetries come from the settings and the function from the block: they must agree."""
    halves = len(block.halves)
    if family.norms is not None and len(family.norms) != halves:
        raise CheckpointError(
            f"{table}: norms has {len(family.norms)} names, its block {halves} halves"
        )
    for half in block.halves:
        activation = getattr(half.part, "activation", settings.activation)
        for what, declared, said in (
            ("norm", half.norm, settings.norm),
            ("activation", activation, settings.activation),
        ):
            if declared != said:
                raise CheckpointError(
                    f"{table}: its block has the {what} {declared!r:.60}, its keys say {said!r:.60}"
                )
