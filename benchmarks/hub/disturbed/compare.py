"""What benchmarks/hub/faults.py compares: shards as they appear, and rows at the end."""

import hashlib
import os
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from transformer_nfn.hub import Bulk, FingerprintTask, Results
from transformer_nfn.jobs import InProcess

FINAL = ("ok", "broken")


class Watch(threading.Thread):
    """Reads every shard as soon as it can be seen: it must be whole, and never change."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.seen: dict[str, str] = {}
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            self.look()
            time.sleep(0.005)

    def look(self) -> None:
        for path in self.folder.glob("*.parquet"):
            if path.name not in self.seen:
                content = path.read_bytes()
                self.seen[path.name] = hashlib.sha256(content).hexdigest()
                try:
                    pq.read_table(pa.BufferReader(content))
                except pa.ArrowInvalid:
                    self.wrong.append(path.name)

    def close(self) -> list[str]:
        """The shards that were not whole, or are not what they were."""
        self.stop.set()
        self.join()
        self.look()
        now = {path.name: path.read_bytes() for path in self.folder.glob("*.parquet")}
        changed = [
            name
            for name, digest in self.seen.items()
            if name not in now or hashlib.sha256(now[name]).hexdigest() != digest
        ]
        return sorted({*self.wrong, *changed})


def undisturbed(tree: Path, out: Path) -> pa.Table:
    """The rows of a run over files that nobody touches, in this process."""
    bulk = Bulk(FingerprintTask(), [str(tree)], str(out))
    bulk.run(InProcess())
    return _comparable(bulk.results.rows())


def compare(tree: Path, out: Path, calm: pa.Table) -> dict[str, object]:
    """What a disturbed run left, against the rows of an undisturbed one over the same files.

    Returns:
        How many paths have other rows or none (`different`, `missing`), or several newest ones
        (`path_twice`); how many results were committed more than once (`twice`); how many rows of
        any shard say something else of a file in its present version (`contradict`); and how many
        rows of each status there are in all shards.
    """
    results = Results(str(out))
    newest = _comparable(results.rows())
    listed = newest.filter(pc.is_in(newest["path"], calm["path"].combine_chunks()))
    mine, theirs = _by_path(listed), _by_path(calm)
    all_rows = [row for path in out.glob("data/*.parquet") for row in _rows(pq.read_table(path))]
    truth = {key: content for key, _, content in _rows(calm)}
    finals = [(key, content) for key, status, content in all_rows if status in FINAL]
    return {
        "missing": len(theirs.keys() - mine.keys()),
        "different": sum(mine[path] != theirs[path] for path in mine),
        "path_twice": len(newest) - len(set(newest["path"].to_pylist())),
        "twice": len(finals) - len({key for key, _ in finals}),
        "contradict": sum(content != truth.get(key, content) for key, content in finals),
        "statuses": dict(Counter(status for _, status, _ in all_rows)),
    }


def unswept(out: Path) -> int:
    """Files of killed writers that the next run leaves, though they are old enough for it."""
    left = [path for path in out.rglob("_tmp/*") if path.is_file()]
    for path in left:
        os.utime(path, (1, 1))
    Results(str(out)).claim()
    return sum(path.exists() for path in left)


def _comparable(table: pa.Table) -> pa.Table:
    return table.drop_columns(["seconds"]).sort_by("path")


def _by_path(table: pa.Table) -> dict[str, bytes]:
    return {key[0]: content for key, _, content in _rows(table)}


def _rows(table: pa.Table) -> list[tuple[tuple[str, str], str, bytes]]:
    """Path and version, status, and all that must be equal: the numbers bit for bit."""
    found = []
    for row in table.to_pylist():
        row.pop("seconds", None)
        numbers = np.array(row.pop("numbers") or [], np.float64)
        content = repr(sorted(row.items())).encode() + numbers.tobytes()
        found.append(((row["path"], row["version"]), row["status"], content))
    return found
