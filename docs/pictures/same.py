"""Draw same.png: the steps by which `tnfn same` comes to its answer.

    python docs/pictures/same.py

writes the picture next to this file. The text is in docs/understand/same.md.
"""

from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

# Okabe and Ito's colours: told apart by all common kinds of colour blindness.
STEP, SAME, DIFFERENT, UNDECIDED = "#0072B2", "#009E73", "#D55E00", "#777777"
INK, FAINT = "#222222", "#666666"
SMALL, LARGE = 13, 16

Point = tuple[float, float]


def box(ax: Axes, centre: Point, size: Point, color: str, title: str, text: str) -> None:
    """A rounded box with a title and up to three short lines below it."""
    (x, y), (width, height) = centre, size
    ax.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=1.4",
            facecolor="#FFFFFF",
            edgecolor=color,
            linewidth=2,
        )
    )
    top = y + height / 2 - 2.6
    ax.text(x, top, title, ha="center", va="center", fontsize=LARGE, weight="bold", color=color)
    ax.text(x, top - 2.4, text, ha="center", va="top", fontsize=SMALL, color=INK, linespacing=1.35)


def arrow(ax: Axes, start: Point, stop: Point, color: str = FAINT) -> None:
    """One way to go on."""
    ax.annotate(
        "",
        xy=stop,
        xytext=start,
        arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.8, "mutation_scale": 18},
    )


def label(ax: Axes, point: Point, text: str, color: str = FAINT) -> None:
    """When an arrow is taken, on a white ground."""
    ax.text(
        *point,
        text,
        ha="center",
        va="center",
        fontsize=SMALL,
        color=color,
        linespacing=1.2,
        bbox={"facecolor": "#FFFFFF", "edgecolor": "none", "pad": 1.5},
    )


def main() -> None:
    """Draw and save."""
    figure = plt.figure(figsize=(15, 7.4), dpi=100, facecolor="#FFFFFF")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, 150)
    ax.set_ylim(0, 74)
    ax.axis("off")

    steps = [
        ("1 Settings", "do both configs mean\nthe same function\nof the weights?"),
        ("2 Canonical form", "take out whatever\ncannot change\nthe function"),
        ("3 Matching", "look for the symmetry:\nbasis, attention heads,\nmatrices, neurons"),
        ("4 Judging", "is what remains\nof every unit\nno more than rounding?"),
        ("5 Running", "do the outputs agree,\non fresh random inputs\nand in the file's dtype?"),
    ]
    xs, high, size = [17, 46, 75, 104, 133], 64, (25.5, 15)
    for x, (title, text) in zip(xs, steps, strict=True):
        box(ax, (x, high), size, STEP, title, text)
    for left, right in pairwise(xs):
        arrow(ax, (left + 12.9, high), (right - 12.9, high), STEP)

    bottom, wide = 8, (28, 12)
    box(ax, (17, bottom), wide, SAME, "identical bytes", "or the same tensors\n(exit code 0)")
    box(ax, (54, bottom), wide, UNDECIDED, "not decided", "with the reason\n(exit code 4)")
    box(ax, (95, bottom), wide, DIFFERENT, "different", "with a witness\n(exit code 3)")
    box(ax, (134, bottom), wide, SAME, "equivalent", "with a certificate\n(exit code 0)")
    box(ax, (75, 36), (31, 9), DIFFERENT, "Look for a witness", "run both networks")

    below, above = high - 7.7, bottom + 6.2
    arrow(ax, (12, below), (12, above), SAME)
    label(ax, (12, 35), "settings and\nall bits are\nthe same", SAME)
    arrow(ax, (20, below), (46, above), UNDECIDED)
    label(ax, (34, 33), "an unknown\nsetting differs", UNDECIDED)
    arrow(ax, (26, below), (59.3, 39.5), DIFFERENT)
    label(ax, (45, 47.5), "a setting differs", DIFFERENT)
    arrow(ax, (104, below), (90.7, 39.5), DIFFERENT)
    label(ax, (97.5, 48), "a unit is off", DIFFERENT)
    arrow(ax, (70, 31.3), (61, above), UNDECIDED)
    label(ax, (65, 23), "no input\nshows it", UNDECIDED)
    arrow(ax, (81, 31.3), (89, above), DIFFERENT)
    label(ax, (86, 23), "an input\nshows it", DIFFERENT)
    arrow(ax, (126, below), (103, above), DIFFERENT)
    label(ax, (114, 34), "outputs differ\nbeyond rounding", DIFFERENT)
    arrow(ax, (137, below), (137, above), SAME)
    label(ax, (137, 35), "they agree\nup to rounding", SAME)
    ax.text(
        119,
        20.5,
        "in between: not decided",
        ha="center",
        fontsize=SMALL,
        color=UNDECIDED,
        style="italic",
    )
    # No date or version in the file: the same picture is the same bytes.
    figure.savefig(Path(__file__).with_suffix(".png"), metadata={"Software": None})


if __name__ == "__main__":
    main()
