"""What predictors are fitted to and tested on: rows of a zoo with their weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from transformer_nfn.bench.questions import QUESTIONS
from transformer_nfn.group import GroupElement
from transformer_nfn.space import NetBatch, WeightBatch
from transformer_nfn.zoo.dataset import AnyShape


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows of one zoo, in memory: 74 kB each for the paper's nets.

    Attributes:
        table: The zoo's columns without the weights.
        weights: One flat row for each network, in the order of `NetShape.stored`.
        shape: The sizes of the networks.
        question: What is asked of them, a name in `QUESTIONS`.
    """

    table: pa.Table
    weights: Float[Tensor, "n weights"]
    shape: AnyShape
    question: str = "accuracy"

    def __len__(self) -> int:
        return len(self.table)

    @property
    def accuracy(self) -> Float64[np.ndarray, " n"]:
        """Test accuracy, 0 to 1: what good networks are known by."""
        return self.column("test_accuracy")

    @property
    def target(self) -> Float64[np.ndarray, " n"]:
        """What is to be predicted, 0 to 1: the answer to the question."""
        return QUESTIONS[self.question].answer(self.table)

    def column(self, name: str) -> np.ndarray:
        """A column of the table."""
        values: np.ndarray = self.table.column(name).to_numpy()
        return values

    def nets(self, rows: slice | Tensor = slice(None)) -> NetBatch:
        """The networks, all or some."""
        return self.shape.net_batch(self.weights[rows])

    def take(self, rows: np.ndarray) -> "Examples":
        """Some of the rows, by number or by mask, in this order."""
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(
            self, table=self.table.take(numbers), weights=self.weights[torch.from_numpy(numbers)]
        )

    def with_blocks(self, blocks: WeightBatch) -> "Examples":
        """The same networks with other weights in their blocks."""
        flat = blocks.flat().squeeze(1)  # n weights
        return replace(
            self, weights=torch.cat([flat.to(self.weights), self.weights[:, flat.shape[1] :]], 1)
        )

    def moved(self, element: GroupElement) -> "Examples":
        """The same functions in other coordinates, rounded to the dtype of the weights."""
        blocks = self.nets().blocks.to(dtype=torch.float64)
        return self.with_blocks(element(blocks))

    @staticmethod
    def cat(parts: Sequence["Examples"]) -> "Examples":
        """Several sets of one zoo, one after the other."""
        first = parts[0]
        return Examples(
            pa.concat_tables(part.table for part in parts),
            torch.cat([part.weights for part in parts]),
            first.shape,
            first.question,
        )


@dataclass(frozen=True)
class Divided:
    """One split of a zoo."""

    train: Examples
    validation: Examples
    test: Examples
