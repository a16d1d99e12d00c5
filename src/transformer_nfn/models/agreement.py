"""Agreement probes: learned inputs on which good networks agree, and how another compares.

They are ours, not the paper's. What a network answers is a property of its function, so no
symmetry, known or not, can change it. Learned probes with a free reader (`ProbeNet`) learn from a
few hundred networks to recognise them. Here probes are not trained on accuracies at all: they
become inputs that good networks answer alike, and the consensus is what the best of them say. It is
a test set that nobody had to draw.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from transformer_nfn.models.parts import (
    WeightModel,
    check_classes,
    probe_sizes,
    seeded_generator,
)
from transformer_nfn.models.responses import response_features
from transformer_nfn.space import NetBatch, apply_net

#: A step of `AgreementProbes.agree` sends so many of the probes through so many of the networks.
_SENT, _REFERENCES = 100, 12
#: Networks whose answers are in memory together where the consensus is made.
_AT_ONCE = 16
#: The deviation of the first probes: small, so that gradients decide what becomes of them.
_START = 0.5
_RATE = 0.05

#: What the networks of some rows answer to sequences, with the ε of the config: logits, "n q o".
Ask = Callable[[Tensor, Tensor], Tensor]


class AgreementConfig(BaseModel):
    """The shape of `AgreementProbes`.

    Attributes:
        probes: s, how many sequences it learns.
        tokens: t, tokens in a sequence.
        inputs: p, numbers in a token: pixels of a patch, or D for word vectors.
        classes: o, the answers there are; probe i is to have the answer i mod o.
        noises: For each, a probe set with noise of so many standard deviations of all probes.
        eps: Of every LayerNorm of the networks under study.
        seed: Of the initial probes and of all that is made of them; None draws the first from
            torch's global generator, and the others as 0 does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    probes: int = Field(default=200, ge=1)
    tokens: int = Field(ge=1)
    inputs: int = Field(ge=1)
    classes: int = Field(ge=2)
    noises: tuple[float, ...] = (1.0,)
    eps: float = Field(default=1e-5, ge=0)
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, *, tokens: int, **settings: Any) -> "AgreementConfig":
        """A config for networks like these, which do not say how long their sequences are."""
        return AgreementConfig(tokens=tokens, **{**probe_sizes(net), **settings})

    @property
    def probe_sets(self) -> int:
        """How many probe sets there are: the probes, each noise, the blends, the collages."""
        return 3 + len(self.noises)


