"""Dot plots: a row for each model, a panel for each zoo and track."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_nfn.bench.models.kind import TIERS
from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.bench.report.order import ranked_models
from transformer_nfn.bench.report.pictures.style import (
    GREY,
    SMALL,
    WIDTH,
    drawn_png,
    look_of,
    mean_tau,
    origin_legend,
    panel_grid,
    panel_title,
    signed,
    sorted_panels,
    tau_limits,
)
from transformer_nfn.bench.report.scores import Comparison

_ROW = 0.38  # inches that a model takes in a dot plot
_COLUMNS = 4  # panels side by side in a dot plot
_BAND = "#f7ede4"  # behind the paper's model


def tracks(comparisons: Sequence[Comparison]) -> bytes:
    """τ of each model with its 95 % interval, tier by tier, a panel for each zoo and track.

    Within a tier rows are in the order of the first panel; a model that was not tested in a panel
    has a dash there.

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    panels = sorted_panels(comparisons)
    taus = [{model: panel.tau(model) for model in panel.models} for panel in panels]
    ceilings = [panel.ceiling() for panel in panels]
    models = ranked_models(panels)
    rows, headers, place = _grouped(
        {tier: [model for model in models if model_named(model).tier == tier] for tier in TIERS}
    )
    limits = tau_limits(
        [value for panel in taus for interval in panel.values() for value in interval]
        + [ceiling for ceiling in ceilings if ceiling is not None]
    )

    def draw(figure: Any) -> None:
        grid = _dot_axes(
            figure, panels, rows, headers, limits, above=ceilings != [None] * len(panels)
        )
        for number, (axes, panel, ceiling) in enumerate(zip(grid, taus, ceilings, strict=False)):
            for model, row in rows.items():
                if model not in panel:
                    _beside(axes, row, "–")
                    continue
                look = look_of(model)
                interval = panel[model]
                axes.hlines(row, interval.low, interval.high, color=look.colour, linewidth=2.2)
                face = "white" if panels[number].train_runs(model) else look.colour
                axes.plot(
                    interval.mean,
                    row,
                    look.marker,
                    color=look.colour,
                    markerfacecolor=face,
                    markersize=7,
                )
                _beside(axes, row, signed(interval.mean), look.colour)
            if ceiling is not None:
                axes.axvline(ceiling, color=GREY, linewidth=1.2, zorder=0.9)
                left = ceiling > sum(limits) / 2
                axes.annotate(
                    "noise ceiling",
                    (ceiling, -0.85),
                    (-4 if left else 4, 0),
                    textcoords="offset points",
                    ha="right" if left else "left",
                    va="center",
                    fontsize=SMALL,
                    color=GREY,
                )
        interval_line = ({"color": GREY, "linewidth": 2.2}, "95 % interval")
        more = [interval_line]
        if any(panel.train_runs(model) for panel in panels for model in panel.models):
            hollow: dict[str, Any] = {"linestyle": "none", "marker": "o", "color": GREY}
            more.append((hollow | {"markerfacecolor": "white"}, "fitted to fewer runs"))
        origin_legend(figure, models, shapes=True, more=more)

    return drawn_png(*_dot_size(panels, place + 1.0), draw)


