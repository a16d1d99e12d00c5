"""How τ grows with the size of a zoo: learning curves from finished cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.report.curves import LEAST_SIZES, LearningCurve, learning_curve
from transformer_nfn.bench.report.scores import (
    BySplit,
    Comparison,
    Interval,
    add_cell,
    named_zoo,
)
from transformer_nfn.bench.report.tables import shown, table

#: Runs of the paper's zoos, which curves are extrapolated to.
PAPERS_RUNS = 16_000


@dataclass(frozen=True, eq=False)
class Learning:
    """The models of one zoo, each trained on several sizes and tested on the same rows.

    Attributes:
        zoo: The zoo's name.
        track: independent or shared starts.
        by_model: For each model its sizes, compared as if each were a model of its own; their
            names are the numbers of runs.
    """

    zoo: str
    track: str
    by_model: dict[str, Comparison]

    @property
    def models(self) -> list[str]:
        """The best at its largest size first."""
        return sorted(
            self.by_model,
            key=lambda model: (
                -float(np.mean(self.by_model[model].by_split(str(self.sizes_of(model)[-1]))))
            ),
        )

    @property
    def sizes(self) -> list[int]:
        """All sizes that some model has."""
        return sorted({size for model in self.by_model for size in self.sizes_of(model)})

    def sizes_of(self, model: str) -> list[int]:
        """The sizes of a model, smallest first."""
        return sorted(int(name) for name in self.by_model[model].models)

    def ceiling(self, model: str) -> float | None:
        """The noise ceiling of the rows that a model was tested on."""
        return self.by_model[model].ceiling()

    @cached_property
    def curves(self) -> dict[str, LearningCurve]:
        """The curve of each model that has enough sizes."""
        sizes = {model: self.sizes_of(model) for model in self.by_model}
        return {
            model: self._curve(model, there)
            for model, there in sizes.items()
            if len(there) >= LEAST_SIZES
        }

    @cached_property
    def last_predicted(self) -> dict[str, Interval]:
        """What each model's smaller sizes say of its largest, which was measured: a back-test."""
        sizes = {model: self.sizes_of(model) for model in self.by_model}
        return {
            model: self._curve(model, there[:-1]).at(there[-1])
            for model, there in sizes.items()
            if len(there) > LEAST_SIZES
        }

    def back_tests(self) -> dict[str, bool]:
        """For each model with a back-test whether its largest size is in the predicted interval."""
        return {
            model: one.low <= self._measured(model) <= one.high
            for model, one in self.last_predicted.items()
        }

    def falls(self, model: str) -> bool:
        """Whether a model's curve gives less at the paper's size than was measured at its last."""
        curve = self.curves.get(model)
        return curve is not None and curve.at(PAPERS_RUNS).mean < self._measured(model)

    def _measured(self, model: str) -> float:
        return self.by_model[model].tau(str(self.sizes_of(model)[-1])).mean

    def _curve(self, model: str, sizes: list[int]) -> LearningCurve:
        comparison = self.by_model[model]
        return learning_curve(
            np.array(sizes, dtype=np.float64),
            np.array([comparison.by_split(str(size)) for size in sizes]),
            np.stack([comparison.split_draws(str(size)) for size in sizes]),
            self.ceiling(model) or 1.0,
        )


def learnings(cells: Sequence[Finished], models: Sequence[str]) -> list[Learning]:
    """One for each zoo that some model was trained on in more than one size.

    The largest size is the main experiment's cell, trained on the whole zoo. A model's splits, and
    its seeds in each, are those that all its sizes have.

    Args:
        cells: Finished cells.
        models: Their names, in the order wanted.
    """
    found: dict[tuple[Any, ...], dict[str, dict[int, BySplit]]] = {}
    for cell in cells:
        record = cell.record
        if record["model"] in models and changes_of(record).keys() <= {"train_runs"}:
            key = tuple(record[n] for n in ("zoo", "track", "checkpoints", "runs", "zoo_runs"))
            size = record.get("train_runs") or record["zoo_runs"]
            by_size = found.setdefault(key, {}).setdefault(record["model"], {})
            add_cell(by_size.setdefault(size, {}), cell)
    result = []
    for key, by_model in sorted(found.items(), key=lambda item: str(item[0])):
        several = {
            model: _over_sizes(key, by_model[model])
            for model in models
            if len(by_model.get(model, {})) > 1
        }
        several = {model: comparison for model, comparison in several.items() if comparison.splits}
        if several:
            first = next(iter(several.values()))
            result.append(Learning(first.zoo, first.track, several))
    return result


def _over_sizes(key: tuple[Any, ...], by_size: dict[int, BySplit]) -> Comparison:
    zoo, track, _, runs, _ = key
    fits = set.intersection(
        *({(s, seed) for s, by_seed in one.items() for seed in by_seed} for one in by_size.values())
    )
    cells = {
        str(size): {
            split: {seed: by_seed[seed] for seed in by_seed if (split, seed) in fits}
            for split, by_seed in by_size[size].items()
            if any((split, seed) in fits for seed in by_seed)
        }
        for size in sorted(by_size)
    }
    return Comparison(named_zoo(zoo, runs), track, cells).evened()


def learning_table(learning: Learning) -> str:
    """τ of each model at each size, then what its curve says of the last and the paper's size."""
    rows = []
    for model in learning.models:
        comparison, cells = learning.by_model[model], [MODELS[model].title]
        for size in learning.sizes:
            there = str(size) in comparison.models
            cells.append(shown(comparison.tau(str(size))) if there else "")
        last_predicted, curve = learning.last_predicted.get(model), learning.curves.get(model)
        cells.append("" if last_predicted is None else shown(last_predicted))
        cells.append("" if curve is None else shown(curve.at(PAPERS_RUNS)))
        cells.append(str(len(comparison.splits)))
        rows.append(cells)
    header = ["model", *(f"{size:,} runs" for size in learning.sizes)]
    more = ["the last, predicted by the others", f"{PAPERS_RUNS:,}, extrapolated", "splits"]
    return table([*header, *more], rows)
