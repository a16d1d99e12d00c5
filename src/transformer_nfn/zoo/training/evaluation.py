"""What a group of nets does on the same examples: accuracy, and how sure and how steady it is."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.tasks import Part
from transformer_nfn.zoo.training.engines import make_engine

BATCH = 64  # examples at once
#: Bins of equal width in which confidence is compared with accuracy.
BINS = 15
#: Examples that are shown again with noise, and its spread against that of the inputs.
NOISY_EXAMPLES, NOISE = 2000, 0.5
_NOISE_SEED = 20261118


class Tested(NamedTuple):
    """What a net does on the test examples; the names are columns of a zoo."""

    test_accuracy: float | None = None
    test_loss: float | None = None
    calibration_error: float | None = None
    noisy_accuracy: float | None = None


#: Of a net that diverged.
NOT_TESTED = Tested()


class _Examples(NamedTuple):
    """A part where the nets are, in their dtype."""

    inputs: Tensor
    labels: Tensor
    lengths: Tensor | None


class Evaluation:
    """Answers of the nets whose weights stand in one buffer, read anew at each call."""

    def __init__(self, shape: NetShape, weights: Float[Tensor, "n weights"]) -> None:
        self._engine = make_engine(shape, weights, BATCH)
        self._like = weights
        # A part is kept beside what is made of it, so that its id is not used for another one.
        self._moved_parts: dict[int, tuple[Part, _Examples]] = {}
        self._noisy_parts: dict[int, tuple[Part, Part]] = {}

    def accuracy(self, part: Part) -> Float64[Tensor, " n"]:
        """The share of the part's examples that each net gets right."""
        right = self._like.new_zeros(len(self._like), dtype=torch.int64)
        for logits, labels in self._answers(self._moved(part)):
            right += (logits.argmax(dim=-1) == labels).sum(dim=1)
        return right.to(torch.float64) / len(part)

    def test(self, part: Part) -> list[Tested]:
        """All figures of each net on the test examples."""
        loss = self._like.new_zeros(len(self._like), dtype=torch.float64)
        # Of each bin: how many answers, how many are right, and the sum of their confidence.
        bins = self._like.new_zeros(3, len(self._like), BINS, dtype=torch.float64)
        for logits, labels in self._answers(self._moved(part)):
            log_p = logits.double().log_softmax(dim=-1)
            confidence, answer = log_p.max(dim=-1)
            confidence, right = confidence.exp(), (answer == labels).double()
            loss -= log_p.gather(2, labels.expand_as(answer).unsqueeze(-1)).sum(dim=(1, 2))
            place = (confidence * BINS).long().clamp(0, BINS - 1)
            for number, values in enumerate((torch.ones_like(right), right, confidence)):
                bins[number].scatter_add_(1, place, values)
        error = (bins[1] - bins[2]).abs().sum(dim=1) / len(part)
        noisy = self.accuracy(self._noisy(part))
        figures = torch.stack([bins[1].sum(dim=1) / len(part), loss / len(part), error, noisy])
        return [Tested(*values) for values in figures.T.tolist()]

    def _answers(
        self, part: _Examples
    ) -> Iterator[tuple[Float[Tensor, "n b classes"], Int64[Tensor, " b"]]]:
        """Logits of all nets and the labels, some examples at a time; used before the next."""
        count = len(part.labels)
        for first in range(0, count, BATCH):
            # The last batch is filled up with the first examples, which are not counted again.
            index = torch.arange(first, first + BATCH, device=part.inputs.device) % count
            lengths = None if part.lengths is None else part.lengths[index]
            real = min(BATCH, count - first)
            logits = self._engine.logits(part.inputs[index], lengths)
            yield logits[:, :real], part.labels[index[:real]]

    def _moved(self, part: Part) -> _Examples:
        if id(part) not in self._moved_parts:
            device, lengths = self._like.device, part.lengths
            moved = _Examples(
                part.inputs.to(self._like),
                part.labels.to(device),
                None if lengths is None else lengths.to(device),
            )
            self._moved_parts[id(part)] = (part, moved)
        return self._moved_parts[id(part)][1]

    def _noisy(self, part: Part) -> Part:
        if id(part) not in self._noisy_parts:
            few = part.first(min(NOISY_EXAMPLES, len(part)))
            drawn = torch.randn(
                few.inputs.shape, generator=torch.Generator().manual_seed(_NOISE_SEED)
            )
            noisy = Part(few.inputs + NOISE * few.inputs.std() * drawn, few.labels, few.lengths)
            self._noisy_parts[id(part)] = (part, noisy)
        return self._noisy_parts[id(part)][1]
