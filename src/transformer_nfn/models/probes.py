"""A baseline that asks the network: learned inputs, and a reader of its answers."""

from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from transformer_nfn.layers import seeded_linear
from transformer_nfn.models.generatedprobes import GeneratedProbes
from transformer_nfn.models.parts import (
    WeightModel,
    check_classes,
    probe_sizes,
    relu_layers,
    seeded_generator,
)
from transformer_nfn.space import NetBatch, apply_net

_Widths = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=16)]


class ProbeNetConfig(BaseModel):
    """The shape of a `ProbeNet`.

    Attributes:
        probes: s, how many sequences it sends through each network.
        tokens: t, tokens in a sequence.
        inputs: p, numbers in a token: pixels of a patch, or D for word vectors.
        classes: o, logits a network gives.
        hidden: Width of the MLP that reads them.
        generator: Widths of `GeneratedProbes`, the code's first; None learns free sequences.
        seed: Of the initial parameters; None draws them from torch's global generator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    probes: int = Field(default=48, ge=1)
    tokens: int = Field(ge=1)
    inputs: int = Field(ge=1)
    classes: int = Field(ge=1)
    hidden: int = Field(default=64, ge=1)
    generator: _Widths | None = None
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, *, tokens: int, **settings: Any) -> "ProbeNetConfig":
        """A config for networks like these, which do not say how long their sequences are."""
        return ProbeNetConfig(tokens=tokens, **{**probe_sizes(net), **settings})


class ProbeNet(WeightModel):
    """Learned sequences are sent through each network, and an MLP reads its answers.

    It is not in the paper. The sequences are free, or made by `GeneratedProbes`. It sees the
    function only, so no symmetry of it, in the group or not, can change what it says.

    Examples:
        >>> from transformer_nfn.models import ProbeNet, ProbeNetConfig
        >>> ProbeNet(ProbeNetConfig(tokens=49, inputs=16, classes=10)).parameter_count
        72641
    """

    config: ProbeNetConfig

    def __init__(self, config: ProbeNetConfig) -> None:
        super().__init__()
        self.config = config
        generator = seeded_generator(config.seed)
        shape = (config.probes, config.tokens, config.inputs)
        if config.generator is None:
            self.probes = nn.Parameter(torch.randn(shape, generator=generator))
        else:
            self.generated = GeneratedProbes(shape, config.generator, generator)
        answers, hidden = config.probes * config.classes, config.hidden
        self.reader = nn.Sequential(
            relu_layers([answers, hidden, hidden], generator), seeded_linear(hidden, 1, generator)
        )

    def sequences(self) -> Float[Tensor, "s t p"]:
        """The sequences that it sends through each network."""
        if self.config.generator is None:
            return self.probes
        made: Tensor = self.generated()
        return made

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; the prediction is its sigmoid.

        Raises:
            ShapeError: If the networks do not take such inputs or have other classes.
        """
        return self.read(apply_net(net, self.sequences()))

    def read(self, answers: Float[Tensor, "n s o"]) -> Float[Tensor, " n"]:
        """The same of logits for `sequences`."""
        check_classes(answers, self.config.classes)
        # Probabilities: they stay between 0 and 1 however large the logits of a network are.
        out: Tensor = self.reader(answers.softmax(dim=-1).flatten(1))
        return out.squeeze(1)
