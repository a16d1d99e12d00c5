"""Real networks whose relations are known, from packages of the registries.

Each pair is compared as `tnfn kin` does: by the family of both, by a table of units where no family
reads them, and by rows that are the same where there is no table.
"""

import csv
import fnmatch
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from transformer_nfn.checkpoints import Checkpoint, TensorFiles, UnsupportedError
from transformer_nfn.kinship import (
    Kin,
    Relation,
    are_kin,
    kin,
    kin_by_rows,
    kin_by_table,
    sketch,
)

_UNITS = Path(__file__).resolve().parents[2] / "material" / "units"
#: Tables of units for folders that no family reads, by their names.
TABLES = {
    "igfold-*": "igfold",
    "tis-*": "performer",
    "ribotie-*": "performer",
    "sapiens-*": "fairseq",
    "detransliterator-*": "fairseq-seq2seq",
    "latexocr-*": "ocr",
}
#: Networks of one architecture and independent starts; all pairs of them are strangers.
STRANGERS = (
    (
        "agave-git-2026-02-22-1ce803d",
        "agave-git-2026-03-02-3ca9d23",
        "agave-git-2026-04-02-6e4c05a",
        "agave-git-2026-04-22-b03b399",
        "agave-git-2026-05-01-f168f6b",
        "agave-git-2026-05-13-73a89e4",
        "agave-albert-0.2.0",
        "rxnmapper-albert",
    ),
    ("igfold-1", "igfold-2", "igfold-3", "igfold-5"),
    tuple(f"tis-{kind}-f{fold}" for kind in ("homo_sapiens", "mus_musculus") for fold in range(5)),
    ("ribotie-50perc-f0", "ribotie-50perc-f1"),
    ("sapiens-vh", "sapiens-vl"),
    ("sudachi-b-0.2.1", "sudachi-c-0.2.1"),
)
#: Not among them, as this test found: their encoders are of one seed, their decoders are not.
ONE_SEED = (("detransliterator-35", "detransliterator-38"),)
#: What a label, by its beginning, should be called.
EXPECTED: dict[str, tuple[Relation, ...]] = {
    "fine-tune": (Relation.DERIVED,),
    "siblings": (Relation.DERIVED,),
    "same lineage": (Relation.DERIVED,),
    "distant relatives": (Relation.DERIVED,),
    "depth-pruned": (Relation.DERIVED, Relation.PARTS),
    "relatives sharing only": (Relation.PARTS,),
    "exact copy": (Relation.COPY,),
    "re-exported copy": (Relation.COPY,),
    "disguised copy": (Relation.COPY,),
    "quantised copy": (Relation.COPY,),
    "one seed": (Relation.START,),
    "stranger": (Relation.UNRELATED,),
}


_RELATED = (Relation.COPY, Relation.DERIVED, Relation.START, Relation.PARTS)


class Pair(NamedTuple):
    """Two folders, and what they are to each other."""

    first: str
    second: str
    label: str


class Answered(NamedTuple):
    """What was said of a pair, and by which way of comparing."""

    way: str
    found: Kin
    by_sketch: bool | None


def labelled(table: Path) -> list[Pair]:
    """The pairs of a table with columns a, b and label."""
    with table.open(newline="") as lines:
        return [
            Pair(row["a"], row["b"], row["label"]) for row in csv.DictReader(lines, delimiter="\t")
        ]


def strangers() -> Iterator[Pair]:
    for group in STRANGERS:
        for one, two in combinations(group, 2):
            yield Pair(one, two, "stranger (one architecture)")


def judge(home: Path, table: Path) -> dict[str, Any]:
    """All labelled pairs and all strangers of the folders that are there, and what is wrong."""
    pairs = [*labelled(table), *strangers(), *(Pair(*both, "one seed") for both in ONE_SEED)]
    rows, wrong, missing = [], [], []
    for pair in pairs:
        one, two = (_place(home, table.parent, name) for name in pair[:2])
        if one is None or two is None:
            missing.append(pair[:2])
            continue
        way, found, by_sketch = answer(one, two)
        row = {
            **pair._asdict(),
            "way": way,
            "answer": found.relation.value,
            "log10_p": round(found.log10_p, 1) if found.networks else None,
            "by_sketch": by_sketch,
        }
        rows.append(row)
        print(" ".join(str(value) for value in row.values()), file=sys.stderr, flush=True)
        if found.relation not in expected(pair.label):
            wrong.append(row)
    kin_rows = [row for row in rows if row["by_sketch"] is not None]
    related = [row for row in kin_rows if Relation(row["answer"]) in _RELATED]
    return {
        "pairs": len(rows),
        "labelled": sum(not row["label"].startswith("stranger (one") for row in rows),
        "strangers": sum(row["label"].startswith("stranger") for row in rows),
        "wrong": wrong,
        "missing": missing,
        "sketches": {
            "kin": len(related),
            "found": sum(bool(row["by_sketch"]) for row in related),
            "strangers": len(kin_rows) - len(related),
            "passed": sum(bool(row["by_sketch"]) for row in kin_rows if row not in related),
        },
        "rows": rows,
    }


def _place(home: Path, beside: Path, name: str) -> Path | None:
    """A folder among the unpacked packages, or beside the table."""
    return next((f for f in (home / name, beside / "agave" / name) if f.is_dir()), None)


def expected(label: str) -> tuple[Relation, ...]:
    return next(found for start, found in EXPECTED.items() if label.startswith(start))


def answer(one: Path, two: Path) -> Answered:
    """Compare two folders in the first way that can."""
    try:
        with Checkpoint(one) as ours, Checkpoint(two) as theirs:
            by_sketch = are_kin(sketch(ours), sketch(theirs))
            return Answered("family", kin(ours, theirs), by_sketch)
    except UnsupportedError:
        pass
    name = next((t for start, t in TABLES.items() if fnmatch.fnmatch(one.name, start)), None)
    with TensorFiles(one) as files, TensorFiles(two) as others:
        if name is not None:
            return Answered("table", kin_by_table(files, others, _UNITS / f"{name}.toml"), None)
        return Answered("rows", kin_by_rows(files, others), None)
