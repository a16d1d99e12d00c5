"""Draw disguise.png: a real model, another file of the same function, and what both say.

    python tools/real_weights.py FOLDER
    python docs/pictures/disguise.py FOLDER/minilm

writes the picture next to this file.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.cli.main import app
from transformer_nfn.identity import draw_inputs, run

NAME, ROWS = "encoder.layer.0.attention.self.query.weight", 48


def main() -> None:
    """Make the disguise, run both, and draw."""
    model = sys.argv[1]
    with TemporaryDirectory() as home:
        other = str(Path(home) / "disguise")
        app(["reparam", model, "--out", other, "--seed", "1"], standalone_mode=False)
        with Checkpoint(model) as one, Checkpoint(other) as two:
            inputs = draw_inputs(one, two, seed=0)
            said = [torch.cat([t.flatten() for t in run(c, inputs).values()]) for c in (one, two)]
            seen = [c.files.read(NAME)[:ROWS, :ROWS].float() for c in (one, two)]
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.9), width_ratios=(1, 1, 1.05))
    titles = ("MiniLM: queries of the first block", "the same model in disguise")
    for place, numbers, title in zip(axes[:2], seen, titles, strict=True):
        bound = numbers.abs().quantile(0.99).item()
        place.imshow(numbers, cmap="RdBu_r", vmin=-bound, vmax=bound, interpolation="nearest")
        place.set_title(title, fontsize=12)
        place.set_xticks([])
        place.set_yticks([])
    some = torch.randperm(len(said[0]), generator=torch.Generator().manual_seed(0))[:600]
    low, high = said[0][some].min().item(), said[0][some].max().item()
    axes[2].plot([low, high], [low, high], color="#999999", linewidth=1, zorder=0)
    axes[2].scatter(said[0][some], said[1][some], s=9, color="#0072B2")
    axes[2].set_title("what both say of the same words", fontsize=12)
    axes[2].set_xlabel("MiniLM")
    axes[2].set_ylabel("in disguise")
    figure.tight_layout()
    figure.savefig(Path(__file__).with_name("disguise.png"), dpi=110)


if __name__ == "__main__":
    main()
