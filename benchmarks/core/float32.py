"""Rounding in float32: how far the model's output moves under the group, balanced or not.

For group elements of condition number κ the relative change of Transformer-NFN's output must stay
below 10·ε·(10 + κ), where ε = 2^-24 is float32's rounding unit. The largest change over seeds is
shown.

    python benchmarks/core/float32.py
    python benchmarks/core/float32.py --quick --json
"""

import argparse
import json

import torch

from transformer_nfn.group import conditioned, random_element, relative_error
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch, balance

SPEC = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
UNIT = torch.finfo(torch.float32).eps / 2


def changes(condition: float, channels: tuple[int, ...], seed: int) -> tuple[float, float]:
    """Relative change of the output of 16 networks: as they come, and balanced first."""
    generator = torch.Generator().manual_seed(seed)
    model = TransformerNFN(NFNConfig.of(SPEC, blocks=2, channels=channels, seed=seed))
    batch = WeightBatch.random(SPEC, networks=16, blocks=2, generator=generator)
    g = random_element(
        SPEC, networks=16, blocks=2, generator=generator, matrices=conditioned(condition)
    )
    moved = g(batch)
    with torch.no_grad():
        plain = relative_error(model(NetBatch(moved)), model(NetBatch(batch)))
        batch, moved = balance(batch).weights, balance(moved).weights
        balanced = relative_error(model(NetBatch(moved)), model(NetBatch(batch)))
    return plain, balanced


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 seeds instead of 20")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)

    figures = []
    print("channels        κ     as it is     balanced        bound")
    for channels in ((10,), (10, 10)):
        for condition in (1.0, 1e1, 1e2, 1e3, 1e4):
            seeds = range(3 if options.quick else 20)
            pairs = [changes(condition, channels, seed) for seed in seeds]
            plain, balanced = (max(values) for values in zip(*pairs, strict=True))
            bound = 10 * UNIT * (10 + condition)
            figures.append(
                {
                    "channels": channels,
                    "condition": condition,
                    "plain": plain,
                    "balanced": balanced,
                    "target": bound,
                }
            )
            name = ", ".join(map(str, channels))
            print(
                f"[{name}]".ljust(10)
                + f"{condition:7.0f} {plain:12.2e} {balanced:12.2e} {bound:12.2e}"
            )
    if options.json:
        ok = all(max(f["plain"], f["balanced"]) <= f["target"] for f in figures)
        print(json.dumps({"figures": figures, "ok": ok}))


if __name__ == "__main__":
    main()
