"""Learning curves: τ of each model against the number of runs."""

from typing import Any

import numpy as np

from transformer_nfn.bench.report.learning import PAPERS_RUNS, Learning
from transformer_nfn.bench.report.pictures.namedlines import Line, line_picture
from transformer_nfn.escaping import for_picture

_STEPS = 25  # places of an extrapolated line
_FURTHER = (2000, 5000, PAPERS_RUNS)  # where its axis has numbers


def by_size(learning: Learning) -> bytes:
    """τ against the number of runs, a line for each model, extrapolated to the paper's zoos.

    The best two have their 95 % interval. What was not measured is dashed.

    Raises:
        BenchError: If matplotlib is missing.
    """
    lines, extended = [], False
    for place, model in enumerate(learning.models):
        comparison, sizes = learning.by_model[model], learning.sizes_of(model)
        intervals = [comparison.tau(str(size)) for size in sizes]
        line = Line(model, [float(size) for size in sizes], [one.mean for one in intervals])
        if place < 2:
            line = line._replace(band=intervals)
        curve = learning.curves.get(model)
        if curve is not None and sizes[-1] < PAPERS_RUNS:
            extended = True
            places = [float(x) for x in np.geomspace(sizes[-1], PAPERS_RUNS, _STEPS)]
            beyond = [curve.at(x) for x in places]
            line = line._replace(beyond=(places, [one.mean for one in beyond]))
            if place < 2:
                line = line._replace(beyond_band=beyond)
        lines.append(line)
    further = [size for size in _FURTHER if extended and size > learning.sizes[-1]]
    ticks = [*learning.sizes, *further]
    ceiling = learning.ceiling(learning.models[0])

    def prepare(axes: Any) -> None:
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("runs of the zoo" + (", dashed: extrapolated" if extended else ""))
        axes.set_title(for_picture(f"{learning.zoo}, {learning.track} starts"), loc="left", pad=14)

    return line_picture(
        lines,
        prepare,
        None if ceiling is None else ([float(ticks[0]), float(ticks[-1])], [ceiling, ceiling]),
    )
