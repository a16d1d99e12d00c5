"""One batch: read each item, and commit a row for every one of them, whatever happens."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa  # type: ignore[import-untyped]

from transformer_nfn.checkpoints import CheckpointError, UnreadableError, UnsupportedError
from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.items import Item
from transformer_nfn.hub.planning import Batch, reader
from transformer_nfn.hub.sources import look
from transformer_nfn.hub.store import COLUMNS, Results
from transformer_nfn.jobs import one_thread

#: Longest reason that is kept.
_REASON = 500


@runtime_checkable
class Task(Protocol):
    """What is computed of each file. It is pickled, so it holds settings and no models."""

    @property
    def description(self) -> dict[str, Any]:
        """Its name and settings: only results of the same are kept in one folder."""

    @property
    def schema(self) -> pa.Schema:
        """The columns that it adds."""

    def read(self, path: str) -> tuple[Any, int]:
        """What it takes from a file, and how many bytes were read.

        Raises:
            CheckpointError: If the file is at fault.
        """

    def of_unsupported(self, path: str) -> dict[str, Any]:
        """The columns of a file that no family reads."""

    def columns(self, found: Sequence[Any]) -> list[dict[str, Any]]:
        """The columns of some files, of what `read` gave."""


class Report(NamedTuple):
    """What a job reports: everything else is in its shard.

    `unwritten` says why there is no shard: that is nobody's fault among its files.
    """

    files: int
    errors: int
    bytes_read: int
    unwritten: str | None = None


def work_batch(task: Task, url: str, walked: bool, batch: Batch) -> Report:
    """Do a batch and commit its shard; a file at fault is a row with a reason.

    Args:
        task: What to compute.
        url: The folder of results.
        walked: Whether versions are our own, and not those of a manifest.
        batch: Which items.
    """
    with one_thread("cpu"):
        done = [_try(task, item, walked and "://" not in item.path) for item in batch.items]
        rows = [row for row, _ in done]
        sound = [number for number, row in enumerate(rows) if row["status"] == "ok"]
        for number, more in zip(sound, task.columns([done[n][1] for n in sound]), strict=True):
            rows[number] |= more
    table = to_table(task, rows)
    report = Report(len(rows), len(rows) - len(sound), sum(row["bytes_read"] for row in rows))
    try:
        Results(url, task.description).commit(batch.name, table)
    except HubError as error:
        return report._replace(unwritten=str(error))
    return report


def failed_row(item: Item, reason: str) -> dict[str, Any]:
    """The row of an item whose worker did not come back."""
    return _row(item, "failed", reason)


def to_table(task: Task, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows as they are stored; columns that a row lacks are null."""
    return pa.Table.from_pylist(rows, pa.schema([*COLUMNS, *task.schema]))


def _try(task: Task, item: Item, own: bool) -> tuple[dict[str, Any], Any]:
    """The row of an item, and what was read of it.

    Its version is that of what was read, with which the next listing is compared: a file may be
    replaced after the listing, and be put back later. Where versions are spelled by others (`own`
    is false) it is the listing's; a file that changed since then is read once more next time.
    """
    start = time.perf_counter()
    row, found = _row(item, "failed"), None
    try:
        before = look(item.path)
        row |= {"size": before.size, "version": before.version if own else item.version}
        more, found = _read(task, item.path)
        if look(item.path) != before:  # and then it may well look broken
            more |= {"status": "changed", "reason": "it changed while it was read"}
        row |= more
    except Exception as error:  # of any library behind a URL
        row["reason"] = _words(error)
    row["seconds"] = time.perf_counter() - start
    return row, found


def _read(task: Task, path: str) -> tuple[dict[str, Any], Any]:
    try:
        try:
            found, count = task.read(path)
            return {"status": "ok", "bytes_read": count}, found
        except UnsupportedError as error:
            unread = {"status": "unsupported", "reason": _words(error)}
            return unread | task.of_unsupported(path), None
    except Exception as error:
        return {"status": _status(error), "reason": _words(error)}, None


def _status(error: Exception) -> str:
    broken = isinstance(error, CheckpointError) and not isinstance(error, UnreadableError)
    return "broken" if broken else "failed"


def _row(item: Item, status: str, reason: str | None = None) -> dict[str, Any]:
    known = {"path": item.path, "version": item.version, "size": item.size}
    rest = {"status": status, "reason": reason, "bytes_read": 0, "seconds": 0.0}
    return known | rest | {"reader": reader()}


def _words(error: Exception) -> str:
    text = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return text.encode(errors="backslashreplace").decode()[:_REASON]
