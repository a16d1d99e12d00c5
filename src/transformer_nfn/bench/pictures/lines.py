"""Lines: τ of each model against a threshold or a bound."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_nfn.bench.pictures.style import (
    GREY,
    LIGHT,
    SMALL,
    WIDTH,
    drawn_png,
    look_of,
    mean_tau,
    origin_legend,
    panel_title,
    sorted_panels,
    tau_limits,
)
from transformer_nfn.bench.registry import model_named
from transformer_nfn.bench.scores import Comparison, Interval

_LABELS = 1.035  # where the names of lines begin, 1 being the right end of the axes
_LINE_MARKERS = "osD^vPX<>p*"


class _Line(NamedTuple):
    """A model's τ at some places, for pictures with lines; its interval where it is shown."""

    model: str
    x: list[float]
    taus: list[float]
    band: list[Interval] | None


def by_threshold(comparison: Comparison) -> bytes:
    """τ on the test rows that reach an accuracy, against that accuracy, a line for each model.

    The best two have their 95 % interval.

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    sorted_panels([comparison])
    distinct = {threshold.accuracy: threshold for threshold in reversed(comparison.thresholds)}
    chosen = [distinct[accuracy] for accuracy in sorted(distinct)]
    places = [100 * threshold.accuracy for threshold in chosen]
    taus = {
        model: [mean_tau(comparison, model, threshold) for threshold in chosen]
        for model in comparison.models
    }
    best = sorted(taus, key=lambda model: -taus[model][0])[:2]
    lines = [
        _Line(
            model,
            places,
            values,
            [comparison.tau(model, threshold) for threshold in chosen] if model in best else None,
        )
        for model, values in taus.items()
    ]
    ceilings = [comparison.ceiling(threshold) for threshold in chosen]
    ceiling = [value for value in ceilings if value is not None]
    accuracy = comparison.pooled(comparison.models[0])[1]
    kept = [float((accuracy >= threshold.accuracy).mean()) for threshold in chosen]

    def prepare(axes: Any) -> None:
        axes.set_xlabel("only test rows of at least this accuracy, %")
        top = axes.get_xaxis_transform()
        fractions = [(place - places[0]) / ((places[-1] - places[0]) or 1) for place in places]
        shown = _apart(fractions, 0.068)
        for place, fraction, share in zip(places, shown, kept, strict=True):
            axes.annotate(
                f"{100 * share:.0f} %",
                (place, 1),
                (places[0] + fraction * (places[-1] - places[0]), 1.035),
                xycoords=top,
                textcoords=top,
                ha="center",
                va="bottom",
                fontsize=SMALL,
                color=GREY,
                arrowprops=_leader((0.5, 0.0)) | {"shrinkA": 1, "shrinkB": 1},
            )
            axes.axvline(place, color="#ececec", linewidth=0.8, zorder=0)
        axes.text(
            _LABELS,
            1.035,
            "of the rows",
            transform=axes.transAxes,
            va="bottom",
            fontsize=SMALL,
            color=GREY,
        )
        axes.set_title(panel_title(comparison), loc="left", pad=38)  # above these shares

    return _line_picture(
        lines,
        prepare,
        (places, ceiling) if len(ceiling) == len(places) else None,
    )


def augmentation(by_bound: Mapping[str, Comparison]) -> bytes:
    """τ on zoos to which copies moved by the group were added, a line for each model.

    The best two have their 95 % interval.

    Args:
        by_bound: Comparisons by what bounds the random matrices, in the order shown: "original",
            "±1", "±10", "±100".

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    sorted_panels(list(by_bound.values()))
    names = list(dict.fromkeys(model for one in by_bound.values() for model in one.models))
    taus = {
        model: {
            float(place): mean_tau(comparison, model)
            for place, comparison in enumerate(by_bound.values())
            if model in comparison.models
        }
        for model in names
    }
    best = sorted(names, key=lambda model: -float(np.mean(list(taus[model].values()))))[:2]
    lines = [
        _Line(
            model,
            list(taus[model]),
            list(taus[model].values()),
            [one.tau(model) for one in by_bound.values() if model in one.models]
            if model in best
            else None,
        )
        for model in names
    ]

    def prepare(axes: Any) -> None:
        axes.set_xticks(range(len(by_bound)), list(by_bound))
        axes.tick_params(axis="x", labelsize=12, length=0)
        axes.set_title(panel_title(next(iter(by_bound.values()))), loc="left", pad=14)
        axes.set_xlabel("entries of the random matrices that moved the added copies")

    return _line_picture(lines, prepare, None)


