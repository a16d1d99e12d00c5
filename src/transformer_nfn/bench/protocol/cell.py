"""What a cell of the benchmark is, and the name that says whether it is finished."""

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.bench.protocol.loading import Checkpoints, data_digest, task_and_track

#: Raised when the same cell would give other figures: finished cells are then computed again.
VERSION = 1
#: Fields that came later: left out of the name where they are as before, so that cells finished
#: then are found.
_LATER = ("train_runs", "test_zoo", "seed", "question", "held_out")
#: Fits of one split with other seeds are so far apart: there are fewer splits than this.
_SEEDS_APART = 1000


class Cell(BaseModel):
    """What is fitted to what.

    Attributes:
        zoo: The zoo's folder or URL.
        model: Its name in `MODELS`.
        split: 0 to 4.
        checkpoints: Which rows of a run count.
        runs: Only the first N runs; all if None.
        augment: Add to every set a copy moved by the group, matrices uniform in ±augment.
        threshold: Leave rows below this accuracy out, in training too.
        train_runs: Train and validate on those of the zoo's first N runs that are on these
            sides of the split, as if no other had been built; test on the whole zoo's test runs,
            so that sizes compare on the same rows. All if None.
        test_zoo: Test on all rows of this other zoo instead of the split's test runs.
        seed: Fits that differ in nothing else say how much of τ is the luck of a fit.
        question: What is predicted, a name in `QUESTIONS`.
        held_out: Runs of this kind, a name in `HELD_OUT`, are left out of training and validation,
            and only they are tested.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    zoo: str
    model: str
    split: int = Field(ge=0)
    checkpoints: Checkpoints = "epochs"
    runs: int | None = Field(default=None, ge=1)
    augment: float | None = Field(default=None, gt=0)
    threshold: float | None = None
    train_runs: int | None = Field(default=None, ge=1)
    test_zoo: str | None = None
    seed: int = Field(default=0, ge=0)
    question: str = "accuracy"
    held_out: str | None = None

    @property
    def fit_seed(self) -> int:
        """The seed of the model: another for each split and each seed of the cell."""
        return self.split + _SEEDS_APART * self.seed

    @property
    def name(self) -> str:
        """The name of its shard: a hash of all that its figures depend on."""
        content = {
            **self.model_dump(exclude={"zoo", "runs", "checkpoints", *_LATER}),
            "version": VERSION,
            "data": data_digest(self.zoo, self.checkpoints, self.runs),
            "settings": model_named(self.model).settings_on(*task_and_track(self.zoo)),
        }
        if self.train_runs is not None:
            content["train_runs"] = self.train_runs
        if self.test_zoo is not None:
            content["test_data"] = data_digest(self.test_zoo, self.checkpoints, None)
        if self.seed:
            content["seed"] = self.seed
        if self.question != "accuracy":
            content["question"] = self.question
        if self.held_out is not None:
            content["held_out"] = self.held_out
        spelled = json.dumps(content, sort_keys=True)
        return f"{self.model}-{self.split}-{hashlib.sha256(spelled.encode()).hexdigest()[:20]}"

    def __str__(self) -> str:
        parts = [f"{Path(self.zoo).name}: {self.model}, split {self.split}"]
        if self.augment is not None:
            parts.append(f"±{self.augment:g}")
        if self.threshold is not None:
            parts.append(f"from {self.threshold:.3f}")
        if self.train_runs is not None:
            parts.append(f"trained on the first {self.train_runs} runs")
        if self.test_zoo is not None:
            parts.append(f"tested on {Path(self.test_zoo).name}")
        if self.question != "accuracy":
            parts.append(self.question)
        if self.held_out is not None:
            parts.append(f"without {self.held_out}")
        if self.seed:
            parts.append(f"seed {self.seed}")
        return ", ".join(parts)
