"""Bulk work: list, compare with what is known, do the rest, commit."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.manifests import SUFFIXES
from transformer_nfn.hub.planning import Batch, deal, one_by_one, open_items
from transformer_nfn.hub.sources import list_items
from transformer_nfn.hub.store import Results
from transformer_nfn.hub.work import Report, Task, failed_row, to_table, work_batch
from transformer_nfn.jobs import Done, Executor, Failed

Outcome = Done[Batch, Report] | Failed[Batch]
Watch = Callable[[Iterator[Any]], Iterable[Any]]


@dataclass
class Tally:
    """What a run has done so far.

    Attributes:
        files: Items done.
        errors: Those of them that have a reason and no result.
        bytes_read: From all of them.
    """

    files: int = 0
    errors: int = 0
    bytes_read: int = 0

    def text(self) -> str:
        """In words, for progress."""
        return f"{_size(self.bytes_read)} read, {self.errors} errors"


class Bulk:
    """A task on many checkpoints, of which only what is new or changed is done.

    Args:
        task: What to compute of each.
        sources: See `list_items`.
        out: The folder of results, a path or an fsspec URL.

    Attributes:
        listing: All checkpoints there are.
        open: Those to be done.
        results: What is known.
        tally: What this run has done.

    Raises:
        HubError: If there is nothing to do it on, or the folder holds something else.
    """

    def __init__(self, task: Task, sources: Sequence[str], out: str) -> None:
        self.task, self.tally = task, Tally()
        self.results = Results(out, task.description)
        self.listing = list_items(sources)
        self._walked = not any(source.endswith(SUFFIXES) for source in sources)
        known = self.results.rows(["version", "status", "reader"])
        self.open: pa.Table = open_items(self.listing, known)

    def run(self, executor: Executor, watch: Watch = lambda outcomes: outcomes) -> Tally:
        """Do all that is open; every item gets a row.

        Args:
            executor: Where batches run.
            watch: Wraps the outcomes as they come, for a progress bar.

        Raises:
            HubError: If results cannot be written, for which no file is at fault; what was
                committed stays.
        """
        self.results.claim()
        for outcome in watch(self._outcomes(executor)):
            if isinstance(outcome, Failed):
                self._give_up(outcome)
        return self.tally

    def standing(self, reasons: int = 20) -> tuple[dict[str, int], dict[str, str]]:
        """How many of all listed items have which status, and why some have no result.

        Args:
            reasons: How many of these at most.
        """
        known = self.results.rows(["status", "reason"])
        listed = known.filter(pc.is_in(known["path"], self.listing["path"].combine_chunks()))
        counts = {one["values"]: one["counts"] for one in listed["status"].value_counts().tolist()}
        told = pc.is_in(listed["status"], pa.array(["ok", "unsupported"]))  # these have a line
        wrong = listed.filter(pc.invert(told)).sort_by("path")
        some = wrong.slice(0, reasons).to_pydict()
        return counts, dict(zip(some["path"], some["reason"], strict=True))

    def _outcomes(self, executor: Executor) -> Iterator[Outcome]:
        """Batches, and item by item those whose worker died: one of its files did it."""
        function = partial(work_batch, self.task, self.results.url, self._walked)
        again: list[Batch] = []
        for outcome in executor.run(function, deal(self.open, self.results.next_run)):
            if isinstance(outcome, Failed) and len(outcome.job.items) > 1:
                again.append(outcome.job)
            else:
                yield self._counted(outcome)
        alone = (one for batch in again for one in one_by_one(batch))
        for outcome in executor.run(function, alone) if again else ():
            yield self._counted(outcome)

    def _counted(self, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Done):
            if outcome.result.unwritten is not None:
                raise HubError(outcome.result.unwritten)
            self.tally.files += outcome.result.files
            self.tally.errors += outcome.result.errors
            self.tally.bytes_read += outcome.result.bytes_read
        else:
            self.tally.files += len(outcome.job.items)
            self.tally.errors += len(outcome.job.items)
        return outcome

    def _give_up(self, outcome: Failed[Batch]) -> None:
        reason = outcome.error.strip().splitlines()[-1]
        rows = [failed_row(item, reason) for item in outcome.job.items]
        self.results.commit(outcome.job.name, to_table(self.task, rows))


def _size(count: int) -> str:
    """Bytes in the unit that a person would use.

    Example:
        >>> _size(1_234_567)
        '1.23 MB'
    """
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} PB"
