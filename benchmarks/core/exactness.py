"""How exact is it: the largest relative errors over random sizes, for each of the four blocks.

float64, distinct sizes from 2 to 7, 1 to 3 blocks and channels, group elements of condition number
10, another for each network and block. The tests assert the same against fixed bounds; this shows
the figures.

    python benchmarks/core/exactness.py
    python benchmarks/core/exactness.py --quick --json
"""

import argparse
import json
import random

import torch

from transformer_nfn.group import random_element, relative_error
from transformer_nfn.layers import EquivariantLayer, InvariantLayer, RowLayer, pointwise_relu
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import (
    GATED,
    GROUPED,
    PAPER,
    RESIDUAL,
    Block,
    BlockSpec,
    NetBatch,
    WeightBatch,
    apply_blocks,
)

TARGETS = {
    "equivariant layer": 1e-10,
    "ReLU": 1e-10,
    "invariant layer": 1e-10,
    "model": 1e-10,
    "group laws": 1e-12,
    "function of the blocks": 1e-10,
    "plan - reference": 1e-12,
    "their gradients": 1e-12,
}


def random_spec(block: Block, choice: random.Random) -> BlockSpec:
    symbols = list(dict.fromkeys(axis.symbol for axis in block.axes.values()))
    sizes = dict(zip(symbols, choice.sample(range(2, 8), len(symbols)), strict=True))
    largest = max(("D", "D_k", "D_v"), key=lambda symbol: sizes[symbol])
    sizes["D"], sizes[largest] = sizes[largest], sizes["D"]
    return BlockSpec(block, **sizes)


def gradients(layer: RowLayer, value: WeightBatch) -> list[torch.Tensor]:
    return list(torch.autograd.grad(value.flat().square().mean(), list(layer.parameters())))


def errors(block: Block, seed: int) -> dict[str, float]:
    """All errors for one draw."""
    choice, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    spec, blocks, channels = random_spec(block, choice), choice.randint(1, 3), choice.randint(1, 3)
    drawn = {"networks": 2, "blocks": blocks, "generator": generator}
    batch = WeightBatch.random(spec, channels=channels, dtype=torch.float64, **drawn)
    nets = batch.select(channels=slice(0, 1))
    g, h = random_element(spec, **drawn), random_element(spec, **drawn)
    tokens = torch.randn(2, 5, spec.size("x"), dtype=torch.float64, generator=generator)

    shape = {"blocks": blocks, "inputs": channels, "outputs": 3}
    layer = EquivariantLayer(spec, **shape).double()
    last = InvariantLayer(spec, width=2, **shape).double()
    model = TransformerNFN(NFNConfig.of(spec, blocks=blocks, channels=(3, 2), seed=seed)).double()
    for parameter in (*layer.parameters(), *last.parameters()):  # constants too
        parameter.data.normal_(generator=generator)

    plan, reference = layer(batch), layer.reference(batch)
    pairs = zip(gradients(layer, plan), gradients(layer, reference), strict=True)
    by_gradient = max(relative_error(a, b) for a, b in pairs)
    with torch.no_grad():
        moved = g(batch)
        relu = relative_error(pointwise_relu(moved), g(pointwise_relu(batch)))
        laws = max(
            relative_error((g @ h)(batch), g(h(batch))), relative_error(g.inverse()(moved), batch)
        )
        function = relative_error(
            apply_blocks(g(nets), tokens, eps=0.0), apply_blocks(nets, tokens, eps=0.0)
        )
        values = (
            relative_error(layer(moved), g(layer(batch))),
            relu,
            relative_error(last(moved), last(batch)),
            relative_error(model(NetBatch(g(nets))), model(NetBatch(nets))),
            laws,
            function,
            relative_error(plan, reference),
            by_gradient,
        )
    return dict(zip(TARGETS, values, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="10 draws a block instead of 200")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)

    names = ["paper", "residual", "gated", "grouped"]
    worst: dict[str, dict[str, float]] = {}
    for name, block in zip(names, (PAPER, RESIDUAL, GATED, GROUPED), strict=True):
        draws = [errors(block, seed) for seed in range(10 if options.quick else 200)]
        worst[name] = {what: max(draw[what] for draw in draws) for what in TARGETS}
    print(" " * 24 + "".join(f"{name:>10}" for name in names) + "    target")
    for what, target in TARGETS.items():
        row = "".join(f"{worst[name][what]:10.1e}" for name in names)
        print(f"{what:24}{row}{target:10.0e}")
    if options.json:
        ok = all(worst[name][what] <= TARGETS[what] for name in names for what in TARGETS)
        print(json.dumps({"figures": worst, "targets": TARGETS, "ok": ok}))


if __name__ == "__main__":
    main()
