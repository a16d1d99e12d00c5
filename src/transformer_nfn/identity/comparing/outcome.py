"""What a comparison of two checkpoints found."""

from dataclasses import dataclass, field

from torch import Tensor

from transformer_nfn.group import GroupElement
from transformer_nfn.identity.comparing.basis import Basis
from transformer_nfn.identity.comparing.residuals import Residual
from transformer_nfn.identity.elements.canonical import Gauge
from transformer_nfn.space import WeightBatch


@dataclass
class Match:
    """What was found.

    Attributes:
        bases: For each stream its basis where it is not the identity.
        known: How well those are known that were found from weights.
        blocks: The element of each block that was matched.
        gauges: The second checkpoint's gauges.
        hidden: The classifier's neurons, for zoo nets.
        unseen: Where LayerNorms became RMSNorms, the direction that was the ones.
        failures: Residuals beyond their limit, with the name of where they are.
        by_products: Heads whose products agree though no matrix carries one to the other.
        worst: The largest residual as a part of its limit.
        residual: The largest residual, in multiples of what rounding does.
        condition: The largest condition number of a matrix.
        distances: For each block the distances of all pairs of heads.
        words: Those with the smallest embeddings, or ones that changed by most of their size.
        encoder: The same of the encoders, where there are any.
        repaired: The second's block that did not fit, with what differs taken from the first.
    """

    bases: dict[int, Tensor] = field(default_factory=dict)
    known: dict[int, Basis] = field(default_factory=dict)
    blocks: list[GroupElement] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)
    hidden: tuple[Tensor, Tensor] | None = None
    unseen: Tensor | None = None
    failures: list[tuple[str, Residual]] = field(default_factory=list)
    by_products: list[str] = field(default_factory=list)
    worst: float = 0.0
    residual: float = 0.0
    condition: float = 1.0
    distances: list[Tensor] = field(default_factory=list)
    words: tuple[int, ...] = ()
    encoder: "Match | None" = None
    repaired: dict[int, WeightBatch] = field(default_factory=dict)

    def learn(self, stream: int, basis: Basis | None) -> None:
        """Take a basis that was found; None is the identity."""
        if basis is not None:
            self.bases[stream] = basis.matrix
            if basis.ways.numel():  # a permutation is right or wrong
                self.known[stream] = basis

    def include(self, encoder: "Match", stream: int) -> None:
        """Count all that was found of the encoders, whose stream the blocks read as well."""
        self.encoder = encoder
        self.failures += encoder.failures
        self.by_products += encoder.by_products
        self.worst = max(self.worst, encoder.worst)
        self.residual = max(self.residual, encoder.residual)
        self.condition = max(self.condition, encoder.condition)
        self.words = tuple(dict.fromkeys((*encoder.words, *self.words)))
        if 0 in encoder.bases:
            self.bases[stream] = encoder.bases[0]
        if 0 in encoder.known:
            self.known[stream] = encoder.known[0]

    def note(self, where: str, residual: Residual) -> None:
        """Count a residual."""
        self.worst = max(self.worst, residual.ratio)
        self.residual = max(self.residual, residual.value)
        if not residual.ratio <= 1:
            self.failures.append((where, residual))
