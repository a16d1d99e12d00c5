"""One run of a zoo: its hyperparameters, its seed, and the id that follows from its content."""

import hashlib
import json
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from transformer_nfn.zoo.optimizers import OptimizerName

FOLDS = 10
#: L2 coefficients that make no visible difference: runs that differ only in these are near-twins.
WEAK_L2 = 1e-6


def content_hash(content: Any) -> str:
    """SHA-256 of JSON in one fixed spelling."""
    spelled = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(spelled.encode()).hexdigest()


def derived_seed(*content: Any) -> int:
    """A seed for one purpose, such as ``derived_seed(run.seed, "dropout")``; 63 bits."""
    return int(content_hash(content)[:16], 16) >> 1


class Hyperparameters(BaseModel):
    """What differs between the runs of a zoo (the paper's table of configurations)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    optimizer: OptimizerName
    lr: float = Field(gt=0)
    l2: float = Field(ge=0)
    dropout: float = Field(ge=0, le=0.99)
    init_std: float = Field(gt=0)
    train_fraction: float = Field(gt=0, le=1)

    @property
    def twins(self) -> str:
        """Equal for near-twins, which a benchmark must keep on one side of a split."""
        l2 = WEAK_L2 if self.l2 <= WEAK_L2 else self.l2
        return content_hash(self.model_copy(update={"l2": l2}).model_dump())[:16]

    @property
    def fold(self) -> int:
        """0 to 9, the same for near-twins: splits are made of whole folds."""
        return int(self.twins, 16) % FOLDS


class Run(NamedTuple):
    """One training run; `id` is a hash of all that determines its result."""

    id: str
    seed: int
    hyperparameters: Hyperparameters
