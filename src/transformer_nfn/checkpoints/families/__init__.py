"""The families we know, and which of them a file is."""

import re
import sys
from collections.abc import Collection, Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from pkgutil import walk_packages
from types import MappingProxyType
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError, UnsupportedError
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.tables import check_table

#: Packages that bring a family of their own name it in this group of entry points.
ENTRY_POINTS = "transformer_nfn.families"


def _tables(names: dict[str, Any]) -> list[Family]:
    """The families among the names of a module; what begins with _ is a part of one."""
    found = (value for name, value in names.items() if not name.startswith("_"))
    return [value for value in found if isinstance(value, Family)]


def _shipped() -> dict[str, Family]:
    """Every table in this folder and those in it: a file more is a family more."""
    modules = (import_module(m.name) for m in walk_packages(__path__, f"{__name__}."))
    return {family.name: family for module in modules for family in _tables(vars(module))}


FAMILIES = MappingProxyType(_shipped())


def _entries(places: list[str]) -> Iterable[EntryPoint]:
    """Entry points of families, of what is installed in some places."""
    for distribution in distributions(path=places):
        yield from distribution.entry_points.select(group=ENTRY_POINTS)


@cache
def installed() -> tuple[Family, ...]:
    """Families of other packages that are installed beside this one.

    Raises:
        CheckpointError: If one of them cannot be loaded.
    """
    found = []
    # Not from the folder one happens to be in: what lies beside a checkpoint is not installed.
    places = [place for place in sys.path if place and Path(place).resolve() != Path.cwd()]
    for entry in _entries(places):
        try:
            family = entry.load()
        except Exception as error:
            raise CheckpointError(
                f"the family {entry.value} of an installed package cannot be loaded: {error!r:.200}"
            ) from error
        if not isinstance(family, Family):
            raise CheckpointError(f"{entry.value} of an installed package is no Family")
        check_table(family)
        found.append(family)
    return tuple(found)


@cache
def load_family(path: str) -> Family:
    """The one table of a Python file, which is run, once: give only what you would run anyway.

    Raises:
        CheckpointError: If it cannot be run, or has none or several.
    """
    names: dict[str, Any] = {"__name__": "family"}
    try:
        exec(compile(Path(path).read_text("utf-8"), path, "exec"), names)
        # A table may be made of one of ours, which is then imported beside it.
        found = [family for family in _tables(names) if family not in FAMILIES.values()]
    except (Exception, SystemExit) as error:  # the exit code of a command is an answer
        raise CheckpointError(f"{path} cannot be run: {error!r:.200}") from None
    if len(found) != 1:
        some = ", ".join(family.name for family in found) or "none"
        raise CheckpointError(f"{path} should have one Family at its top level, it has: {some}")
    return found[0]


def recognise(
    names: Collection[str], where: str, given: Family | None = None, kind: object = None
) -> tuple[Family, str, tuple[str, ...]]:
    """The family and prefix of a file, by the names of its tensors and its model_type.

    Of several that fit it is the one that knows the model_type, since RoBERTa has the names of
    BERT; where none does, the one with most probes.

    Args:
        names: Of the tensors.
        where: What was opened.
        given: The family that the user says it is.
        kind: The model_type, if anybody says one.

    Returns:
        The family, what stands before its names, and every model_type with such names.

    Raises:
        UnsupportedError: If it is none we know.
        CheckpointError: If it is not the one that was given, or that makes no sense.
    """
    if given is not None:
        check_table(given)
        candidates = _fitting([given], names)
    else:
        candidates = _fitting(FAMILIES.values(), names) or _fitting(installed(), names)
    if candidates:
        family, prefix = max(candidates, key=lambda f: (kind in f[0].model_types, len(f[0].probes)))
        alike = [f for f, _ in candidates if len(f.probes) == len(family.probes)]
        kinds = (kind for f in alike for kind in f.model_types)
        return family, prefix, tuple(sorted(kinds))
    some = ", ".join(sorted(names)[:3])
    if given is None and (encoders := encoders_in(names)):
        raise UnsupportedError(
            f"{where} has only the encoder of an encoder-decoder ({encoders[0].name}); say "
            f"--only encoder"
        )
    if given is not None:
        raise CheckpointError(
            f"{where} is no {given.name}: it has not all of {', '.join(given.probes)}; its tensors "
            f"are called {some[:200]}, …"
        )
    raise UnsupportedError(
        f"{where} is of no family we know (`tnfn families` lists them); its tensors are called "
        f"{some[:200]}, …;{nearest(names)}"
    )


def encoders_in(names: Collection[str]) -> list[Family]:
    """Encoders of encoder-decoders that a file with such names has, alone or with its decoder."""
    encoders = [family.encoder for family in FAMILIES.values() if family.encoder is not None]
    return [family for family, _ in _fitting(encoders, names)]


def nearest(names: Collection[str]) -> str:
    """What looks like something we know, what is missing of it and what to do: ends a sentence."""
    best: tuple[float, str] = (0.0, "")
    first = {name[at.start() :] for name in names for at in re.finditer(r"(?=\.0\.)", name)}
    for family in FAMILIES.values():
        wanted = [matrix.names(1)[0] for matrix in family.matrices]
        # Of single letters, as a zoo's nets have them, any file has some.
        there = [name for name in wanted if "." in name and f".0.{name}" in first]
        missing = [name for name in wanted if name not in there]
        if len(there) / len(wanted) > best[0]:
            lacks = f", but not {', '.join(missing[:3])}" if missing else ""
            unlike = [
                probe for probe in family.probes if not any(name.endswith(probe) for name in names)
            ]
            lacks = lacks or (f", but not {unlike[0]}" if unlike else ", under another prefix")
            best = (
                len(there) / len(wanted),
                f" its first block has {len(there)} of the {len(wanted)} matrices of "
                f"{family.name}{lacks};",
            )
    return f"{best[1]} a table of your own can be given, see docs/understand/networks.md"


def _fitting(families: Iterable[Family], names: Collection[str]) -> list[tuple[Family, str]]:
    """Families, and what then stands before all names; the first prefix that fits."""
    found: dict[str, tuple[Family, str]] = {}
    for family in families:
        for prefix in family.prefixes:
            if all(prefix + probe in names for probe in family.probes):
                found.setdefault(family.name, (family, prefix))
    return list(found.values())
