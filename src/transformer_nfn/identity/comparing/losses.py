"""What a loader may lose of one of two files, whatever it is given: bounds from the weights alone.

A run shows what is lost on the inputs that are run. But one rare word or one far position may be
all that makes a number beyond the dtype, or that needs the digits which a large constant takes. A
norm bounds what it gives, so what follows can be bounded for all inputs. Only what one file has and
the other has not counts: bounds are never reached.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, sqrt

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.dtypes import loader_dtypes
from transformer_nfn.identity.comparing.outside import ROWS, row_slices
from transformer_nfn.identity.comparing.residuals import Residual
from transformer_nfn.identity.elements.acting import reading
from transformer_nfn.identity.elements.canonical import (
    Gauge,
    Norm,
    Rules,
    along,
    gauge_of,
    undressed,
)
from transformer_nfn.identity.elements.rules import GREW
from transformer_nfn.space import WeightBatch, split_bias

#: Times that what a file can make may be more than what the other can, where only one of them is
#: beyond the numbers of its dtype.
_FAR_BEYOND = 64.0
_LARGE = "what is made of it may be beyond all numbers of its dtype, in one file only"


@dataclass(frozen=True)
class _Sizes:
    """How large numbers may be in a file, by where they are made.

    Attributes:
        norms: The largest number that a norm can give.
        peaks: The largest number that can be made elsewhere.
        laid: How large what is added to all of a row is beside the row, though nothing depends on
            it; of each row, or of the worst where their order is free.
    """

    norms: Mapping[str, float]
    peaks: Mapping[str, float]
    laid: Mapping[str, Tensor]


def losses(ours: Checkpoint, theirs: Checkpoint) -> Iterator[tuple[str, Residual]]:
    """What a loader may lose of only one of two checkpoints, each with the place where it is."""
    for number in range(ours.blocks):
        norms, inside = _norm_names(ours, number), ours.block_name(number)
        blocks = [_Block.of(checkpoint, number, norms) for checkpoint in (ours, theirs)]
        found = [*_apart((ours, theirs), [block.sizes() for block in blocks]), *_lost_keys(*blocks)]
        for residual in found:
            yield residual.kind if residual.kind in norms else inside, residual
    for residual in _apart((ours, theirs), [_outside(ours), _outside(theirs, ours)]):
        yield residual.kind, residual


def _norm_names(checkpoint: Checkpoint, number: int) -> list[str]:
    """Of the norms that the halves of a block read, as `reading` has them."""
    names = [*checkpoint.reading_norms(number)]
    if (encoder := checkpoint.encoder) is not None:
        names.append(encoder.last_norm)
    return [f"{name}.weight" if name else "" for name in names]


def _apart(networks: tuple[Checkpoint, Checkpoint], both: list[_Sizes]) -> Iterator[Residual]:
    largest = [min(torch.finfo(kind).max for kind in loader_dtypes(each)) for each in networks]
    one, two = both
    for name, peak in one.norms.items():  # this bound is reached
        if (peak > largest[0]) != (two.norms[name] > largest[1]):
            yield Residual(name, None, inf, 1.0, why=_LARGE)
    for name, peak in one.peaks.items():
        peaks = peak, two.peaks[name]
        larger = peaks[1] > peaks[0]
        if peaks[larger] > largest[larger] and not max(peaks) <= _FAR_BEYOND * min(peaks):
            yield Residual(name, None, inf, 1.0, why=_LARGE)
    for name, laid in one.laid.items():
        other = two.laid.get(name, laid)
        beyond = _most(torch.maximum(laid, other) / torch.minimum(laid, other).clamp_min(1.0))
        if beyond > GREW:
            why = f"its mean is {beyond:.2g} times as large as what it is added to, in one file"
            yield Residual(name, None, beyond, GREW, why=f"{why} only")


@dataclass(frozen=True)
class _Block:
    """A block of a checkpoint, as it is stored and canonical."""

    spec: WeightBatch
    stored: Mapping[str, Tensor]
    canonical: Mapping[str, Tensor]
    norms: tuple[Norm, ...]
    names: list[str]
    gauge: Gauge

    @staticmethod
    def of(checkpoint: Checkpoint, number: int, names: list[str]) -> "_Block":
        """Read it; its norms get the names that they have in the first of two files."""
        batch, norms = checkpoint.block(number), reading(checkpoint, number)
        rules = Rules.of(checkpoint)
        stored, canonical = (
            {name: tensor[0, 0, 0] for name, tensor in each.tensors.items()}
            for each in (batch, undressed(batch, norms, rules))
        )
        return _Block(batch, stored, canonical, norms, names, gauge_of(batch, norms, rules))

    def sizes(self) -> _Sizes:
        """What can be made of any token that a norm gives."""
        block, D = self.spec.spec.block, self.spec.spec.sizes["D"]
        norms, peaks, laid = {}, {}, {}
        for name, norm in zip(self.names, self.norms, strict=True):
            if name:
                norms[name] = _largest_given(norm)
        for part in block.attentions:
            if part.normed:  # queries and keys go through norms of their own
                norms |= {name: sqrt(D) * _most(self.stored[name].abs()) for name in ("nQ", "nK")}
        made: dict[int, dict[str, float]] = {}
        for name, (axis, half) in block.readers.items():
            weight, bias = split_bias(self.stored, name, axis, D)
            peaks[name] = _largest_read(weight, bias, axis, self.norms[half])
            made.setdefault(half, {})[name] = peaks[name]
            if name in self.gauge.ones:
                rows, _ = split_bias(self.canonical, name, axis, D)
                laid[name] = _laid(self.gauge.ones[name], rows.norm(dim=axis) / sqrt(D)).amax()
        products = {}  # scores, and branches that are multiplied
        for half, sizes in made.items():
            first, *rest = sorted(sizes.values(), reverse=True)
            peaks[" ".join(sizes)] = products[half] = first * max([1.0, *rest[:1]])
        for name, half in block.writers.items():
            written = self.stored[name]
            if written.dim() > 1:
                most = _most(written.flatten(0, -2).abs().sum(dim=0))
                peaks[name] = products.get(half, 1.0) * most
            if name in self.gauge.ones:
                rows = self.canonical[name].norm(dim=-1)
                if written.dim() == 1:  # a constant is added to what others write
                    others = [self.canonical[n] for n, own in block.writers.items() if own == half]
                    rows = torch.stack([each.norm(dim=-1).max() for each in others]).max()
                laid[name] = _laid(self.gauge.ones[name], rows / sqrt(D)).amax()
        return _Sizes(norms, peaks, laid)


def _lost_keys(ours: _Block, theirs: _Block) -> Iterator[Residual]:
    """Key biases beside which the keys of only one of the blocks are lost when both are added.

    Softmax ignores them, so they are no difference of two functions; but whoever computes adds
    them, and rounds the sum. Scores below 1 count as 1.
    """
    D = ours.spec.spec.sizes["D"]
    for part in ours.spec.spec.block.attentions:
        if part.rotary:
            continue  # where positions turn them they count
        scores, laid = [1.0], []
        for block in (ours, theirs):
            taken = block.stored[part.key][..., D:, :]
            queries, keys = (
                float(block.canonical[name].norm(dim=-2).max()) for name in (part.query, part.key)
            )
            scores.append(queries * keys)
            laid.append(queries * _most(taken.abs()))
        beyond = max(laid) / max(*scores, min(laid))
        if beyond > GREW:
            why = f"its bias is {beyond:.2g} times as large as what it is added to, in one file"
            yield Residual(part.key, None, beyond, GREW, why=f"{why} only")


def _outside(checkpoint: Checkpoint, like: Checkpoint | None = None) -> _Sizes:
    """Of embeddings and heads, by the names that they have in the first of two files."""
    like = like or checkpoint
    norms: dict[str, float] = {}
    peaks: dict[str, float] = {}
    laid: dict[str, Tensor] = {}
    if checkpoint.centred_reads:
        for name, own in zip(like.writers, checkpoint.writers, strict=True):
            laid[name] = _means(rows for rows, _ in row_slices(checkpoint, own))
    if checkpoint.hidden_head:
        return _Sizes(norms, peaks, laid)
    norm = checkpoint.norm(checkpoint.last_norm)
    if like.last_norm:
        norms[f"{like.last_norm}.weight"] = _largest_given(norm)
    for other, head in zip(like.heads.values(), checkpoint.heads.values(), strict=True):
        peaks[other.weight] = max(
            _largest_read(rows.double(), torch.zeros(len(rows)).double(), 1, norm)
            for rows in checkpoint.files.chunks(head.weight, ROWS)
        )
        if checkpoint.centred_reads:
            chunks = checkpoint.files.chunks(head.weight, ROWS)
            laid[other.weight] = _means(rows.double() * norm[0] for rows in chunks)
    return _Sizes(norms, peaks, laid)


def _means(slices: Iterable[Tensor]) -> Tensor:
    """What each row has of the vector of ones beside what else it has."""
    means, sizes = [], []
    for rows in slices:
        mean = rows.mean(dim=1)
        means.append(mean)
        sizes.append((rows - mean.unsqueeze(1)).norm(dim=1) / sqrt(rows.shape[1]))
    return _laid(torch.cat(means), torch.cat(sizes))


def _largest_given(norm: Norm) -> float:
    """The largest number that a norm can give: before its scale no token is longer than √D."""
    scale, shift = (part.abs() for part in norm)
    return _most(sqrt(len(scale)) * scale + shift)


def _largest_read(weight: Tensor, bias: Tensor, axis: int, norm: Norm) -> float:
    """The largest number that a reader, or a part of its sum, can make of what a norm gives."""
    scale, shift = (along(part, axis, weight.dim()) for part in norm)
    most = sqrt(norm[0].numel()) * (weight * scale).square().sum(dim=axis).sqrt()
    return _most(most + (weight * shift).abs().sum(dim=axis) + bias.abs())


def _laid(ones: Tensor, sizes: Tensor) -> Tensor:
    """What all numbers of a row have in common beside the row; small rows count as one of many."""
    return ones.abs() / torch.maximum(sizes, sizes.median()).clamp_min(1e-300)


def _most(numbers: Tensor) -> float:
    return float(numbers.max()) if numbers.numel() else 0.0
