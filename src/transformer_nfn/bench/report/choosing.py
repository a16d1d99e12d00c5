"""Which finished cells a report shows, and what it says of the others."""

from collections import Counter
from pathlib import Path
from typing import Any

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.protocol.computing import Finished, is_current, read_cells


def shown_cells(out: str | Path) -> tuple[list[Finished], str]:
    """The cells that can be compared, and in some sentences which are left out.

    Args:
        out: The folder of the benchmark.

    Raises:
        BenchError: If there are none.
    """
    every = read_cells(out)
    current = [cell for cell in every if is_current(cell)]
    shown = _of_whole_zoos(current)
    sentences = []
    unknown = Counter(cell.record["model"] for cell in every if not is_current(cell))
    if unknown:
        models = ", ".join(f"`{model}` ({number})" for model, number in sorted(unknown.items()))
        sentences.append(
            f"Cells of models that are not known here, or had other settings, are left out: "
            f"{models}. A model of one's own has to be registered where the report is written."
        )
    if len(shown) < len(current):
        sentences.append(
            f"{len(current) - len(shown)} cells are left out that were computed when a zoo had "
            "fewer runs."
        )
    left_out = " ".join(sentences)
    if not shown:
        raise BenchError(
            f"{out} has no finished cells yet: `tnfn bench run` computes them. {left_out}".strip()
        )
    return shown, left_out


def _of_whole_zoos(cells: list[Finished]) -> list[Finished]:
    """Without those that were computed before their zoo grew: they were tested on fewer rows."""
    runs: dict[tuple[Any, ...], int] = {}
    for cell in cells:
        runs[_zoo_of(cell)] = max(runs.get(_zoo_of(cell), 0), cell.record["zoo_runs"])
    return [cell for cell in cells if cell.record["zoo_runs"] == runs[_zoo_of(cell)]]


def _zoo_of(cell: Finished) -> tuple[Any, ...]:
    return tuple(cell.record[name] for name in ("zoo", "track", "checkpoints", "runs"))