class AgreementProbes(WeightModel):
    """Learned probes, harder ones made of them, a consensus, and how a network compares with it.

    1. `agree` makes probes that good networks, the reference networks, answer as they should.
    2. These are easy. Harder probe sets are made of them: with noise, as the mean of two probes, as
       a collage of the tokens of two.
    3. `set_consensus`: what the best networks say in the mean is the consensus of every probe set.
    4. `responses` compares a tested network with the consensus, in numbers that another model
       reads.

    By itself the model predicts how much a network agrees with the consensus.

    Examples:
        >>> from transformer_nfn.models import AgreementConfig, AgreementProbes
        >>> config = AgreementConfig(probes=100, tokens=16, inputs=49, classes=10)
        >>> AgreementProbes(config).parameter_count
        78400
    """

    config: AgreementConfig
    noise: Tensor  # noises s t p
    partner: Tensor  # 2 s: of each probe in a blend, and in a collage
    own: Tensor  # s t: which tokens of a collage are the probe's own
    consensus: Tensor  # sets s o
    seconds: Tensor  # CPU seconds that it took to make it

    def __init__(self, config: AgreementConfig) -> None:
        super().__init__()
        self.config = config
        s, t, p, o = config.probes, config.tokens, config.inputs, config.classes
        generator = seeded_generator(config.seed)
        self.probes = nn.Parameter(_START * torch.randn(s, t, p, generator=generator))
        noise = torch.randn(len(config.noises), s, t, p, generator=generator)
        self.register_buffer("noise", noise)
        partner = torch.stack([torch.randperm(s, generator=generator) for _ in range(2)])
        self.register_buffer("partner", partner)
        self.register_buffer("own", torch.rand(s, t, generator=generator) < 0.5)
        right = torch.nn.functional.one_hot(torch.arange(s) % o, o)
        self.register_buffer("consensus", right.to(noise.dtype).repeat(config.probe_sets, 1, 1))
        self.register_buffer("seconds", torch.zeros((), dtype=torch.float64))

    def probe_sets(self) -> Float[Tensor, "sets s t p"]:
        """All that is sent through a network: the probes, with noise, as blends, as collages."""
        probes: Tensor = self.probes
        deviation = probes.std(correction=0)
        noisy = [
            probes + level * deviation * noise
            for level, noise in zip(self.config.noises, self.noise, strict=True)
        ]
        blend = (probes + probes[self.partner[0]]) / 2
        collage = torch.where(self.own.unsqueeze(2), probes, probes[self.partner[1]])
        return torch.stack([probes, *noisy, blend, collage])

    def sequences(self) -> Float[Tensor, "q t p"]:
        """The same, one probe set after another."""
        return self.probe_sets().flatten(0, 1)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; its sigmoid is the mean agreement with the consensus.

        Raises:
            ShapeError: If the networks do not take such inputs or have other classes.
        """
        return self.read(apply_net(net, self.sequences(), self.config.eps))

    def read(self, answers: Float[Tensor, "n q o"]) -> Float[Tensor, " n"]:
        """The same of logits for `sequences`."""
        share = (self._logarithms(answers).exp() * self.consensus.flatten(0, 1)).sum(2).mean(1)
        return torch.logit(share, eps=1e-4)

    def responses(self, net: NetBatch) -> Float[Tensor, "n f"]:
        """How each network compares, one probe set after another: see `response_features`.

        Raises:
            ShapeError: If the networks do not take such inputs or have other classes.
        """
        return self.compare(apply_net(net, self.sequences(), self.config.eps))

    def compare(self, answers: Float[Tensor, "n q o"]) -> Float[Tensor, "n f"]:
        """The same of logits for `sequences`."""
        sets = torch.split(self._logarithms(answers), self.config.probes, dim=1)
        pairs = zip(sets, self.consensus, strict=True)
        return torch.cat([response_features(said, right) for said, right in pairs], dim=1)

    def _logarithms(self, answers: Float[Tensor, "n q o"]) -> Float[Tensor, "n q o"]:
        """Of the probabilities that each network gives to each answer."""
        check_classes(answers, self.config.classes)
        return answers.log_softmax(dim=-1)

    def agree(self, ask: Ask, references: Int[Tensor, " m"], steps: int) -> None:
        """Change the probes, by gradient, until good networks give the answers they should.

        Args:
            ask: What networks answer, by their rows.
            references: Rows of good networks.
            steps: How many steps; the rate falls to nothing in the second half of them.
        """
        generator = torch.Generator().manual_seed(self.config.seed or 0)
        optimizer = torch.optim.Adam([self.probes], lr=_RATE)
        count = self.config.probes
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _RATE * min(1.0, 2 * (1 - step / steps))
            some = torch.randint(len(references), (_REFERENCES,), generator=generator)
            which = torch.randperm(count, generator=generator)[:_SENT]
            which = which.to(self.consensus.device)
            said = self._logarithms(ask(references[some], self.probes[which]))
            answer = (which % self.config.classes).expand(len(said), -1).unsqueeze(2)
            loss = -said.gather(2, answer).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def set_consensus(self, ask: Ask, best: Int[Tensor, " m"]) -> None:
        """Make what some networks answer in the mean the consensus of every probe set.

        Args:
            ask: What networks answer, by their rows.
            best: Rows of the best networks.
        """
        sent = self.sequences()
        total = torch.zeros_like(self.consensus).flatten(0, 1)
        for rows in torch.split(best, _AT_ONCE):
            total += self._logarithms(ask(rows, sent)).exp().sum(0)
        self.consensus.copy_((total / len(best)).view_as(self.consensus))
