"""Small made-up examples: random networks whose accuracy depends on the scale of their weights."""

import numpy as np
import pyarrow as pa
import torch

from transformer_nfn.bench.examples import Examples
from transformer_nfn.zoo.format.schema import COLUMNS, zoo_table
from transformer_nfn.zoo.nets import NetShape

SHAPE = NetShape(tokens=4, inputs=4, D=8, heads=2, D_A=12, blocks=2, hidden=6, classes=3)
RESIDUAL = NetShape(
    block="residual", tokens=4, inputs=4, D=8, heads=2, D_A=12, blocks=2, hidden=6, classes=3
)
WORD_VECTORS = NetShape(tokens=4, inputs=0, D=8, heads=2, D_A=12, blocks=2, hidden=6, classes=3)
#: With widths that fill registers of any size, which the compiled passes take.
COMPILED = NetShape(tokens=4, inputs=4, D=32, heads=2, D_A=16, blocks=2, hidden=16, classes=3)
OPTIMIZERS = ("sgd", "sgdm", "adam", "rmsprop")


def small_examples(
    runs: int = 40,
    *,
    seed: int = 0,
    shape: NetShape = SHAPE,
    dtype: torch.dtype = torch.float32,
    epochs: tuple[int, ...] = (1, 2, 3),
) -> Examples:
    """Rows of every epoch of every run, sorted as a zoo's are; folds 0 to 9 in turn.

    Accuracy grows with the scale of a run's weights, with its epoch, and a little by chance. The
    scale is the run's `init_std`, so that hyperparameters alone predict it too.
    """
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    rows, scales = [], []
    for run in range(runs):
        scale = float(random.uniform(0.1, 1.0))
        for epoch in epochs:
            accuracy = 0.1 + 0.7 * scale + 0.02 * epoch + float(random.normal(0.0, 0.01))
            scales.append(scale * (1 + 0.05 * epoch))
            rows.append(
                {
                    "run": run,
                    "run_id": f"run{run:04d}",
                    "checkpoint": str(epoch),
                    "epoch": epoch,
                    "status": "ok",
                    "task": "made-up",
                    "block": shape.block,
                    "optimizer": OPTIMIZERS[run % 4],
                    "lr": 1e-3 * (1 + run % 3),
                    "l2": 10.0 ** -(2 + 2 * (run % 3)),
                    "dropout": 0.05 * (run % 4),
                    "init_std": scale,
                    "train_fraction": 1.0 if run % 2 else 0.5,
                    "seed": run,
                    "twins": f"twins{run:04d}",
                    "fold": run % 10,
                    "train_loss": 1.0,
                    "train_accuracy": accuracy,
                    "validation_accuracy": accuracy,
                    "test_accuracy": accuracy,
                    "test_loss": 1.0,
                    "calibration_error": 0.1,
                    "noisy_accuracy": accuracy,
                }
            )
    drawn = torch.randn(len(rows), shape.size, generator=generator, dtype=torch.float64)
    weights = drawn * torch.tensor(scales, dtype=torch.float64).unsqueeze(1)
    table: pa.Table = zoo_table(shape, rows, list(weights.float().numpy()))
    return Examples(table.select(list(COLUMNS)), weights.to(dtype), shape)


def three_parts(examples: Examples) -> tuple[Examples, Examples, Examples]:
    """Folds 3 to 9 to train on, 2 to choose on, 0 and 1 to test on."""
    fold = examples.column("fold")
    return examples.take(fold >= 3), examples.take(fold == 2), examples.take(fold <= 1)
