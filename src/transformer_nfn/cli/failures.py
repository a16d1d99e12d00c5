"""What failed of many jobs: a line for each reason, and the tracebacks in files."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from transformer_nfn.cli.names import one_line
from transformer_nfn.cli.terminal import say

if TYPE_CHECKING:
    from transformer_nfn.jobs import Failed

#: Jobs that are named where several fail for one reason.
_NAMED = 3


def tell_failures(
    failures: "Sequence[Failed[Any]]",
    out: str,
    what: str,
    *,
    name: Callable[[Any], str],
    file: Callable[[Any], str],
) -> None:
    """Say on stderr what failed and what helps, and write the tracebacks into OUT/failures.

    Args:
        failures: What failed; nothing is said if that is nothing.
        out: The folder of the results, or its URL.
        what: What a job is called, in the plural.
        name: A job, for a person.
        file: A job, as a file name without an ending.
    """
    from transformer_nfn.jobs import ShardFolder

    if not failures:
        return
    by_reason: dict[str, list[str]] = {}
    for failed in failures:
        by_reason.setdefault(failed.reason or failed.error, []).append(name(failed.job))
    for reason, names in by_reason.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        say(f"error: {'; '.join(names[:_NAMED])}{more}: {one_line(reason)}", err=True)
    folder = ShardFolder(f"{out.rstrip('/')}/failures")
    where = f"tracebacks are in {folder.url}"
    try:
        for failed in failures:
            folder.replace(f"{file(failed.job)}.log", failed.error.encode())
    except OSError as error:  # a full disk may be what failed them all
        where = f"their tracebacks cannot be written ({error})"
    advice = "the same command would fail again"
    if any(failed.died for failed in failures):
        advice = "a worker was lost: run the same command again, it does only what is missing"
    say(f"{len(failures)} {what} failed, {where}; {advice}", err=True)
