"""What all sections of a report share: where pictures go, and the commands that make figures."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_nfn.bench.models.registry import MODELS, load_installed, main_models
from transformer_nfn.bench.report.scores import Comparison
from transformer_nfn.zoo.dataset import RECIPES


class Page:
    """A page under construction.

    Args:
        home: The folder of the page and its pictures.
        out: The name of the benchmark's folder, as commands have it.
    """

    def __init__(self, home: Path, out: str) -> None:
        self._home, self.out = home, out
        self.drawn: list[Path] = []

    def picture(self, name: str, caption: str, png: bytes) -> str:
        """Write a picture; the Markdown that shows it."""
        (self._home / name).write_bytes(png)
        self.drawn.append(self._home / name)
        return f"![{caption}]({name})"

    def command(
        self, comparison: Comparison, *experiments: str, models: Sequence[str] | None = None
    ) -> str:
        """What computes figures again; a zoo's name is its folder.

        Args:
            comparison: The figures.
            experiments: What is to be run.
            models: Which models to name; those of a main experiment if it has others than usual.
        """
        record = comparison.record
        lines = [build_command(record)]
        if record.get("test_zoo") is not None:
            described = (record["test_zoo_runs"], record["test_track"], record["test_folder"])
            lines.append(_build(record["test_zoo"], *described))
        for experiment in experiments:
            lines += run_commands(record["folder"], comparison, self.out, experiment, models=models)
        outside = [model for model in comparison.models if _is_outside(comparison, model)]
        own = [model for model in comparison.models if _is_own(model) and model not in outside]
        if own:
            lines.append(f"# {', '.join(own)}: by a program that calls register_predictor")
        lines += [
            f"tnfn bench score {model}-SPLIT.parquet --zoo {record['folder']} --split SPLIT "
            f"--name {model} --tier {MODELS[model].tier} --out {self.out}"
            for model in outside
        ]
        return fenced(lines)


def fenced(lines: Sequence[str]) -> str:
    """Commands in Markdown."""
    return "\n".join(["```sh", *lines, "```"])


def build_command(record: dict[str, Any]) -> str:
    """What builds the zoo of a cell."""
    return _build(record["zoo"], record["zoo_runs"], record["track"], record["folder"])


def run_commands(
    zoo: str,
    comparison: Comparison,
    out: str,
    experiment: str = "main",
    *,
    models: Sequence[str] | None = None,
) -> list[str]:
    """What computes the cells of a comparison: one command where all models were fitted as often.

    Args:
        zoo: The zoo's folder.
        comparison: The figures.
        out: The folder of the benchmark.
        experiment: What is to be run.
        models: Which models to name if all were fitted as often; none if they are the experiment's
            own.
    """
    record = comparison.record
    options = options_of(record)
    if experiment != "main":
        options += f" --experiment {experiment}"
    if record.get("test_zoo") is not None:
        options += f" --test-zoo {shlex.quote(record['test_folder'])}"
    lines = []
    for (splits, seeds, trained), fitted in _how_often(comparison).items():
        often = f" --splits {spelled(splits)}" + f" --seeds {seeds}" * (seeds > 1)
        often += f" --train-runs {trained}" if trained else ""
        named = models if len(fitted) == len(comparison.models) else fitted
        if named is None and experiment == "main" and set(fitted) != set(main_models()):
            named = fitted
        said = [] if named is None else [one for one in named if not _is_own(one)]
        chosen = f" --models {','.join(said)}" if said else ""
        lines.append(f"tnfn bench run --zoo {zoo}{often}{options}{chosen} --out {out}")
    return lines


def options_of(record: dict[str, Any]) -> str:
    """For the command line, which rows of a zoo count where not all do."""
    options = ""
    if record["runs"] is not None:
        options += f" --runs {record['runs']}"
    if record["checkpoints"] != "epochs":
        options += f" --checkpoints {record['checkpoints']}"
    return options


def spelled(splits: Sequence[int]) -> str:
    """Splits for the command line: how many if they are the first, else which."""
    if list(splits) == list(range(len(splits))):
        return str(len(splits))
    return ",".join(map(str, splits)) + "," * (len(splits) == 1)


def _how_often(comparison: Comparison) -> dict[tuple[tuple[int, ...], int, int], list[str]]:
    """Models by splits, numbers of seeds and of runs that they learned from, 0 being all.

    Such as five splits, and two of them with three seeds.
    """
    found: dict[tuple[tuple[int, ...], int, int], list[str]] = {}
    for model in comparison.models:
        seeds = {
            split: len(comparison.seeds(model, split)) for split in comparison.splits_of(model)
        }
        for most in sorted(set(seeds.values())):
            splits = tuple(split for split, count in seeds.items() if count >= most)
            trained = comparison.train_runs(model) or 0
            found.setdefault((splits, most, trained), []).append(model)
    return dict(sorted(found.items(), key=lambda item: (item[0][1], -len(item[0][0]), item[0])))


def _is_own(model: str) -> bool:
    """Whether the command line does not know a model; names may also be sizes of a curve."""
    own = model in MODELS and MODELS[model].origin == "own"
    return own and model not in load_installed()


def _is_outside(comparison: Comparison, model: str) -> bool:
    """Whether a model is known by its predictions alone; names may also be sizes of a curve."""
    cells = (cell for by_seed in comparison.cells[model].values() for cell in by_seed.values())
    return model in MODELS and any(cell.record.get("outside") is not None for cell in cells)


def _build(zoo: str, runs: Any, track: str, folder: str) -> str:
    if zoo not in RECIPES:  # a recipe of one's own, or networks of one's own
        return f"# {folder}: {zoo}, {runs} runs, which no recipe of this package builds"
    seeds = " --seeds shared" if track == "shared" else ""
    return f"tnfn zoo build {zoo} --runs {runs}{seeds} --out {shlex.quote(folder)}"


def file_name(zoo: str, track: str) -> str:
    """The part of a picture's name that says what it shows."""
    # A zoo's name may be somebody else's: nothing of it leads to another folder.
    return re.sub(r"[^\w-]+", "-", f"{zoo}-{track}".replace(" → ", "-to-").replace(",", ""))


def splits_of(comparison: Comparison) -> str:
    """Which splits a comparison has."""
    shown = ", ".join(map(str, comparison.splits))
    return f"Splits: {shown}."
