"""A picture of two networks: the heads of one against the heads of the other."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer_nfn.escaping import for_picture

#: Most blocks that are drawn; of a deeper network the first ones.
_MOST = 24
#: Names of files are text, see `for_picture`; a user's own setting may say that all is TeX.
_TEXT: Any = {"text.usetex": False}


def plot_heads(distances: Sequence[Tensor], path: Path, first: str, second: str) -> None:
    """Draw the distances of all pairs of heads; a dark square in each row is a pair.

    Args:
        distances: For each block the squared distances, first network's heads by second's.
        path: A PNG or PDF file.
        first: What the first network is called.
        second: What the second is called.
    """
    from matplotlib import rc_context

    with rc_context(_TEXT):
        _draw_heads(list(distances[:_MOST]), path, for_picture(first), for_picture(second))


def _draw_heads(shown: list[Tensor], path: Path, first: str, second: str) -> None:
    from matplotlib.figure import Figure

    columns = min(len(shown), 6)
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(1.2 + 1.9 * columns, 0.9 + 1.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    picture = None
    for number, (axis, block) in enumerate(zip(axes, shown, strict=False)):
        size = block.clamp_min(0).sqrt().clamp_max(2).numpy()
        picture = axis.imshow(size, cmap="viridis", vmin=0, vmax=2)
        axis.set_title(f"block {number}", fontsize=8)
        axis.set_xticks([])
        axis.set_yticks([])
    for axis in axes[len(shown) :]:
        axis.axis("off")
    figure.supxlabel(f"heads of {second}", fontsize=9)
    figure.supylabel(f"heads of {first}", fontsize=9)
    if picture is not None:
        bar = figure.colorbar(picture, ax=list(axes), shrink=0.8)
        bar.set_label("distance, 0 is the same", fontsize=8)
    figure.savefig(path, dpi=150)
