"""What the commands on many checkpoints share: sources, a folder of results, progress."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_nfn.cli.common import interruptible, make_executor
from transformer_nfn.cli.terminal import say
from transformer_nfn.cli.wording import counted

if TYPE_CHECKING:
    from transformer_nfn.hub import Bulk, Task
    from transformer_nfn.kinship import Prints

Sources = Annotated[
    list[str],
    typer.Argument(
        help="Safetensors or GGUF files, folders, manifests (.parquet, .csv, .jsonl, .txt), or "
        "their URLs."
    ),
]
BlockChoice = Annotated[
    str,
    typer.Option(
        "--blocks",
        help="all, or some of first,middle,last: then only these blocks are read, and no output "
        "heads.",
    ),
]
#: How often a batch is tried again after its worker died: then its files are tried one by one.
_RETRIES = 2
#: Cores that a worker takes if files are behind URLs: it waits for them most of the time.
_FAR = 0.25
#: Files without a result that are named.
_NAMED = 20


def is_folder(out: str) -> bool:
    """Whether an --out is meant as a folder of results."""
    return "://" in out or out.endswith("/") or os.path.isdir(out) or not Path(out).suffix


def few_paths(sources: list[str]) -> list[str | Path]:
    """The checkpoints of some sources, for work that is done in memory; natural order."""
    from transformer_nfn.hub import MANIFESTS, list_items
    from transformer_nfn.kinship import find_checkpoints, natural

    paths: list[str | Path] = []
    for source in sources:
        if "://" in source or source.endswith(MANIFESTS):
            paths += sorted(list_items([source])["path"].to_pylist(), key=natural)
        else:
            paths += find_checkpoints(source) if os.path.isdir(source) else [Path(source)]
    return list(dict.fromkeys(paths))


def few_fingerprints(
    sources: list[str], blocks: str, ray: str | None, as_json: bool, family: str | None = None
) -> "Prints":
    """Fingerprints in memory, and why some files have none."""
    from transformer_nfn.jobs import track
    from transformer_nfn.kinship import fingerprints

    paths = few_paths(sources)
    with interruptible(), make_executor(ray) as executor:
        return fingerprints(
            paths,
            executor,
            lambda outcomes: track(outcomes, len(paths), describe="fingerprints", disable=as_json),
            blocks=blocks,
            family=family,
        )


def run_bulk(
    task: "Task", sources: list[str], out: str, ray: str | None, as_json: bool
) -> tuple["Bulk", dict[str, Any]]:
    """Do what is new or changed, and give the figures of it; files without a result are named."""
    from transformer_nfn.hub import MEMORY, Bulk
    from transformer_nfn.jobs import track

    start = time.monotonic()
    bulk = Bulk(task, sources, out)
    total = len(bulk.listing)
    if len(bulk.open):  # else no cluster is started
        far = "://" in bulk.open["path"][0].as_py()
        options: dict[str, Any] = {"retries": _RETRIES, "memory_bytes": MEMORY}
        options["cpus"] = _FAR if far else 1
        with interruptible(), make_executor(ray, **options) as executor:
            bulk.run(
                executor,
                lambda outcomes: track(
                    outcomes,
                    total,
                    total - len(bulk.open),
                    describe=task.description["name"],
                    disable=as_json,
                    weight=lambda outcome: len(outcome.job.items),
                    detail=bulk.tally.text,
                ),
            )
    status, reasons = bulk.standing(_NAMED)
    figures = {
        "out": bulk.results.url,
        "files": total,
        "status": status,
        "done": bulk.tally.files,
        "errors": bulk.tally.errors,
        "bytes_read": bulk.tally.bytes_read,
        "seconds": round(time.monotonic() - start, 2),
        "reasons": reasons,
    }
    for path, reason in reasons.items():
        say(f"no result: {path}: {reason}", err=True)
    done = status.get("ok", 0) + status.get("unsupported", 0)
    rest = sum(status.values()) - done - len(reasons)
    if rest > 0:
        say(f"and {rest} more: see the columns status and reason", err=True)
    return bulk, figures


def in_words(figures: dict[str, Any]) -> str:
    """The figures of `run_bulk` in a line."""
    status = ", ".join(f"{count} {name}" for name, count in sorted(figures["status"].items()))
    read = f"{figures['bytes_read'] / 1e6:,.1f} MB"
    return (
        f"{figures['out']}: {counted(figures['files'], 'file')}, {status}; "
        f"{figures['done']} new or changed, {read} read in {figures['seconds']:.1f} s"
    )
