"""A model that examines networks: learned questions with known answers, and a grade.

It is ours, not the paper's. What a network answers is a property of its function, so no symmetry,
known or not, can change its grade. Learned probes with a free reader (`ProbeNet`) learn from a few
hundred networks to recognise them; here the reader is almost nothing: the share of right answers.
All that is learned is what to ask.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from transformer_nfn.models.parts import WeightModel, question_sizes
from transformer_nfn.space import NetBatch, ShapeError, apply_net

#: Networks above this quantile of accuracy say what the answers are, so many at a time, to so many
#: questions.
_GOOD = 0.6
_JUDGES = 24
_ASKED = 100

#: Gives the networks of some rows.
Nets = Callable[[Tensor], NetBatch]


class ExamConfig(BaseModel):
    """The shape of an `Exam`.

    Attributes:
        questions: s, how many sequences it asks.
        at_once: How many of them a training step asks, in turn.
        tokens: t, tokens in a sequence.
        inputs: p, numbers in a token: pixels of a patch, or D for word vectors.
        classes: o, the answers there are; question i has the answer i mod o.
        agreement_steps: Steps of the first part of a fit, see `Exam.prepare`.
        eps: Of every LayerNorm of the networks under study.
        seed: Of the initial questions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    questions: int = Field(default=200, ge=1)
    at_once: int = Field(default=48, ge=1)
    tokens: int = Field(ge=1)
    inputs: int = Field(ge=1)
    classes: int = Field(ge=2)
    agreement_steps: int = Field(default=300, ge=0)
    eps: float = Field(default=1e-5, ge=0)
    seed: int = 0

    @staticmethod
    def of(net: NetBatch, *, tokens: int, **settings: Any) -> "ExamConfig":
        """A config for networks like these, which do not say how long their sequences are."""
        return ExamConfig(tokens=tokens, **question_sizes(net), **settings)


class Exam(WeightModel):
    """The share of learned questions that a network answers as the good ones do.

    A fit has two parts. First the questions become ones on whose answers good networks agree, from
    noise, by gradient. Then they, and a line that turns the share into an accuracy, are trained as
    any other model is.

    Examples:
        >>> from transformer_nfn.models import Exam, ExamConfig
        >>> Exam(ExamConfig(questions=100, tokens=16, inputs=49, classes=10)).parameter_count
        78402
    """

    config: ExamConfig
    asked: Tensor  # how many times a training step has asked

    def __init__(self, config: ExamConfig) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(config.seed)
        shape = (config.questions, config.tokens, config.inputs)
        self.questions = nn.Parameter(0.5 * torch.randn(shape, generator=generator))
        self.scale = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))
        self.register_buffer("asked", torch.zeros((), dtype=torch.long))

    @property
    def answers(self) -> Int[Tensor, " s"]:
        """The right answer to each question."""
        return torch.arange(self.config.questions, device=self.asked.device) % self.config.classes

    def grade(self, net: NetBatch, which: Int[Tensor, " q"] | None = None) -> Float[Tensor, "n q"]:
        """The probability that each network gives to the right answer of each question.

        Raises:
            ShapeError: If the networks do not take such inputs or have other classes.
        """
        questions: Tensor = self.questions
        answers = self.answers
        if which is not None:
            questions, answers = questions[which], answers[which]
        said = apply_net(net, questions, self.config.eps)  # n q o
        if said.shape[2] != self.config.classes:
            raise ShapeError(
                f"the exam has {self.config.classes} classes, these networks {said.shape[2]}"
            )
        index = answers.expand(len(said), -1).unsqueeze(2)
        return said.softmax(dim=-1).gather(2, index).squeeze(2)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; the prediction is its sigmoid."""
        share = self.grade(net, self._next() if self.training else None).mean(dim=1)
        return self.scale * torch.logit(share, eps=1e-4) + self.shift

    def _next(self) -> Int[Tensor, " q"]:
        """The questions whose turn it is: all of them come, each time beside others."""
        count = self.config.questions
        generator = torch.Generator().manual_seed(self.config.seed + 1_000_003 * int(self.asked))
        self.asked += 1
        order = torch.randperm(count, generator=generator)
        return order[: self.config.at_once].to(self.asked.device)

    def prepare(self, nets: Nets, accuracy: Float[Tensor, " n"], rate: float | int) -> None:
        """Make the questions ones that good networks agree on, before they are trained.

        Args:
            nets: Gives networks to learn from, by their rows.
            accuracy: Of each of them.
            rate: Of the optimizer.
        """
        good = torch.nonzero(accuracy >= accuracy.quantile(_GOOD)).flatten()
        generator = torch.Generator().manual_seed(self.config.seed)
        optimizer = torch.optim.Adam([self.questions], lr=rate)
        self.train()
        for _ in range(self.config.agreement_steps):
            some = torch.randint(len(good), (_JUDGES,), generator=generator)
            which = torch.randperm(self.config.questions, generator=generator)[:_ASKED]
            loss = (
                -self.grade(nets(good[some]), which.to(accuracy.device))
                .clamp_min(1e-6)
                .log()
                .mean()
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
