"""Speed of the layers: the plan against the reference, and against its own bare matmuls.

Forward and backward of equivariant layer + ReLU + invariant layer, two blocks of the paper's zoo
(D=32, 2 heads, D_A=64), one thread. Both ways have the same number of parameters; the reference
has one leaf tensor for each row, as the paper's own code has, the plan its matrices. The two are
timed in turns, and a figure is the median over the turns, so that what else the machine does
touches both alike. "bare" is the time of the plan's matmuls alone: operands of the same shapes and
strides in place, results written into existing memory, no buffer used twice. "calls" is the plan at
size 2 in all axes: what it costs to say what is to be done. "forward" is the ratio of both without
gradients. --compiled times a whole model, as it is and by torch.compile, which takes minutes.

    python benchmarks/core/layers.py
    python benchmarks/core/layers.py --quick --json
    python benchmarks/core/layers.py --quick --profile
    python benchmarks/core/layers.py --compiled --json
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_nfn.layers import (
    EquivariantLayer,
    InvariantLayer,
    pointwise_relu,
    run_reference,
)
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch

SPEC = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
BLOCKS = 2
TINY = BlockSpec(PAPER, D=2, heads=2, D_k=2, D_v=2, D_A=2)
#: (networks, channels in, channels out) and how many times as fast the plan should be.
CASES = {(16, 1, 10): 2.0, (256, 1, 10): 2.0, (16, 10, 10): 2.0}

Step = Callable[[], None]


def steps(spec: BlockSpec, networks: int, inputs: int, outputs: int) -> dict[str, Step]:
    """One training step's worth of work, by the plan and by the reference, and forward alone."""
    generator = torch.Generator().manual_seed(0)
    batch = WeightBatch.random(spec, networks=networks, blocks=BLOCKS, generator=generator)
    own = other = batch
    if inputs > 1:
        # Each way gets its input as its own earlier layer leaves it in memory.
        earlier = EquivariantLayer(spec, blocks=BLOCKS, inputs=1, outputs=inputs, relu=True)
        with torch.no_grad():
            own, other = earlier(batch), earlier.reference(batch)
        own, other = (
            features.map(lambda tensor: Earlier.apply(tensor.requires_grad_()))
            for features in (own, other)
        )
    first = EquivariantLayer(spec, blocks=BLOCKS, inputs=inputs, outputs=outputs, relu=True)
    last = InvariantLayer(spec, blocks=BLOCKS, inputs=outputs, outputs=outputs)
    matrices = [*first.parameters(), *last.parameters()]

    def plan() -> None:
        forget(matrices)
        last(first(own)).sum().backward()

    leaves = [
        {name: view.detach().contiguous().requires_grad_() for name, view in views.items()}
        for views in (first.row_parameters(), last.row_parameters())
    ]
    flat_leaves = [leaf for group in leaves for leaf in group.values()]

    def reference() -> None:
        forget(flat_leaves)
        middle = pointwise_relu(WeightBatch(spec, run_reference(first.rows, other, leaves[0])))
        run_reference(last.rows, middle, leaves[1])["I"].sum().backward()

    @torch.no_grad()
    def plan_forward() -> None:
        last(first(own))

    @torch.no_grad()
    def reference_forward() -> None:
        middle = pointwise_relu(WeightBatch(spec, run_reference(first.rows, other, leaves[0])))
        run_reference(last.rows, middle, leaves[1])

    return {
        "plan": plan,
        "reference": reference,
        "plan forward": plan_forward,
        "reference forward": reference_forward,
    }


def compiled() -> list[dict[str, Any]]:
    """A training step of a whole model, as it is and by torch.compile, and how far they differ."""
    found = []
    for networks in (16, 256):
        nets = NetBatch(WeightBatch.random(SPEC, networks=networks, blocks=BLOCKS))
        model = TransformerNFN(NFNConfig.of(nets, seed=0))
        faster = torch.compile(model, fullgraph=True)

        def step(run: Callable[[NetBatch], Tensor], nets: NetBatch = nets) -> None:
            run(nets).square().sum().backward()

        begin = time.perf_counter()
        step(faster)
        seconds = time.perf_counter() - begin
        with torch.no_grad():
            apart = ((faster(nets) - model(nets)).norm() / model(nets).norm()).item()
        actions = {"plan": lambda: step(model), "compiled": lambda: step(faster)}  # noqa: B023
        ms = measure(actions, 10)
        figures = {name: round(value, 1) for name, value in ms.items()}
        print(f"{networks} networks: eager {ms['plan']:.1f} ms, compiled {ms['compiled']:.1f} ms")
        print(f"    differ by {apart:.1e}, relative; compiled in {seconds:.0f} s")
        found.append({"networks": networks, "milliseconds": figures, "apart": apart})
    return found


