"""Models that other installed packages bring, found by their entry points."""

import sys
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

from transformer_nfn.bench.errors import BenchError

#: Packages that bring a model name a `Kind` in this group; the entry's name is the model's.
ENTRY_POINTS = "transformer_nfn.predictors"


def find_entries() -> dict[str, EntryPoint]:
    """The entry points of models, by name; nothing is imported.

    Raises:
        BenchError: If two packages have one name.
    """
    # Not from the folder one happens to be in: what lies beside a zoo is not installed.
    places = [place for place in sys.path if place and Path(place).resolve() != Path.cwd()]
    found: dict[str, EntryPoint] = {}
    for distribution in distributions(path=places):
        for entry in distribution.entry_points.select(group=ENTRY_POINTS):
            if entry.name in found and found[entry.name].value != entry.value:
                raise BenchError(
                    f"two installed packages bring a model {entry.name!r:.60}: "
                    f"{found[entry.name].value} and {entry.value}. Uninstall one"
                )
            found[entry.name] = entry
    return found


def load_entry(entry: EntryPoint) -> Any:
    """What an entry point names, which imports its package.

    Raises:
        BenchError: If it cannot be imported.
    """
    try:
        return entry.load()
    except Exception as error:  # whatever the package does when it is imported
        raise BenchError(
            f"the model {entry.name!r:.60} of an installed package cannot be loaded "
            f"({entry.value}): {' '.join(repr(error).split()):.200}. Mend or uninstall that package"
        ) from error
