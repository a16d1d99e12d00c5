"""From modules of one's own to a ranking of held-out ones.

python examples/own_networks/ranking.py              # some minutes
python examples/own_networks/ranking.py --quick --json
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent))
from fitting import fit, tau
from training import trained

from transformer_nfn.data import WeightDataset
from transformer_nfn.group import random_element
from transformer_nfn.models import (
    FlatMLP,
    FlatMLPConfig,
    NFNConfig,
    TransformerNFN,
    ranking_loss,
)
from transformer_nfn.space import NetBatch


def moved(nets: NetBatch) -> NetBatch:
    """Other weights, the same functions."""
    seed = torch.Generator().manual_seed(7)
    spec, blocks = nets.blocks.spec, nets.blocks.blocks
    g = random_element(spec, networks=len(nets), blocks=blocks, generator=seed)
    return NetBatch(g(nets.blocks), nets.embedding, nets.classifier)


def main() -> None:
    """Train networks, learn to rank them, and judge on others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and less trained networks")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count, steps, epochs = (40, 40, 10) if options.quick else (240, 150, 60)

    made = list(track(trained(count, steps), "training networks", total=count))
    # From here: what anybody would write with networks of their own.
    modules, accuracy = zip(*made, strict=True)
    nets = NetBatch.from_modules(modules, embedding="embed.", classifier="head.")
    nets = NetBatch(nets.blocks.scaled(nets.blocks.rms()), nets.embedding, nets.classifier)
    data = WeightDataset(nets, accuracy)
    test = moved(nets[-count // 4 :])
    parts = [range(count // 2), range(count // 2, 3 * count // 4), range(3 * count // 4, count)]
    training, validation, held_out = (torch.utils.data.Subset(data, part) for part in parts)
    in_disguise = WeightDataset(test, accuracy[-count // 4 :])
    torch.manual_seed(0)
    models = {
        "Transformer-NFN": TransformerNFN(NFNConfig.of(nets, channels=(4,), hidden=16)),
        "flat MLP": FlatMLP(FlatMLPConfig.of(nets)),
    }
    figures = {}
    for name, model in models.items():
        best = fit(model, training, validation, ranking_loss, epochs=epochs)
        figures[name] = {"held out": tau(best, held_out), "moved": tau(best, in_disguise)}
        print(f"{name}: τ {figures[name]['held out']:.3f}, moved {figures[name]['moved']:.3f}")
    if options.json:
        ours = figures["Transformer-NFN"]
        target = 0.0 if options.quick else 0.4
        ok = ours["held out"] > target and abs(ours["held out"] - ours["moved"]) < 0.02
        known = {"networks": count, "accuracy": [min(accuracy), max(accuracy)]}
        print(json.dumps({"figures": figures | known, "targets": {"tau": target}, "ok": ok}))


if __name__ == "__main__":
    main()
