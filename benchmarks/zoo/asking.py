"""Speed of asking nets, and of the gradient of what they are asked: compiled against torch.

Agreement probes, learned probes and scores on inputs of the task spend most of their time so. Both
ways answer the same sequences in turns, on one thread; a ratio is the median over the turns.

    python benchmarks/zoo/asking.py
    python benchmarks/zoo/asking.py --quick --json
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from transformer_nfn.space import apply_net
from transformer_nfn.zoo import NetShape, ask
from transformer_nfn.zoo.training.compiled import find_library

SHAPES = {
    "mnist-small": NetShape(tokens=16, inputs=49),
    "agnews-small": NetShape(tokens=32, inputs=0, classes=4),
    "mnist-small-residual": NetShape(block="residual", tokens=16, inputs=49),
}
#: Networks and sequences: as agreement probes ask for responses, and as they are learned.
ASKED = {"answers": (4, 800), "gradient": (12, 100)}
#: How many times as fast compiled code should be.
TARGETS = {"answers": 2.0, "gradient": 1.3}

Ask = Callable[[NetShape, Tensor, Tensor], Tensor]


def seconds(asked: Ask, shape: NetShape, rows: Tensor, inputs: Tensor, gradient: bool) -> float:
    start = time.perf_counter()
    with torch.set_grad_enabled(gradient):
        answers = asked(shape, rows, inputs)
        if gradient:
            torch.autograd.grad(answers.logsumexp(-1).mean(), inputs)
    return time.perf_counter() - start


def in_torch(shape: NetShape, rows: Tensor, inputs: Tensor) -> Tensor:
    return apply_net(shape.net_batch(rows), inputs)


def measure(shape: NetShape, what: str, turns: int) -> dict[str, float]:
    """Milliseconds of both, and how many times as fast compiled code is."""
    nets, sequences = ASKED[what]
    rows = shape.to_stored(shape.start(range(nets), [0.2] * nets))
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(sequences, shape.tokens, shape.inputs or shape.D, generator=generator)
    read = (shape, rows, inputs.requires_grad_(), what == "gradient")
    times = [(seconds(in_torch, *read), seconds(ask, *read)) for _ in range(turns + 1)][1:]
    ratio = statistics.median(one / other for one, other in times)
    plain, compiled = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    return {"torch_ms": plain, "compiled_ms": compiled, "ratio": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="7 turns instead of 40")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures: list[dict[str, object]] = []
    ok = True
    print("zoo                    what       torch ms   compiled ms   ratio   target")
    for name, shape in SHAPES.items():
        if find_library(shape, "cpu", torch.float32) is None:
            print(f"{name}: no C++ compiler on this machine")
            continue
        for what, target in TARGETS.items():
            seen = measure(shape, what, 7 if options.quick else 40)
            ok = ok and seen["ratio"] >= target
            figures.append({"zoo": name, "what": what, "target": target, **seen})
            print(
                f"{name:22s} {what:10s} {seen['torch_ms']:8.1f} {seen['compiled_ms']:13.1f} "
                f"{seen['ratio']:7.2f} {target:8.1f}"
            )
    if options.json:
        print(json.dumps({"figures": figures, "ok": ok}))


if __name__ == "__main__":
    main()
