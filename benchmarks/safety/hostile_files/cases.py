"""Which hostile files there are: all categories and how many cases each has."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.safety.hostile_files import folders, headers
from benchmarks.safety.hostile_files.large import large
from benchmarks.safety.hostile_files.material import FAMILIES, Base, Expected, Make, make_base


def categories(marker: Path) -> dict[str, tuple[int, Make]]:
    return {
        "truncated": (500, headers.truncated),
        "header length": (300, headers.header_length),
        "offsets": (500, headers.offsets),
        "dtypes": (300, headers.dtypes),
        "shapes": (500, headers.shapes),
        "header: JSON": (530, headers.header_json),
        "header: text and names": (200, headers.header_text),
        "metadata": (200, headers.metadata),
        "flipped bytes": (900, headers.flips),
        "random bytes": (300, headers.noise),
        "other formats": (300, folders.other_formats(marker)),
        "NaN and infinity": (100, headers.values),
        "tensors missing or renamed": (300, headers.tensors),
        "config: values": (500, folders.config_values),
        "config: text": (320, folders.config_files),
        "index and shards": (400, folders.index),
        "links and devices": (300, folders.specials),
        "large": (30, large),
    }


@dataclass(frozen=True)
class Case:
    category: str
    number: int
    base: Base
    make: Make

    def write(self, home: Path) -> tuple[Path, Expected]:
        rng = Random(f"{self.category} {self.number}")
        made = self.make(self.number, rng, self.base)
        home.mkdir()
        for name, content in made.files.items():
            (home / name).write_bytes(content)
        if made.after:
            made.after(home)
        return home / made.opened if made.opened else home, made.expected


def all_cases(marker: Path, share: float) -> Iterator[Case]:
    """Of each category the same share; nothing in step with the kinds within it."""
    bases = [make_base(family) for family in FAMILIES.values()]
    for category, (count, make) in categories(marker).items():
        numbers = Random(category).sample(range(count), math.ceil(count * share))
        for number in sorted(numbers):
            base = Random(f"{number} {category}").choice(bases)
            yield Case(category, number, base, make)