def _line_picture(
    lines: Sequence[_Line],
    prepare: Callable[[Any], None],
    ceiling: tuple[list[float], list[float]] | None,
) -> bytes:
    """Lines with their names at the right end, none on top of another."""
    values = [value for line in lines for value in line.taus]
    values += [value for line in lines for interval in line.band or [] for value in interval]
    limits = tau_limits(values + (ceiling[1] if ceiling else []))
    labels = len(lines) + (ceiling is not None)
    height = max(5.6, 0.27 * labels + 1.6)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set(ylim=limits, ylabel="Kendall's τ")
        axes.grid(axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0, labelsize=11)
        count: dict[str, int] = {}
        ends: list[tuple[float, float, str, dict[str, Any]]] = []
        for line in lines:
            look = look_of(line.model)
            kind = model_named(line.model)
            paper = kind.origin == "paper"
            number = count[kind.origin] = count.get(kind.origin, -1) + 1
            axes.plot(
                line.x,
                line.taus,
                marker="D" if paper else _LINE_MARKERS[number % len(_LINE_MARKERS)],
                markersize=7.5 if paper else 6,
                markeredgecolor="white",
                markeredgewidth=0.8,
                color=look.colour,
                linewidth=2.8 if paper else 1.5,
                zorder=4 if paper else 3,
            )
            if line.band is not None:
                low, high = ([one[side] for one in line.band] for side in (1, 2))
                axes.fill_between(
                    line.x, low, high, color=look.colour, alpha=0.14, linewidth=0, zorder=1
                )
            style = {"color": look.colour, "weight": "bold" if paper else "normal"}
            ends.append((line.x[-1], line.taus[-1], kind.title, style))
        if ceiling is not None:
            axes.plot(*ceiling, color=GREY, linewidth=1.3, linestyle=(0, (5, 3)))
            ends.append((ceiling[0][-1], ceiling[1][-1], "noise ceiling", {"color": GREY}))
        prepare(axes)
        axes.margins(x=0.02)
        shaded = f"95 % interval{' of the best two' if len(lines) > 2 else ''}"
        origin_legend(
            figure,
            [line.model for line in lines],
            shapes=False,
            more=[({"color": LIGHT, "linewidth": 9}, shaded)],
        )
        figure.draw_without_rendering()  # lays out: from here the height of a label is known
        inches = axes.get_window_extent().height / figure.dpi
        span = limits[1] - limits[0]
        last = max(end[0] for end in ends)
        wanted = [(end[1] - limits[0]) / span for end in ends]
        places = _apart(wanted, 11.5 * 1.4 / 72 / inches)
        for (x, y, text, style), place in zip(ends, places, strict=True):
            axes.annotate(
                text,
                (x, y),
                (_LABELS, place),
                xycoords="data",
                textcoords="axes fraction",
                va="center",
                fontsize=11.5,
                arrowprops=_leader((0.0, 0.5)) | ({} if x == last else {"linestyle": ":"}),
                annotation_clip=False,
                **style,
            )

    return drawn_png(WIDTH, height, draw)


def _leader(corner: tuple[float, float]) -> dict[str, Any]:
    """A thin line from a label to what it names; corner: where on the label it begins."""
    return {
        "arrowstyle": "-",
        "color": "#aaaaaa",
        "linewidth": 0.8,
        "shrinkA": 2,
        "shrinkB": 5,
        "relpos": corner,
    }


def _apart(wanted: Sequence[float], distance: float) -> list[float]:
    """The places between 0 and 1 nearest to those wanted that keep a distance, in the same order.

    Neighbours that would touch are merged into a block around the mean of what they want.

    Examples:
        >>> _apart([0.5, 0.5, 0.0], 0.25)
        [0.375, 0.625, 0.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    distance = min(distance, 1 / max(len(wanted) - 1, 1))

    def first(total: float, size: int) -> float:
        return max(0.0, min(total / size, 1 - (size - 1) * distance))

    blocks: list[tuple[float, int]] = []  # the sum of the wanted first places, and the size
    for index in order:
        total, size = wanted[index], 1
        while blocks and first(*blocks[-1]) + blocks[-1][1] * distance > first(total, size):
            before, count = blocks.pop()
            total, size = before + total - size * count * distance, size + count
        blocks.append((total, size))
    places = [first(*block) + step * distance for block in blocks for step in range(block[1])]
    return [place for _, place in sorted(zip(order, places, strict=True))]
