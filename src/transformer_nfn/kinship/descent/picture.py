"""A picture of two networks: blocks of one against blocks of the other."""

import math
from pathlib import Path

import numpy as np

from transformer_nfn.escaping import for_picture
from transformer_nfn.kinship.descent.answer import Kin

#: A probability of 10^-60 and one of 10^-600 are shown alike.
_LEAST = -60


def plot_blocks(found: Kin, path: Path, first: str, second: str) -> None:
    """Draw how likely each pair of blocks is among strangers.

    Args:
        found: Whose blocks.
        path: A PNG or PDF file.
        first: What A is called.
        second: What B is called.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    networks = [net for net in found.networks if net.blocks]
    with rc_context({"text.usetex": False}):
        figure = Figure(figsize=(1.5 + 4.5 * len(networks), 4.6), layout="constrained")
        every = figure.subplots(1, len(networks), squeeze=False)[0]
        for net, axes in zip(networks, every, strict=True):
            tried = np.array([block.tried for block in net.blocks]) / math.log(10)
            image = axes.imshow(
                np.maximum(tried, _LEAST), cmap="viridis_r", vmin=_LEAST, vmax=0, aspect="auto"
            )
            axes.set_xlabel(f"{net.name}: blocks of {for_picture(second)}")
            axes.set_ylabel(f"blocks of {for_picture(first)}")
            for side, size in (("x", tried.shape[1]), ("y", tried.shape[0])):
                getattr(axes, f"set_{side}ticks")(range(0, size, max(1, size // 12)))
        figure.colorbar(
            image, ax=list(every), label="log10 p of some neurons that keep their places"
        )
        figure.suptitle(f"{found.relation.value}, p = 10^{found.log10_p:.0f}", fontsize=10)
        figure.savefig(path, dpi=150)
