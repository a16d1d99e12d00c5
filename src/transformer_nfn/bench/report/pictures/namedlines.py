"""Lines with their names at the right end, none on top of another."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from transformer_nfn.bench.models.registry import MODELS, model_named
from transformer_nfn.bench.report.pictures.style import (
    GREY,
    LIGHT,
    WIDTH,
    drawn_png,
    look_of,
    origin_legend,
    tau_limits,
)
from transformer_nfn.bench.report.scores import Interval

LABELS = 1.035  # where the names of lines begin, 1 being the right end of the axes
_LINE_MARKERS = "osD^vPX<>p*"
_FULL: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.8}
#: Of the paper's model there is a second line, by the authors' schedule: in the registry behind it.
_HOLLOW: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 1.8}


class Line(NamedTuple):
    """A model's τ at some places, with intervals where they are shown.

    Attributes:
        model: Its name.
        x: The places.
        taus: τ at each of them.
        band: The interval of each.
        beyond: Places and τ that were not measured: dashed, without markers.
        beyond_band: Their intervals.
    """

    model: str
    x: list[float]
    taus: list[float]
    band: list[Interval] | None = None
    beyond: tuple[list[float], list[float]] | None = None
    beyond_band: list[Interval] | None = None


def line_picture(
    lines: Sequence[Line],
    prepare: Callable[[Any], None],
    ceiling: tuple[list[float], list[float]] | None,
) -> bytes:
    """Draw the lines.

    Args:
        lines: One for each model.
        prepare: Sets axes and titles.
        ceiling: Places and noise ceiling.
    """
    values = [value for line in lines for value in line.taus]
    values += [value for line in lines if line.beyond for value in line.beyond[1]]
    for line in lines:
        bands = [*(line.band or []), *(line.beyond_band or [])]
        values += [value for interval in bands for value in interval]
    limits = tau_limits(values + (ceiling[1] if ceiling else []))
    there = {line.model for line in lines}
    full = next((name for name in MODELS if name in there and _is_papers(name)), None)
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
            paper = _is_papers(line.model)
            number = count[kind.origin] = count.get(kind.origin, -1) + 1
            axes.plot(
                line.x,
                line.taus,
                marker="D" if paper else _LINE_MARKERS[number % len(_LINE_MARKERS)],
                markersize=7.5 if paper else 6,
                **(_HOLLOW if paper and line.model != full else _FULL),
                color=look.colour,
                linewidth=2.8 if paper else 1.5,
                zorder=4 if paper else 3,
            )
            last_x, last_tau = line.x[-1], line.taus[-1]
            _shade(axes, line.x, line.band, look.colour, 0.14)
            if line.beyond is not None:
                axes.plot(
                    *line.beyond,
                    color=look.colour,
                    linewidth=2.4 if paper else 1.3,
                    linestyle=(0, (4, 2.5)),
                    zorder=3,
                )
                _shade(axes, line.beyond[0], line.beyond_band, look.colour, 0.09)
                last_x, last_tau = line.beyond[0][-1], line.beyond[1][-1]
            style = {"color": look.colour, "weight": "bold" if paper else "normal"}
            ends.append((last_x, last_tau, kind.title, style))
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
        places = apart(wanted, 11.5 * 1.4 / 72 / inches)
        for (x, y, text, style), place in zip(ends, places, strict=True):
            axes.annotate(
                text,
                (x, y),
                (LABELS, place),
                xycoords="data",
                textcoords="axes fraction",
                va="center",
                fontsize=11.5,
                arrowprops=leader((0.0, 0.5)) | ({} if x == last else {"linestyle": ":"}),
                annotation_clip=False,
                **style,
            )

    return drawn_png(WIDTH, height, draw)


def _is_papers(model: str) -> bool:
    return model_named(model).origin == "published"


def _shade(
    axes: Any, x: list[float], band: list[Interval] | None, colour: str, alpha: float
) -> None:
    if band is not None:
        low, high = ([one[side] for one in band] for side in (1, 2))
        axes.fill_between(x, low, high, color=colour, alpha=alpha, linewidth=0, zorder=1)


def leader(corner: tuple[float, float]) -> dict[str, Any]:
    """A thin line from a label to what it names; corner: where on the label it begins."""
    return {
        "arrowstyle": "-",
        "color": "#aaaaaa",
        "linewidth": 0.8,
        "shrinkA": 2,
        "shrinkB": 5,
        "relpos": corner,
    }


def apart(wanted: Sequence[float], distance: float) -> list[float]:
    """The places between 0 and 1 nearest to those wanted that keep a distance, in the same order.

    Neighbours that would touch are merged into a block around the mean of what they want.

    Examples:
        >>> apart([0.5, 0.5, 0.0], 0.25)
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
