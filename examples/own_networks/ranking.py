"""From a folder of one's own networks to a ranking of held-out ones.

python examples/own_networks/ranking.py --out FOLDER --json   # some minutes; goes on where it ended
python examples/own_networks/ranking.py --quick --json
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import DataLoader, random_split

sys.path.insert(0, str(Path(__file__).parent))
from fitting import fit, tau
from training import trained

from transformer_nfn.data import StateDictReader, WeightDataset
from transformer_nfn.group import random_element
from transformer_nfn.models import (
    FlatMLP,
    FlatMLPConfig,
    HeadNet,
    HeadNetConfig,
    NFNConfig,
    StatNN,
    StatNNConfig,
    TransformerNFN,
    WeightModel,
    ranking_loss,
)
from transformer_nfn.space import NetBatch

READ = StateDictReader(heads=2, activation="relu", post_norm=False, prefix="encoder.")


def moved(nets: NetBatch) -> NetBatch:
    """Other weights, the same functions."""
    spec, blocks = nets.blocks.spec, nets.blocks.blocks
    seed = torch.Generator().manual_seed(7)
    return NetBatch(
        random_element(spec, networks=len(nets), blocks=blocks, generator=seed)(nets.blocks)
    )


def models(nets: NetBatch) -> dict[str, WeightModel]:
    """Two that no group element can deceive, and two that it can."""
    torch.manual_seed(0)
    return {
        "HeadNet": HeadNet(HeadNetConfig.of(nets)),
        "Transformer-NFN": TransformerNFN(NFNConfig.of(nets, channels=(4,))),
        "StatNN": StatNN(StatNNConfig.of(nets)),
        "flat MLP": FlatMLP(FlatMLPConfig.of(nets)),
    }


def rank(folder: Path, count: int, steps: int, epochs: int) -> dict[str, dict[str, float]]:
    """Kendall's τ of each model on held-out networks, and on the same ones moved."""
    targets = trained(folder, count, steps)
    data = WeightDataset.from_folder(folder, targets, READ)
    nets, accuracy = next(iter(DataLoader(data, batch_size=len(data))))  # few: all at once
    split = torch.Generator().manual_seed(0)
    training = random_split(range(count), [0.5, 0.25, 0.25], split)[0]
    scales = nets.blocks[list(training)].rms()  # of these alone: the others are not known yet
    data = WeightDataset(NetBatch(nets.blocks.scaled(scales)), accuracy)
    training, validation, held_out = random_split(data, [0.5, 0.25, 0.25], split.manual_seed(0))
    others, answers = next(iter(DataLoader(held_out, batch_size=len(held_out))))
    disguised = WeightDataset(moved(others), answers)
    found = {}
    for name, model in models(data.networks).items():
        best = fit(model, training, validation, ranking_loss, epochs=epochs)
        found[name] = {"held out": tau(best, held_out), "moved": tau(best, disguised)}
        print(f"{name:16} τ {found[name]['held out']:6.3f}, moved {found[name]['moved']:6.3f}")
    return found


def main() -> None:
    """Train networks, learn to rank them, and judge on others."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="where networks are kept; nowhere if not given")
    parser.add_argument("--quick", action="store_true", help="fewer and less trained networks")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    count, steps, epochs = (32, 40, 10) if options.quick else (240, 150, 40)
    with TemporaryDirectory() as temporary:
        figures = rank(options.out or Path(temporary), count, steps, epochs)
    if options.json:
        # The quick form has 16 networks to learn from: it says whether all runs.
        targets = {"HeadNet": -1.0 if options.quick else 0.5, "moved, apart": 0.02}
        ours = [figures[name] for name in ("HeadNet", "Transformer-NFN")]
        ok = ours[0]["held out"] > targets["HeadNet"] and all(
            abs(one["held out"] - one["moved"]) < targets["moved, apart"] for one in ours
        )
        seen = {"networks": count, "tau": figures}
        print(json.dumps({"figures": seen, "targets": targets, "ok": ok}))


if __name__ == "__main__":
    main()
