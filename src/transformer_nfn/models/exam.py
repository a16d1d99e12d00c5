"""A model that examines networks: learned questions with known answers.

It is ours, not the paper's. What a network answers is a property of its function, so no symmetry,
known or not, can change it. Learned probes with a free reader (`ProbeNet`) learn from a few hundred
networks to recognise them. Here questions are not trained on accuracies at all: they become ones on
whose answers good networks agree, which is a test set that nobody had to draw.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from transformer_nfn.models.parts import WeightModel, question_sizes
from transformer_nfn.models.sheet import answer_sheet
from transformer_nfn.space import NetBatch, ShapeError, apply_net

#: A step of `Exam.agree` puts so many of the questions to so many of the networks.
_ASKED, _JUDGES = 100, 12
#: The deviation of the first questions: small, so that gradients decide what becomes of them.
_START = 0.5
_RATE = 0.05

#: Gives the networks of some rows.
Nets = Callable[[Tensor], NetBatch]


class ExamConfig(BaseModel):
    """The shape of an `Exam`.

    Attributes:
        questions: s, how many sequences it asks.
        tokens: t, tokens in a sequence.
        inputs: p, numbers in a token: pixels of a patch, or D for word vectors.
        classes: o, the answers there are; question i has the answer i mod o.
        noises: Every question is asked once more for each of these, with noise of that many
            standard deviations of all questions.
        eps: Of every LayerNorm of the networks under study.
        seed: Of the initial questions and of the noise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    questions: int = Field(default=200, ge=1)
    tokens: int = Field(ge=1)
    inputs: int = Field(ge=1)
    classes: int = Field(ge=2)
    noises: tuple[float, ...] = (1.0, 2.0)
    eps: float = Field(default=1e-5, ge=0)
    seed: int = 0

    @staticmethod
    def of(net: NetBatch, *, tokens: int, **settings: Any) -> "ExamConfig":
        """A config for networks like these, which do not say how long their sequences are."""
        return ExamConfig(tokens=tokens, **{**question_sizes(net), **settings})


class Exam(WeightModel):
    """Learned questions, and how a network answers them.

    `agree` makes the questions, `sheet` says how a network did, in numbers that another model
    reads. By itself the exam predicts the share of right answers.

    Examples:
        >>> from transformer_nfn.models import Exam, ExamConfig
        >>> Exam(ExamConfig(questions=100, tokens=16, inputs=49, classes=10)).parameter_count
        78400
    """

    config: ExamConfig
    noise: Tensor
    seconds: Tensor  # CPU seconds that `agree` took

    def __init__(self, config: ExamConfig) -> None:
        super().__init__()
        self.config = config
        generator = torch.Generator().manual_seed(config.seed)
        shape = (config.questions, config.tokens, config.inputs)
        first = torch.randn(shape, generator=generator)
        noise = torch.randn((len(config.noises), *shape), generator=generator)
        self.questions = torch.nn.Parameter(_START * first)
        self.register_buffer("noise", noise)
        self.register_buffer("seconds", torch.zeros((), dtype=torch.float64))

    @property
    def right(self) -> Int[Tensor, " s"]:
        """The right answer to each question."""
        return torch.arange(self.config.questions, device=self.noise.device) % self.config.classes

    def answers(self, net: NetBatch, questions: Float[Tensor, "q t p"]) -> Float[Tensor, "n q o"]:
        """The logarithms of the probabilities that each network gives to each answer.

        Raises:
            ShapeError: If the networks do not take such inputs or have other classes.
        """
        said = apply_net(net, questions, self.config.eps)
        if said.shape[2] != self.config.classes:
            raise ShapeError(
                f"the exam has {self.config.classes} classes, these networks {said.shape[2]}"
            )
        return said.log_softmax(dim=-1)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; its sigmoid is the mean probability of right answers."""
        said = self.answers(net, self.questions)
        share = _of_right(said, self.right).exp().mean(dim=1)
        return torch.logit(share, eps=1e-4)

    def sheet(self, net: NetBatch) -> Float[Tensor, "n f"]:
        """How each network did, first at the questions themselves, then at each with noise."""
        deviation = self.questions.std(correction=0)
        asked = [self.questions]
        for level, noise in zip(self.config.noises, self.noise, strict=True):
            asked.append(self.questions + level * deviation * noise)
        sheets = [answer_sheet(self.answers(net, some), self.right) for some in asked]
        return torch.cat(sheets, dim=1)

    def agree(self, nets: Nets, judges: Int[Tensor, " m"], steps: int) -> None:
        """Change the questions, by gradient, until good networks agree on the right answers.

        Args:
            nets: Gives networks by their rows.
            judges: Rows of good networks.
            steps: How many steps; the rate falls to nothing in the second half of them.
        """
        generator = torch.Generator().manual_seed(self.config.seed)
        optimizer = torch.optim.Adam([self.questions], lr=_RATE)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _RATE * min(1.0, 2 * (1 - step / steps))
            some = torch.randint(len(judges), (_JUDGES,), generator=generator)
            which = torch.randperm(self.config.questions, generator=generator)[:_ASKED]
            which = which.to(self.noise.device)
            said = self.answers(nets(judges[some]), self.questions[which])
            loss = -_of_right(said, self.right[which]).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _of_right(answers: Float[Tensor, "n q o"], right: Int[Tensor, " q"]) -> Float[Tensor, "n q"]:
    return answers.gather(2, right.expand(len(answers), -1).unsqueeze(2)).squeeze(2)
