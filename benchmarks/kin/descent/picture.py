"""p among strangers: how often it was at most so much, and how often it may be."""

from pathlib import Path
from typing import Any


def plot_ps(found: dict[str, Any], out: Path) -> None:
    """Draw the shares of pairs of strangers; what is valid is at or below the diagonal.

    Args:
        found: What `strangers` says.
        out: A picture file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.6), layout="constrained")
    axes = figure.subplots()
    least = 1 / found["pairs"]
    axes.plot([least, 1], [least, 1], color="0.6", label="as often as allowed")
    axes.fill_between([least, 1], [least, 1], 1, color="tab:red", alpha=0.08, linewidth=0)
    ps, shares = zip(*found["ps"], strict=True)
    label = f"{found['pairs']:,} pairs of {found['networks']} networks"
    axes.step(ps, shares, where="post", color="tab:blue", label=label)
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least / 2, 1.2))
    axes.set(xlabel="p", ylabel="share of pairs of strangers with p at most this")
    axes.text(0.04, 0.93, "too often: not valid", transform=axes.transAxes, color="tab:red")
    axes.legend(loc="upper left", bbox_to_anchor=(0.01, 0.92), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=150)
