"""What is found outside the blocks of two checkpoints: the basis of the stream, the classifier."""

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.basis import Basis
from transformer_nfn.identity.comparing.outside import ROWS, classifier, sampled_rows
from transformer_nfn.identity.elements.canonical import invertible, seen
from transformer_nfn.identity.elements.element import Outside
from transformer_nfn.identity.matching.bases import find_basis
from transformer_nfn.identity.matching.neurons import match_neurons
from transformer_nfn.space import StreamKind


def fixes_ones(ours: Checkpoint, theirs: Checkpoint) -> bool:
    """Whether both have LayerNorm, so that the ones mean the same to both."""
    return ours.settings.norm == theirs.settings.norm == "layer"


def find_first_basis(ours: Checkpoint, theirs: Checkpoint, rounding: float) -> Basis | None:
    """The basis of the first stream, from what the embeddings write into it."""
    if not ours.writers or ours.stream_kind is StreamKind.FIXED:
        return None
    (a, off_a), (b, off_b) = (
        tuple(map(torch.cat, zip(*(sampled_rows(c, name) for name in c.writers), strict=True)))
        for c in (ours, theirs)
    )
    return find_basis(
        seen(ours, a),
        seen(theirs, b),
        kind=ours.stream_kind,
        rounding=rounding,
        fix_ones=fixes_ones(ours, theirs),
        sizes=(off_a + off_b).sqrt(),
    )


def unseen_direction(ours: Checkpoint, theirs: Checkpoint, basis: Tensor | None) -> Tensor | None:
    """Where LayerNorms became RMSNorms: what the ones are in the second basis."""
    if (ours.settings.norm, theirs.settings.norm) != ("layer", "rms"):
        return None
    ones = torch.ones(ours.D, dtype=torch.float64)
    return ones if basis is None else ones @ basis


def find_hidden(
    ours: Checkpoint, theirs: Checkpoint, basis: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The order of the classifier's hidden neurons, and their positive scales."""
    nets = classifier(ours, basis), classifier(theirs)
    features = []
    for reads, writes in nets:
        size = reads.norm(dim=1).clamp_min(1e-300)
        features.append(torch.cat([reads.squeeze(-1) / size, writes.squeeze(-1) * size], dim=1))
    order = match_neurons(*features)
    a, b = nets[0][0][order], nets[1][0]
    scale = (a * b).sum(dim=(1, 2)) / a.square().sum(dim=(1, 2)).clamp_min(1e-300)
    usable = torch.isfinite(scale) & (scale > 0)
    return order, torch.where(usable, scale, torch.ones_like(scale))


def outside_gauge(ours: Checkpoint, theirs: Checkpoint, unseen: Tensor | None) -> Outside:
    """The second checkpoint's own values of what may be anything outside the blocks."""
    ones: dict[str, Tensor] = {}
    layer = theirs.centred_reads
    for name, other in zip(ours.writers, theirs.writers, strict=True):
        axis = theirs.writers[other].axes.split().index("x")
        shape = [n for i, n in enumerate(theirs.files.entry(other).shape) if i != axis]
        if layer:
            ones[name] = theirs.files.read(other).double().mean(dim=axis)
        else:
            ones[name] = torch.zeros(shape, dtype=torch.float64)
    scale, _ = norm = theirs.norm(theirs.last_norm)
    direction = torch.ones_like(scale) if unseen is None else unseen
    for name, head in zip(ours.heads, theirs.heads.values(), strict=True):
        parts = theirs.files.chunks(head.weight, ROWS)
        ones[name] = torch.cat([rows.double() @ (scale * direction) for rows in parts]) / ours.D
    if theirs.hidden_head:
        first = theirs.hidden_head[0]
        ones[first] = theirs.files.read(first).double().mean(dim=0)
    tied = {head.name for head in ours.heads.values() if head.tied}
    still = {head.name for head in theirs.heads.values() if head.tied}
    untied = bool(tied - still) or (bool(ours.tied_decoder) and not theirs.tied_decoder)
    return Outside((invertible(norm[0]), norm[1]), ones, untied)
