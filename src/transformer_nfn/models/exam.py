"""A model that examines networks: learned questions with known answers.

It is ours, not the paper's. What a network answers is a property of its function, so no symmetry,
known or not, can change it. Learned probes with a free reader (`ProbeNet`) learn from a few hundred
networks to recognise them. Here questions are not trained on accuracies at all: they become ones
that good networks answer alike, and what the best say is the key. It is a test set that nobody had
to draw.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from transformer_nfn.models.parts import WeightModel, question_sizes, seeded_generator
from transformer_nfn.models.sheet import answer_sheet
from transformer_nfn.space import NetBatch, ShapeError, apply_net

#: A step of `Exam.agree` puts so many of the questions to so many of the networks.
_ASKED, _JUDGES = 100, 12
#: Networks whose answers are in memory together where the key is made.
_AT_ONCE = 16
#: The deviation of the first questions: small, so that gradients decide what becomes of them.
_START = 0.5
_RATE = 0.05

#: Gives the networks of some rows.
Nets = Callable[[Tensor], NetBatch]


class ExamConfig(BaseModel):
    """The shape of an `Exam`.

    Attributes:
        questions: s, how many sequences it learns.
        tokens: t, tokens in a sequence.
        inputs: p, numbers in a token: pixels of a patch, or D for word vectors.
        classes: o, the answers there are; question i is to have the answer i mod o.
        noises: Questions with noise of so many standard deviations of all questions are asked too.
        eps: Of every LayerNorm of the networks under study.
        seed: Of the initial questions and of all that is made of them; None draws the first from
            torch's global generator, and the others as 0 does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    questions: int = Field(default=200, ge=1)
    tokens: int = Field(ge=1)
    inputs: int = Field(ge=1)
    classes: int = Field(ge=2)
    noises: tuple[float, ...] = (1.0,)
    eps: float = Field(default=1e-5, ge=0)
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, *, tokens: int, **settings: Any) -> "ExamConfig":
        """A config for networks like these, which do not say how long their sequences are."""
        return ExamConfig(tokens=tokens, **{**question_sizes(net), **settings})

    @property
    def papers(self) -> int:
        """How many papers there are: the questions, each noise, the blends, the collages."""
        return 3 + len(self.noises)


class Exam(WeightModel):
    """Learned questions, harder ones made of them, a key, and how a network answers.

    1. `agree` makes questions that good networks answer as they should.
    2. These are easy. Harder papers are made of them: with noise, as the mean of two questions, as
       a collage of the tokens of two.
    3. `set_key`: what the best networks say in the mean is the key of every paper.
    4. `sheet` compares a network with the key, in numbers that another model reads.

    By itself the exam predicts how much a network agrees with the key.

    Examples:
        >>> from transformer_nfn.models import Exam, ExamConfig
        >>> Exam(ExamConfig(questions=100, tokens=16, inputs=49, classes=10)).parameter_count
        78400
    """

    config: ExamConfig
    noise: Tensor  # noises s t p
    partner: Tensor  # 2 s: of each question in a blend, and in a collage
    own: Tensor  # s t: which tokens of a collage are the question's own
    key: Tensor  # papers s o
    seconds: Tensor  # CPU seconds that it took to make it

    def __init__(self, config: ExamConfig) -> None:
        super().__init__()
        self.config = config
        s, t, p, o = config.questions, config.tokens, config.inputs, config.classes
        generator = seeded_generator(config.seed)
        self.questions = nn.Parameter(_START * torch.randn(s, t, p, generator=generator))
        noise = torch.randn(len(config.noises), s, t, p, generator=generator)
        self.register_buffer("noise", noise)
        partner = torch.stack([torch.randperm(s, generator=generator) for _ in range(2)])
        self.register_buffer("partner", partner)
        self.register_buffer("own", torch.rand(s, t, generator=generator) < 0.5)
        right = torch.nn.functional.one_hot(torch.arange(s) % o, o)
        self.register_buffer("key", right.to(noise.dtype).repeat(config.papers, 1, 1))
        self.register_buffer("seconds", torch.zeros((), dtype=torch.float64))

    def papers(self) -> Float[Tensor, "papers s t p"]:
        """All that is asked: the questions, with noise, as blends and as collages."""
        questions: Tensor = self.questions
        deviation = questions.std(correction=0)
        noisy = [
            questions + level * deviation * noise
            for level, noise in zip(self.config.noises, self.noise, strict=True)
        ]
        blend = (questions + questions[self.partner[0]]) / 2
        collage = torch.where(self.own.unsqueeze(2), questions, questions[self.partner[1]])
        return torch.stack([questions, *noisy, blend, collage])

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
        """A logit for each network; its sigmoid is the mean agreement with the key."""
        said = self.answers(net, self.papers().flatten(0, 1)).exp()
        share = (said * self.key.flatten(0, 1)).sum(2).mean(1)
        return torch.logit(share, eps=1e-4)

    def sheet(self, net: NetBatch) -> Float[Tensor, "n f"]:
        """How each network did, paper by paper: see `answer_sheet`."""
        sheets = [
            answer_sheet(self.answers(net, paper), key)
            for paper, key in zip(self.papers(), self.key, strict=True)
        ]
        return torch.cat(sheets, dim=1)

    def agree(self, nets: Nets, judges: Int[Tensor, " m"], steps: int) -> None:
        """Change the questions, by gradient, until good networks give the answers they should.

        Args:
            nets: Gives networks by their rows.
            judges: Rows of good networks.
            steps: How many steps; the rate falls to nothing in the second half of them.
        """
        generator = torch.Generator().manual_seed(self.config.seed or 0)
        optimizer = torch.optim.Adam([self.questions], lr=_RATE)
        count = self.config.questions
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _RATE * min(1.0, 2 * (1 - step / steps))
            some = torch.randint(len(judges), (_JUDGES,), generator=generator)
            which = torch.randperm(count, generator=generator)[:_ASKED]
            which = which.to(self.key.device)
            said = self.answers(nets(judges[some]), self.questions[which])
            answer = (which % self.config.classes).expand(len(said), -1).unsqueeze(2)
            loss = -said.gather(2, answer).mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    @torch.no_grad()
    def set_key(self, nets: Nets, best: Int[Tensor, " m"]) -> None:
        """Make what some networks answer in the mean the key of every paper.

        Args:
            nets: Gives networks by their rows.
            best: Rows of the best networks.
        """
        asked = self.papers().flatten(0, 1)
        total = torch.zeros_like(self.key).flatten(0, 1)
        for rows in torch.split(best, _AT_ONCE):
            total += self.answers(nets(rows), asked).exp().sum(0)
        self.key.copy_((total / len(best)).view_as(self.key))