def robustness(comparisons: Sequence[Comparison]) -> bytes:
    """τ before and after a random group element, a panel for each zoo and track.

    Models that are invariant by construction are rows of their own group, on top.

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    panels = sorted_panels(comparisons)
    moved = [[model for model in panel.models if panel.has_moved(model)] for panel in panels]
    before = [
        {model: mean_tau(panel, model) for model in chosen}
        for panel, chosen in zip(panels, moved, strict=True)
    ]
    after = [
        {model: mean_tau(panel, model, column="moved") for model in chosen}
        for panel, chosen in zip(panels, moved, strict=True)
    ]
    # The best first, whatever its tier: a row's group is not its tier here.
    ranked = dict.fromkeys(model for panel in panels for model in panel.ranking())
    models = [model for model in ranked if any(model in one for one in before)]
    rows, headers, place = _grouped(
        {
            "invariant by construction": [m for m in models if model_named(m).invariant],
            "not invariant": [m for m in models if not model_named(m).invariant],
        }
    )
    limits = tau_limits([tau for panel in before + after for tau in panel.values()])

    def draw(figure: Any) -> None:
        grid = _dot_axes(figure, panels, rows, headers, limits, above=False)
        for axes, old, new in zip(grid, before, after, strict=False):
            for model, row in rows.items():
                if model not in old:
                    _beside(axes, row, "–")
                    continue
                colour = look_of(model).colour
                first, last = old[model], new[model]
                axes.hlines(row, first, last, color=colour, alpha=0.45, linewidth=2.5, zorder=2)
                axes.plot(first, row, "o", color=colour, markersize=6.5, zorder=4, clip_on=False)
                axes.plot(
                    last,
                    row,
                    "o",
                    markersize=11,
                    markerfacecolor="white",
                    markeredgecolor=colour,
                    markeredgewidth=1.8,
                    clip_on=False,
                    zorder=3,  # around the dot, where nothing has changed
                )
                _beside(axes, row, signed(last - first, plus=True), colour)
            _beside(axes, 0.0, "change")
        handle = {"linestyle": "none", "marker": "o", "color": GREY}
        hollow = {"markerfacecolor": "white", "markeredgewidth": 1.8}
        origin_legend(
            figure,
            models,
            shapes=False,
            more=[
                ({**handle, "markersize": 6.5}, "as trained"),
                ({**handle, **hollow, "markersize": 11}, "after a random group element"),
            ],
        )

    return drawn_png(*_dot_size(panels, place), draw)


def _grouped(
    groups: Mapping[str, Sequence[str]],
) -> tuple[dict[str, float], dict[float, str], float]:
    """The rows of models in groups, those of the groups' names above them, and their number."""
    rows: dict[str, float] = {}
    headers: dict[float, str] = {}
    place = 0.0
    for header, group in groups.items():
        if group:
            headers[place] = header
            rows |= {model: place + 1 + number for number, model in enumerate(group)}
            place += len(group) + 1.4
    return rows, headers, place


def _dot_size(panels: Sequence[Comparison], rows: float) -> tuple[float, float]:
    lines, _ = panel_grid(len(panels), _COLUMNS)
    return WIDTH, lines * (rows * _ROW + 0.9) + 0.8


def _dot_axes(
    figure: Any,
    panels: Sequence[Comparison],
    rows: Mapping[str, float],
    headers: Mapping[float, str],
    limits: tuple[float, float],
    *,
    above: bool,
) -> list[Any]:
    """Axes with the models as rows; all that is the same in every panel."""
    lines, columns = panel_grid(len(panels), _COLUMNS)
    grid = figure.subplots(lines, columns, squeeze=False)
    ordered = list(grid.flat)
    for number, axes in enumerate(ordered):
        if number >= len(panels):
            axes.remove()
            continue
        axes.set_title(panel_title(panels[number], narrow=columns > 2), loc="left")
        lowest = max(rows.values()) + 0.6
        axes.set(xlim=limits, ylim=(lowest, -1.35 if above else -0.6), xlabel="Kendall's τ")
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.tick_params(length=0)
        _tau_ticks(axes, limits, most=7 if columns < 3 else 3)
        axes.set_yticks([*rows.values(), *headers])
        if number % columns:
            axes.set_yticklabels([])
        else:
            axes.set_yticklabels([*(model_named(model).title for model in rows), *headers.values()])
            for label, model in zip(axes.get_yticklabels(), rows, strict=False):
                if model_named(model).origin == "published":
                    label.set(weight="bold", color=look_of(model).colour)
            for label in axes.get_yticklabels()[len(rows) :]:
                label.set(style="italic", color=GREY, size=SMALL)
        for model, row in rows.items():
            paper = model_named(model).origin == "published"
            if paper:
                axes.axhspan(row - 0.5, row + 0.5, color=_BAND, zorder=0, linewidth=0)
            axes.axhline(row, color="#e6e6e6", linewidth=0.8, zorder=0.5)
    return ordered[: len(panels)]


def _beside(axes: Any, row: float, text: str, colour: str = GREY) -> None:
    """A number in a column right of a panel."""
    axes.annotate(
        text,
        (1, row),
        (9, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=colour,
        annotation_clip=False,
    )


def _tau_ticks(axes: Any, limits: tuple[float, float], most: int) -> None:
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(*limits)
    shown = [place for place in places if limits[0] - 1e-9 <= place <= min(limits[1], 1) + 1e-9]
    axes.set_xticks(shown, [f"{place:.3g}".replace("-", "−") for place in np.round(shown, 9) + 0.0])
