"""Draw fixed-points.png: neurons of a fine-tune keep their places, those of others do not.

    python docs/pictures/fixed_points.py

writes the picture next to this file. The nearest neurons are computed, of small random networks;
the seed is one where the unrelated pair keeps one place, which is what chance does on average.
The text is in docs/understand/kin.md.
"""

from math import factorial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

# Okabe and Ito's colours: told apart by all common kinds of colour blindness.
KEPT, MOVED, INK = "#0072B2", "#BBBBBB", "#222222"
NEURONS, WIDTH, NOISE = 12, 24, 1.3
SMALL, NORMAL = 11, 13


def nearest(ours: Tensor, theirs: Tensor) -> list[int]:
    """For each neuron of ours the number of the most similar one of theirs."""
    cosines = torch.nn.functional.normalize(ours, dim=1) @ torch.nn.functional.normalize(theirs).T
    return [int(number) for number in cosines.argmax(dim=1)]


def pairs(ax: Axes, numbers: list[int], title: str, left: str) -> None:
    """Two columns of neurons, and a line from each on the left to the most similar on the right."""
    kept = sum(number == place for place, number in enumerate(numbers))
    for place, number in enumerate(numbers):
        same = place == number
        ax.plot(
            [0, 1],
            [place, number],
            color=KEPT if same else MOVED,
            linewidth=2.6 if same else 1.6,
            zorder=2 if same else 1,
        )
    for side in (0, 1):
        ax.scatter(
            [side] * NEURONS, range(NEURONS), s=230, color="#FFFFFF", edgecolor=INK, zorder=3
        )
        for place in range(NEURONS):
            ax.text(side, place, str(place), ha="center", va="center", fontsize=9, zorder=4)
    ax.text(0, -1.1, left, ha="center", fontsize=NORMAL, weight="bold")
    ax.text(1, -1.1, "B", ha="center", fontsize=NORMAL, weight="bold")
    ax.text(
        0.5,
        NEURONS + 0.1,
        f"{kept} of {NEURONS} keep their place",
        ha="center",
        fontsize=NORMAL,
        color=KEPT,
    )
    ax.set_title(title, fontsize=NORMAL, pad=12)
    ax.set_xlim(-0.25, 1.25)
    ax.set_ylim(NEURONS + 0.6, -1.8)
    ax.axis("off")


def bound(ax: Axes) -> None:
    """How unlikely k kept places are between unrelated networks."""
    ks = range(1, NEURONS + 1)
    ax.semilogy(ks, [1 / factorial(k) for k in ks], "o-", color=KEPT)
    ax.axhline(1e-6, color=MOVED, linestyle="--")
    ax.text(1, 4e-7, "called related below this", fontsize=SMALL, color="#666666", va="top")
    ax.set_title("Chance: at most 1/k!", fontsize=NORMAL, pad=12)
    ax.set_xlabel("k neurons keep their place", fontsize=SMALL)
    ax.set_xticks([1, 4, 8, 12])
    ax.set_ylabel("probability between unrelated models", fontsize=SMALL)
    ax.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Draw and save."""
    generator = torch.Generator().manual_seed(18)
    base, noise, stranger = torch.randn(3, NEURONS, WIDTH, generator=generator)
    figure, axes = plt.subplots(1, 3, figsize=(13, 5.2), dpi=100, width_ratios=[1, 1, 0.9])
    pairs(axes[0], nearest(base + NOISE * noise, base), "A was made from B", "A")
    pairs(axes[1], nearest(stranger, base), "A is unrelated to B", "A")
    bound(axes[2])
    figure.tight_layout(w_pad=3)
    # No date or version in the file: the same picture is the same bytes.
    path = Path(__file__).with_name("fixed-points.png")
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    main()
