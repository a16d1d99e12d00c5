"""Do the configs of two checkpoints mean the same?"""

import json
from dataclasses import fields
from typing import NamedTuple

import torch

from transformer_nfn.checkpoints import Checkpoint, Settings
from transformer_nfn.identity.comparing.dtypes import said_dtype


class SettingsCompared(NamedTuple):
    """What two configs say of the same tensors, by name.

    Attributes:
        differ: Settings that change the function, and are not the same.
        unknown: Keys whose meaning is not known, and which are not the same.
        shared: Such keys that both have, with the same value.
    """

    differ: tuple[str, ...]
    unknown: tuple[str, ...]
    shared: tuple[str, ...]


def compare_settings(ours: Checkpoint, theirs: Checkpoint) -> SettingsCompared:
    """Compare what two configs mean, not how they say it."""
    one, two = (
        {
            name: json.dumps(value, sort_keys=True, default=repr)
            for name, value in c.unknown_settings.items()
        }
        for c in (ours, theirs)
    )
    shared = {name for name in one if one[name] == two.get(name)}
    unknown = {*one, *two} - shared
    # A class reads the heads that it has and makes up the others; where one is not named, one head
    # is the only one.
    several = max(len(c.heads) + len(c.pooled_heads) for c in (ours, theirs)) > 1
    named = None not in (ours.architecture, theirs.architecture)
    if ours.architecture != theirs.architecture and (several or named):
        unknown.add("architectures")
    (one_dtype, one_lost), (two_dtype, two_lost) = map(_loaded, (ours, theirs))
    if one_dtype != two_dtype and (one_lost or two_lost):
        unknown.add("dtype")
    return SettingsCompared(
        tuple(dict.fromkeys(_differ(ours, theirs))),
        tuple(sorted(unknown)),
        tuple(sorted(shared)),
    )


def _loaded(checkpoint: Checkpoint) -> tuple[str, bool]:
    """In what dtype a loader that obeys a file has its weights, and whether that rounds them.

    It obeys the config, else the first tensor that it meets.
    """
    files = checkpoint.files
    stored = [torch.finfo(kind) for kind in files.float_dtypes()]
    said, kind = said_dtype(checkpoint)
    if said is not None and kind is None:
        return repr(said), True  # nobody knows what a loader makes of it
    if kind is None:
        each = sorted((name, str(entry.dtype)) for name, entry in files.entries.items())
        return stored[0].dtype if len(stored) == 1 else repr(each), len(stored) > 1
    loaded = torch.finfo(kind) if kind.is_floating_point else stored[0]
    loses = any(loaded.eps > own.eps or loaded.max < own.max for own in stored)
    as_stored = stored[0].dtype if len(stored) == 1 else "as stored"
    return loaded.dtype if loses else as_stored, loses


def _differ(ours: Checkpoint, theirs: Checkpoint) -> list[str]:
    """The settings that differ, of two networks and of their encoders."""
    found = _fields(ours.settings, theirs.settings)
    if ours.encoder is not None and theirs.encoder is not None:
        found += _differ(ours.encoder, theirs.encoder)
    return found


def _fields(ours: Settings, theirs: Settings) -> list[str]:
    """What changes the function of the same tensors. Tying and the norm are matched, not here."""
    names = [field.name for field in fields(Settings)]
    plain = [name for name in names if name not in ("tied", "norm", "flags")]
    found = [name for name in plain if getattr(ours, name) != getattr(theirs, name)]
    one, two = dict(ours.flags), dict(theirs.flags)
    return found + [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
