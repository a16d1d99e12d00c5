"""A picture of many files: who is kin, and how near."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from transformer_nfn.escaping import for_picture
from transformer_nfn.kinship.distances import COPY
from transformer_nfn.kinship.duplicates import Duplicates

#: Most files of a heat map, and most whose names can be read.
_FILES, _NAMED = 200, 80
#: Names of files are text, see `for_picture`; a user's own setting may say that all is TeX.
_TEXT: Any = {"text.usetex": False}


def plot_kin(found: Duplicates, path: Path, name: Callable[[str], str] = str) -> None:
    """Draw the distances within the largest lineages, and of all files to those they are linked to.

    Args:
        found: Whose kin.
        path: A PNG or PDF file.
        name: What a file is called.
    """
    from matplotlib import rc_context

    with rc_context(_TEXT):
        _draw_kin(found, path, name)


def _draw_kin(found: Duplicates, path: Path, name: Callable[[str], str]) -> None:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    shown = found.order
    if len(shown) > _FILES:
        lineages = sorted(found.lineages, key=lambda lineage: -sum(map(len, lineage)))
        kin = [lineage for lineage in lineages if sum(map(len, lineage)) > 1] or lineages
        shown = [link.file for lineage in kin for group in lineage for link in group][:_FILES]
    side = min(4 + 0.25 * len(shown), 12)
    figure = Figure(figsize=(2 + 1.5 * side, side), layout="constrained")
    heat, links = figure.subplots(1, 2, width_ratios=[2, 1])
    image = heat.imshow(
        np.log10(np.maximum(found.matrix(shown), 1e-7)),
        cmap=colormaps["viridis"].with_extremes(bad="0.85"),
        vmin=-7,
        vmax=0.3,
    )
    if len(shown) <= _NAMED:
        names = [for_picture(name(found.index.paths[file])) for file in shown]
        heat.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        heat.set_yticks(range(len(names)), names, fontsize=7)
    else:
        heat.set_xlabel("files, lineages together")
    some = (
        "" if len(shown) == len(found.index) else f" of {len(shown)} files in the largest lineages"
    )
    heat.set_title(f"median distance of the parts{some}", fontsize=9)
    figure.colorbar(image, ax=heat, label="log10 of the distance; grey: other shape", shrink=0.8)
    _plot_links(found, links)
    figure.savefig(path, dpi=150)


def _plot_links(found: Duplicates, axes: Any) -> None:
    """How far files are from those they are linked to: copies lie apart from all others."""
    kin = [link for lineage in found.lineages for group in lineage for link in group]
    bins = np.linspace(-7, 0.3, 60)
    for copy, label in ((True, "copies"), (False, "related")):
        far = [link.distance for link in kin if link.distance is not None and link.copy is copy]
        sizes = np.log10(np.maximum(far, 1e-7))
        axes.hist(sizes, bins=bins, label=f"{len(far)} {label}", alpha=0.7)
    for dtype in ("float32", "bfloat16"):
        axes.axvline(np.log10(COPY[dtype]), color="0.4", linestyle=":", linewidth=1)
        axes.text(
            np.log10(COPY[dtype]),
            1,
            f" {dtype}",
            fontsize=7,
            rotation=90,
            va="top",
            transform=axes.get_xaxis_transform(),
        )
    if axes.get_ylim()[1] > 100:
        axes.set_yscale("log")
    axes.set_xlabel("log10 of the distance; dotted: the most that is a copy's")
    axes.set_ylabel("files")
    axes.set_title(f"{len(kin)} files, {len(found.lineages)} lineages", fontsize=9)
    axes.legend(fontsize=8, loc="upper right")  # not the best place, which takes time to find
