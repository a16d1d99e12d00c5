"""What all pictures share: colours, sizes, names, and the way to a PNG."""

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.bench.protocol.loading import Threshold
from transformer_nfn.bench.report.order import shown_place
from transformer_nfn.bench.report.scores import Comparison
from transformer_nfn.escaping import for_picture

WIDTH = 10.5  # inches
DPI = 150
SMALL = 10.5  # points
GREY = "#666666"
LIGHT = "#d9d9d9"
_IN_A_LINE = 6  # entries of a legend
STYLE: Any = {  # matplotlib's type for it lists all names there are
    "text.usetex": False,  # names of zoos are text, see `for_picture`
    "font.family": "DejaVu Sans",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#888888",
    "ytick.color": "#888888",
    "xtick.labelcolor": "#222222",
    "ytick.labelcolor": "#222222",
    "xtick.labelsize": 11,
    "ytick.labelsize": 12,
    "legend.frameon": False,
    "legend.fontsize": 11,
}


class Look(NamedTuple):
    """How models of one origin are drawn: told apart by colour, by lightness and by shape."""

    label: str
    colour: str
    marker: str


LOOKS = {
    "published": Look("the paper's model", "#d55e00", "D"),
    "baseline": Look("its baselines", "#0072b2", "o"),
    "rival": Look("rivals of the field", "#cc79a7", "X"),
    "control": Look("controls", "#4d4d4d", "s"),
    "ours": Look("ours", "#009e73", "P"),
    "variant": Look("variants of its model", "#882255", "^"),
    "own": Look("your own", "#8a6d00", "v"),
}


def sorted_panels(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons in the order shown, see `shown_place`.

    Raises:
        BenchError: If there are none, or one without a model.
    """
    if not comparisons:
        raise BenchError("no comparison to draw")
    for comparison in comparisons:
        if not comparison.models:
            raise BenchError(f"{comparison.zoo}, {comparison.track}: no model has a finished split")
    return sorted(comparisons, key=shown_place)


def panel_grid(panels: int, most: int) -> tuple[int, int]:
    """Lines and columns, as even as can be with at most so many columns."""
    lines = -(-panels // most)
    return lines, -(-panels // lines)


def mean_tau(
    comparison: Comparison,
    model: str,
    threshold: Threshold | None = None,
    column: str = "predicted",
) -> float:
    """The mean over splits, without the interval, which takes longer."""
    none = Threshold("none", 0.0)
    return float(np.mean(comparison.by_split(model, threshold or none, column)))


def tau_limits(taus: Sequence[float]) -> tuple[float, float]:
    """Tenths around all values, and a little more, so that no dot is cut."""
    low = np.floor(10 * (min(taus) - 0.01)) / 10
    high = min(1.0, np.ceil(10 * (max(taus) + 0.01)) / 10)
    margin = 0.02 * (high - low)
    return float(low - margin), float(high + margin)


def signed(value: float, *, plus: bool = False) -> str:
    """A figure with two digits and a true minus."""
    rounded = round(value, 2) + 0.0
    shown = f"{rounded:+.2f}" if plus and rounded else f"{rounded:.2f}"
    return shown.replace("-", "−")


def panel_title(comparison: Comparison, *, narrow: bool = False) -> str:
    """The zoo and the track."""
    track = for_picture(f"{comparison.track} starts")
    if narrow:
        lines = wrapped(comparison.zoo, 22).replace("\xa0", " ").split("\n")
        return ",\n".join(["\n".join(map(for_picture, lines)), track])
    return f"{for_picture(comparison.zoo)}, {track}"


def wrapped(text: str, width: int) -> str:
    """Lines of at most this width; what is in brackets stays together."""
    together = re.sub(r"\[.*?\]", lambda found: found[0].replace(" ", "\xa0"), text)
    return textwrap.fill(together, width)


def look_of(model: str) -> Look:
    """How a model is drawn."""
    return LOOKS[model_named(model).origin]


def origin_legend(
    figure: Any,
    models: Sequence[str],
    *,
    shapes: bool,
    more: Sequence[tuple[dict[str, Any], str]] = (),
) -> None:
    """What colours and shapes mean, below the picture."""
    from matplotlib.lines import Line2D

    present = {model_named(model).origin for model in models}
    handles, labels = [], []
    for origin, look in LOOKS.items():
        if origin in present:
            marker = {"marker": look.marker, "linestyle": "none", "markersize": 8}
            handles.append(
                Line2D([], [], color=look.colour, **(marker if shapes else {"linewidth": 2.5}))
            )
            labels.append(look.label)
    for style, label in more:
        handles.append(Line2D([], [], **style))
        labels.append(label)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=-(-len(handles) // (2 if len(handles) > _IN_A_LINE else 1)),
        handlelength=1.2,
        columnspacing=1.8,
    )


def drawn_png(width: float, height: float, draw: Callable[[Any], None]) -> bytes:
    """A figure as bytes; pyplot and its state are not used.

    Raises:
        BenchError: If matplotlib is missing.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from PIL import Image  # comes with matplotlib
    except ImportError as error:
        raise BenchError("pictures need `pip install 'transformer-nfn[zoo]'`") from error
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
        draw(figure)
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()  # once: `savefig` would draw it twice, and write a larger file to be read
        drawn = Image.fromarray(np.asarray(canvas.buffer_rgba()))
    picture = io.BytesIO()
    few = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(picture, format="png", optimize=True)  # a third of the size, and looks the same
    return picture.getvalue()
