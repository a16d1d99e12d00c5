"""What the benchmark knows of a model: what it is called, what it is given, how one is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from transformer_nfn.bench.models.predictor import Predictor

#: What a model may be called.
MODEL_NAME = r"^[a-z0-9][a-z0-9-]{0,59}$"
#: Makes a predictor from its settings, a seed, the tokens of a network's input, and a device.
Maker = Callable[..., Predictor]
#: What a model is given of a network, and of the world beside it.
Tier = Literal["weights", "queries", "inputs", "labels", "hyperparameters"]
TIERS: Mapping[Tier, str] = MappingProxyType(
    {
        "weights": "weights only",
        "queries": "weights, and answers of the network to made-up inputs",
        "inputs": "unlabelled inputs of the task",
        "labels": "labelled inputs of the task",
        "hyperparameters": "no weights: how the network was trained",
    }
)
#: What of a network a model reads, and so which other networks it can read once it is fitted.
Reads = Literal["blocks", "any blocks", "tensors", "all weights", "answers", "hyperparameters"]


@dataclass(frozen=True)
class Kind:
    """A model of the benchmark: what it is called and how one is made.

    Attributes:
        title: In tables.
        what: In one sentence.
        origin: The paper's own model, one of its baselines, a rival from another paper, a control,
            ours, a variant of the paper's model, or a user's own, see `register_predictor`.
        tier: What it is given: models are compared within a tier.
        invariant: Whether the paper's group leaves its predictions as they are, by construction.
        settings: All that determines a fit, beside data and seed; part of a cell's identity.
        special: Settings that differ on some networks, by their task and kind of starts.
        make: From the settings, a seed, the tokens of a net's input, and a device.
        needs: Packages of the extra `bench` that a fit imports.
        reads: Blocks of the sizes it was fitted to or of any; statistics of tensors, or all
            weights in one row, for which no blocks need be known; or no weights at all, only
            answers to inputs or hyperparameters.
    """

    title: str
    what: str
    origin: Literal["published", "baseline", "rival", "control", "ours", "variant", "own"]
    tier: Tier
    invariant: bool
    settings: Mapping[str, Any]
    make: Maker
    needs: tuple[str, ...] = ()
    reads: Reads = "blocks"
    special: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def is_shown_inputs(self) -> bool:
        """Whether a network is run on inputs of its task, which have to be there."""
        return self.tier in ("inputs", "labels")

    def settings_on(self, task: str, track: str) -> dict[str, Any]:
        """Its settings on networks of a task, with independent or shared starts."""
        return {**self.settings, **self.special.get((task, track), {})}

    def predictor(
        self, *, seed: int, tokens: int, task: str, track: str, device: str = "cpu"
    ) -> Predictor:
        """One that is not fitted yet, for networks of a task, with independent or shared starts."""
        settings = self.settings_on(task, track)
        return self.make(seed=seed, tokens=tokens, device=device, **settings)
