"""A part of a model: its body without heads, its encoder alone, one tower of a pair."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families import FAMILIES, encoders_in
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.files.tensors import SomeTensors, TensorFiles

#: All but heads and poolers; the encoder of an encoder-decoder. Any other part is a tower.
BODY, ENCODER = "body", "encoder"
#: Each family without its heads, beside itself: two checkpoints must have the same one.
_BODIES: dict[int, tuple[Family, Family]] = {}


def tower_of(files: TensorFiles, only: str | None) -> TensorFiles:
    """The tensors of a tower, by what their names begin with; all where none do.

    Raises:
        CheckpointError: If none do, and the file is not such a tower by itself.
    """
    if only in (None, BODY, ENCODER):
        return files
    names = {name for name in files if name.startswith(f"{only}.")}
    if names:
        return SomeTensors(files, names)
    towers = (family for family in FAMILIES.values() if f"{only}." in family.prefixes)
    if not any(set(family.probes) <= set(files) for family in towers):
        some = sorted({name.partition(".")[0] for name in files})[:8]
        raise CheckpointError(
            f"{files.path} has no tensors of {only!r:.60}; a part is {BODY}, {ENCODER}, or what "
            f"names begin with, here {', '.join(some)[:200]}"
        )
    return files


def settings_of(config: Mapping[str, Any], family: Family, only: str | None) -> dict[str, Any]:
    """What a config says of a part."""
    if only == ENCODER:
        whole = (other for other in FAMILIES.values() if other.encoder is family)
        others = frozenset[str]().union(*(other.sayable(k) for other in whole for k in other.keys))
        known = frozenset[str]().union(*(family.sayable(k) for k in family.keys))
        return {key: value for key, value in config.items() if key not in others - known}
    if only in (None, BODY):
        return dict(config)
    inner = config.get(f"{str(only).removesuffix('_model')}_config")
    return dict(inner) if isinstance(inner, dict) else dict(config)


def encoder_of(names: Collection[str], where: str) -> Family:
    """The encoder that a file has, alone or before its decoder.

    Raises:
        CheckpointError: If it has none.
    """
    if not (encoders := encoders_in(names)):
        raise CheckpointError(f"{where} has no encoder of an encoder-decoder that is read")
    return encoders[0]


def body_of(family: Family) -> Family:
    """A family without its heads.

    Raises:
        CheckpointError: If it gives nothing then.
    """
    if family.hidden_head is not None:
        raise CheckpointError(f"{family.name} gives no hidden states, so it has no {BODY}")
    if id(family) not in _BODIES:
        bare = replace(family, readers=(), predictor=None, poolers={}, pooled={}, summaries=())
        _BODIES[id(family)] = family, bare
    return _BODIES[id(family)][1]
