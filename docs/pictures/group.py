"""Draw group.png: the paper's block with its axes, and one group element acting on numbers.

    python docs/pictures/group.py

writes the picture next to this file. Seeded, so it comes out the same each time.
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle

from transformer_nfn.group import conditioned, random_element, relative_error
from transformer_nfn.space import PAPER, BlockSpec, WeightBatch

# Okabe and Ito's colours: told apart by all common kinds of colour blindness.
FREE, PERMUTED, LINEAR = "#555555", "#0072B2", "#D55E00"
PAPER_WHITE, FILL = "#FFFFFF", "#F3F3F3"
SMALL, NORMAL, LARGE = 14, 16, 20


class Box:
    """A tensor as a rectangle: rows run along its left edge, columns along its bottom edge."""

    def __init__(self, ax: Axes, name: str, corner: tuple[float, float], size: tuple[float, float]):
        self.ax = ax
        self.x, self.y = corner
        self.width, self.height = size
        self.name = name

    def draw(self, stacked: bool) -> None:
        """The rectangle; a stack of two if the tensor has an axis of heads."""
        for shift in (1.1, 0) if stacked else (0,):
            self.ax.add_patch(
                Rectangle(
                    (self.x + shift, self.y + shift),
                    self.width,
                    self.height,
                    facecolor=FILL,
                    edgecolor="#999999",
                    linewidth=1,
                )
            )
        self.ax.text(
            self.x + self.width / 2,
            self.y + self.height / 2,
            self.name,
            ha="center",
            va="center_baseline",
            fontsize=LARGE if self.height > 6 else NORMAL,
            weight="bold",
        )

    def rows(self, label: str, color: str) -> tuple[float, float]:
        """Colour the left edge, name it, and give its middle."""
        self.ax.plot([self.x] * 2, [self.y, self.y + self.height], color=color, linewidth=5)
        point = (self.x, self.y + self.height / 2)
        self.ax.text(
            self.x - 1.0,
            self.y + self.height * 0.72,
            label,
            ha="right",
            va="center",
            fontsize=NORMAL,
            color=color,
        )
        return point

    def columns(self, label: str, color: str) -> tuple[float, float]:
        """Colour the bottom edge, name it, and give its middle."""
        self.ax.plot([self.x, self.x + self.width], [self.y] * 2, color=color, linewidth=5)
        point = (self.x + self.width / 2, self.y)
        self.ax.text(
            self.x + self.width * 0.82,
            self.y - 0.9,
            label,
            ha="center",
            va="top",
            fontsize=NORMAL,
            color=color,
        )
        return point


def path(ax: Axes, points: list[tuple[float, float]], color: str) -> None:
    """A line through right angles, with a dot at both ends."""
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, color=color, linewidth=2.2, solid_joinstyle="round")
    ax.plot([xs[0], xs[-1]], [ys[0], ys[-1]], "o", color=color, markersize=7)


def note(ax: Axes, x: float, y: float, text: str, color: str, ha: str = "center") -> None:
    """What a part of g does, on a white ground."""
    ax.text(
        x,
        y,
        text,
        ha=ha,
        va="center",
        fontsize=NORMAL,
        color=color,
        bbox={"facecolor": PAPER_WHITE, "edgecolor": "none", "pad": 2},
    )


def flow(ax: Axes, start: float, stop: float, y: float, text: str) -> None:
    """An arrow of the data flow."""
    ax.annotate(
        "",
        xy=(stop, y),
        xytext=(start, y),
        arrowprops={"arrowstyle": "-|>", "color": "#AAAAAA", "linewidth": 2},
    )
    if text:
        middle = (start + stop) / 2
        ax.text(middle, y + 1.0, text, ha="center", va="bottom", fontsize=SMALL, color="#666666")


def diagram(figure: SubFigure) -> None:
    """The tensors along the data flow, and which of their axes one part of g moves together."""
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, 150)
    ax.set_ylim(0, 68)
    ax.axis("off")

    # The heads: one dashed frame around the four tensors that have them.
    ax.add_patch(
        FancyBboxPatch(
            (2.5, 5.5),
            62,
            56.5,
            boxstyle="round,pad=0.6,rounding_size=2",
            facecolor="none",
            edgecolor=PERMUTED,
            linewidth=1.6,
            linestyle=(0, (5, 4)),
        )
    )
    note(ax, 33, 62.5, "h:  τ permutes the heads of all four alike", PERMUTED)

    q = Box(ax, "Q", (12, 44), (11, 13))
    k = Box(ax, "K", (44, 44), (11, 13))
    v = Box(ax, "V", (12, 16.5), (11, 13))
    o = Box(ax, "O", (44, 17.5), (13, 11))
    a = Box(ax, "A", (82, 16.5), (20, 13))
    b = Box(ax, "B", (124, 13), (13, 20))
    ba = Box(ax, "bA", (82, 1.5), (20, 5))
    bb = Box(ax, "bB", (124, 1.5), (13, 5))
    for box in (q, k, v, o, a, b, ba, bb):
        box.draw(stacked=box in (q, k, v, o))

    for box in (q, k, v):
        box.rows("x", FREE)
    q_k, k_k = q.columns("k", LINEAR), k.columns("k*", LINEAR)
    v_v, o_v = v.columns("v", LINEAR), o.rows("v*", LINEAR)
    o_r, a_r = o.columns("r", PERMUTED), a.rows("r", PERMUTED)
    a_a, b_a = a.columns("a", PERMUTED), b.rows("a", PERMUTED)
    ba_a = (92, ba.y + ba.height)
    ax.plot([ba.x, ba.x + ba.width], [ba.y + ba.height] * 2, color=PERMUTED, linewidth=5)
    ax.text(ba.x + ba.width + 1, ba.y + 2.3, "a", va="center", fontsize=NORMAL, color=PERMUTED)
    b.columns("x", FREE)
    ax.plot([bb.x, bb.x + bb.width], [bb.y + bb.height] * 2, color=FREE, linewidth=5)
    ax.text(bb.x + bb.width + 1, bb.y + 2.3, "x", va="center", fontsize=NORMAL, color=FREE)

    low = 39.5
    path(ax, [q_k, (q_k[0], low), (k_k[0], low), k_k], LINEAR)
    note(ax, 33.5, low, "Q Mᵀ,  K M⁻¹", LINEAR)
    low = 12
    path(ax, [v_v, (v_v[0], low), (38, low), (38, o_v[1]), o_v], LINEAR)
    note(ax, 28, low, "V N,  N⁻¹ O", LINEAR)
    path(ax, [o_r, (o_r[0], low), (75, low), (75, a_r[1]), a_r], PERMUTED)
    note(ax, 70, low, "π_O", PERMUTED)
    path(ax, [a_a, ba_a], PERMUTED)
    path(ax, [(92, low), (116, low), (116, b_a[1]), b_a], PERMUTED)
    note(ax, 106, low, "π_A", PERMUTED)

    ax.text(
        33.5,
        34.3,
        "softmax(X Q Kᵀ Xᵀ / √D_k) · X V O",
        ha="center",
        va="center",
        fontsize=SMALL,
        color="#666666",
    )
    flow(ax, 66.5, 79, 26, "LN")
    flow(ax, 103, 114, 26, "ReLU")
    flow(ax, 138, 147, 26, "LN")

    x, y = 72, 61.5
    ax.text(x, y, "kinds of axes", fontsize=NORMAL, weight="bold", va="center")
    rows = [
        (FREE, "free: not moved", "x: D"),
        (PERMUTED, "permuted: out[i] = in[π(i)]", "h: heads   r: D   a: D_A"),
        (LINEAR, "linear: rows · G, on the dual axis (*) rows · G⁻ᵀ", "k: D_k   v: D_v"),
    ]
    for number, (color, text, sizes) in enumerate(rows):
        y = 57.2 - 6.6 * number
        ax.add_line(Line2D([x, x + 5], [y, y], color=color, linewidth=5))
        ax.text(x + 6.5, y, text, fontsize=NORMAL, color=color, va="center")
        ax.text(x + 6.5, y - 2.9, sizes, fontsize=SMALL, color="#666666", va="center")


def numbers(figure: SubFigure) -> None:
    """Heat maps of a small block before and after one element."""
    spec = BlockSpec(PAPER, D=8, heads=2, D_k=4, D_v=4, D_A=6)
    generator = torch.Generator().manual_seed(1)
    before = WeightBatch.random(spec, networks=1, generator=generator, dtype=torch.float64)
    g = random_element(spec, generator=generator, matrices=conditioned(3.0))
    assert g.parts["h"].flatten().tolist() == [1, 0], "the picture should show τ at work"
    after = g(before)

    def heads(batch: WeightBatch, name: str) -> torch.Tensor:
        return batch[name][0, 0, 0].transpose(0, 1).flatten(1)  # x (h k)

    def product(batch: WeightBatch, name: str) -> torch.Tensor:
        return batch.product(name)[0, 0, 0]

    assert relative_error(product(after, "QK"), product(before, "QK")) < 1e-14
    panels = [
        ("Q, both heads", heads(before, "Q"), heads(after, "Q"), "swapped, mixed by M"),
        ("K, both heads", heads(before, "K"), heads(after, "K"), "swapped, mixed by M⁻¹"),
        ("QK = Σ Q Kᵀ", product(before, "QK"), product(after, "QK"), "unchanged (error < 1e-14)"),
        ("VO = Σ V O", product(before, "VO"), product(after, "VO"), "columns permuted by π_O"),
    ]
    side, gap, pair = 0.098, 0.008, 0.245
    for column, (title, first, second, caption) in enumerate(panels):
        left = 0.02 + column * pair
        bound = max(first.abs().max().item(), second.abs().max().item())
        for place, (values, when) in enumerate([(first, "U"), (second, "gU")]):
            ax = figure.add_axes((left + place * (side + gap), 0.2, side, 0.54))
            ax.imshow(values, cmap="PuOr", vmin=-bound, vmax=bound, aspect="auto")
            ax.set_xticks([])
            ax.set_yticks([])
            ax.set_xlabel(when, fontsize=NORMAL)
            if title.startswith(("Q,", "K,")):
                ax.axvline(spec.size("k") - 0.5, color="black", linewidth=1.5)
        centre = left + side + gap / 2
        figure.text(centre, 0.84, title, ha="center", fontsize=NORMAL, weight="bold")
        figure.text(centre, 0.77, caption, ha="center", fontsize=SMALL, color="#666666")


def picture() -> Figure:
    """Both panels."""
    figure = plt.figure(figsize=(15, 10.2), dpi=100, facecolor=PAPER_WHITE)
    top, bottom = figure.subfigures(2, 1, height_ratios=[6.8, 3.4])
    diagram(top)
    numbers(bottom)
    return figure


if __name__ == "__main__":
    # No date or version in the file: the same picture is the same bytes.
    picture().savefig(Path(__file__).with_suffix(".png"), metadata={"Software": None})