def forget(parameters: list[Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


class Earlier(torch.autograd.Function):
    """Stands for the layer that made the input: wants its gradient, and keeps nothing of it."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> None:
        return None


class Matmuls(TorchDispatchMode):
    """Records shapes and strides of the operands of all batched matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.operands: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func.overloadpacket is torch.ops.aten.bmm:
            self.operands.append((alike(args[0]), alike(args[1])))
        elif func.overloadpacket in (torch.ops.aten.baddbmm, torch.ops.aten.baddbmm_):
            self.operands.append((alike(args[1]), alike(args[2])))
        return func(*args, **(kwargs or {}))


def alike(tensor: Tensor) -> Tensor:
    """Another tensor of the same shape and strides: expanded and transposed as it is."""
    return torch.empty_strided(tensor.shape, tensor.stride()).fill_(0.5)


def bare_matmuls(step: Step) -> Step:
    """The matrix products of a step and nothing else, each with operands and result of its own."""
    with Matmuls() as record:
        step()
    work = [(a, b, torch.empty(*a.shape[:-1], b.shape[-1])) for a, b in record.operands]

    def run() -> None:
        for a, b, out in work:
            torch.bmm(a, b, out=out)

    return run


def measure(actions: dict[str, Step], seconds: float) -> dict[str, float]:
    """Median milliseconds of each action, timed in turns."""
    for action in actions.values():
        action()
        action()
    times: dict[str, list[float]] = {name: [] for name in actions}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds or len(times["plan"]) < 5:
        for name, action in actions.items():
            begin = time.perf_counter()
            action()
            times[name].append(1e3 * (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in times.items()}


def profile(step: Step, rows: int = 12) -> None:
    """Where the time of a step goes, operation by operation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as record:
        for _ in range(10):
            step()
    parts = sorted(record.key_averages(), key=lambda part: -part.self_cpu_time_total)
    total = sum(part.self_cpu_time_total for part in parts)
    for part in parts[:rows]:
        share = part.self_cpu_time_total / total
        print(f"    {share:6.1%}  {part.self_cpu_time_total / 1e4:8.2f} ms  {part.key}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="1 s a case instead of 30 s")
    parser.add_argument("--compiled", action="store_true", help="torch.compile against eager")
    parser.add_argument("--profile", action="store_true", help="the plan, operation by operation")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)

    if options.compiled:
        models = compiled()
        if options.json:
            ok = all(figure["apart"] < 1e-4 for figure in models)
            print(json.dumps({"figures": models, "targets": {"apart": 1e-4}, "ok": ok}))
        return
    figures = []
    print(
        "networks  channels   reference       plan       bare     calls   ratio  target  bare/plan"
        "  forward"
    )
    for (networks, inputs, outputs), target in CASES.items():
        actions = steps(SPEC, networks, inputs, outputs)
        plan = actions["plan"]
        calls = steps(TINY, 2, min(inputs, 2), 2)["plan"]
        actions |= {"bare": bare_matmuls(plan), "calls": calls}
        ms = measure(actions, 1 if options.quick else 30)
        ratio, fraction = ms["reference"] / ms["plan"], ms["bare"] / ms["plan"]
        forward = ms["reference forward"] / ms["plan forward"]
        figures.append(
            {
                "networks": networks,
                "channels": [inputs, outputs],
                "milliseconds": {name: round(value, 2) for name, value in ms.items()},
                "ratio": round(ratio, 2),
                "target": target,
                "bare_fraction": round(fraction, 3),
                "forward_ratio": round(forward, 2),
            }
        )
        print(
            f"{networks:8}  {inputs:3} → {outputs:2}  {ms['reference']:8.1f} ms"
            f" {ms['plan']:7.1f} ms {ms['bare']:7.1f} ms {ms['calls']:6.1f} ms"
            f" {ratio:7.2f} {target:7.1f} {fraction:9.0%} {forward:8.2f}"
        )
        if options.profile:
            profile(plan)
    if options.json:
        ok = all(figure["ratio"] >= figure["target"] for figure in figures)
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        print(json.dumps({"figures": figures, "versions": versions, "ok": ok}))


if __name__ == "__main__":
    main()
