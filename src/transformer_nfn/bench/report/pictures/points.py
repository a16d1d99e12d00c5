"""Predicted against true accuracy."""

from typing import Any

import numpy as np

from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.bench.report.pictures.style import (
    GREY,
    WIDTH,
    drawn_png,
    look_of,
    mean_tau,
    panel_grid,
    panel_title,
    signed,
    sorted_panels,
    wrapped,
)
from transformer_nfn.bench.report.scores import Comparison


def scatter(comparison: Comparison) -> bytes:
    """Predicted against true accuracy, a panel for each model, the rows of all splits.

    Predictions beyond the axes are drawn on their edge.

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    sorted_panels([comparison])
    taus = {model: mean_tau(comparison, model) for model in comparison.models}
    models = sorted(taus, key=lambda model: -taus[model])
    pooled = {model: comparison.pooled(model) for model in models}
    lines, columns = panel_grid(len(models), 5)
    true = pooled[models[0]][1]
    usual = [float(np.quantile(predicted, 0.01)) for predicted, _ in pooled.values()]
    low = max(0.0, np.floor(10 * min(*usual, float(true.min()))) * 10)
    low = min(low, 90.0)
    side = min(3.6, (WIDTH - 0.6) / columns)
    size = float(np.clip(10_000 / len(true), 5, 20))
    alpha = float(np.clip(450 / len(true), 0.12, 0.7))

    def draw(figure: Any) -> None:
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for axes in list(grid.flat)[len(models) :]:
            axes.remove()
        for axes, model in zip(grid.flat, models, strict=False):
            predicted, accuracy = pooled[model]
            look = look_of(model)
            axes.plot([0, 100], [0, 100], color=GREY, linewidth=1, zorder=0)
            axes.scatter(
                100 * accuracy,
                np.clip(100 * predicted, low, 100),
                s=size,
                color=look.colour,
                alpha=alpha,
                linewidths=0,
                clip_on=False,
            )
            margin = 0.02 * (100 - low)
            axes.set(xlim=(low - margin, 100 + margin), ylim=(low - margin, 100 + margin))
            axes.set_box_aspect(1)
            axes.locator_params(nbins=5 if side > 2.6 else 4, steps=[1, 2, 2.5, 5, 10])
            axes.tick_params(labelsize=11, length=3, labelbottom=True)
            name = wrapped(model_named(model).title, int(side * 9))
            weight = "bold" if model_named(model).origin == "published" else "normal"
            axes.set_title(name, loc="left", color=look.colour, fontsize=11.5, weight=weight)
            axes.text(
                0.97,
                0.05,
                f"τ = {signed(taus[model])}",
                transform=axes.transAxes,
                ha="right",
                fontsize=11.5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
            )
        figure.get_layout_engine().set(hspace=0.06)
        figure.suptitle(panel_title(comparison), x=0.01, ha="left", fontsize=13)
        figure.supxlabel("true accuracy, %", fontsize=12)
        figure.supylabel("predicted accuracy, %", fontsize=12)

    return drawn_png(columns * side + 0.6, lines * (side + 0.4) + 0.8, draw)
