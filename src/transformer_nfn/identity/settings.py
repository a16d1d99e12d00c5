"""Do the configs of two checkpoints mean the same?"""

import json
from dataclasses import fields
from typing import NamedTuple

from transformer_nfn.checkpoints import Checkpoint, Settings


class SettingsCompared(NamedTuple):
    """What two configs say of the same tensors, by name.

    Attributes:
        differ: Settings that change the function, and are not the same.
        unknown: Keys of which nobody knows what they do, and which are not the same.
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
    # Of several heads a class reads some, and which is not known here.
    several = max(len(c.heads) + len(c.pooled_heads) for c in (ours, theirs)) > 1
    if ours.architecture != theirs.architecture and several:
        unknown.add("architectures")
    return SettingsCompared(
        tuple(_differ(ours.settings, theirs.settings)),
        tuple(sorted(unknown)),
        tuple(sorted(shared)),
    )


def _differ(ours: Settings, theirs: Settings) -> list[str]:
    """What changes the function of the same tensors. Tying and the norm are matched, not here."""
    names = [field.name for field in fields(Settings)]
    plain = [name for name in names if name not in ("tied", "norm", "flags")]
    found = [name for name in plain if getattr(ours, name) != getattr(theirs, name)]
    one, two = dict(ours.flags), dict(theirs.flags)
    return found + [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
