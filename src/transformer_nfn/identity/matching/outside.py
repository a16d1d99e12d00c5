"""What is found outside the blocks of two checkpoints: the basis of the stream, the classifier."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.rounding import spread
from transformer_nfn.identity.elements.canonical import seen
from transformer_nfn.identity.elements.element import Outside
from transformer_nfn.identity.matching.bases import Basis, find_basis
from transformer_nfn.identity.matching.neurons import match_neurons
from transformer_nfn.space import sine_positions

#: Rows of a slice: of a large vocabulary only some rows are in memory.
ROWS = 4096
#: Rows of an embedding that its basis is found from, as a multiple of their length.
_SAMPLE = 16


def fixes_ones(ours: Checkpoint, theirs: Checkpoint) -> bool:
    """Whether both have LayerNorm, so that the ones mean the same to both."""
    return ours.settings.norm == theirs.settings.norm == "layer"


def row_slices(checkpoint: Checkpoint, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """What a writer outside the blocks writes, float64, some rows at a time.

    With each slice comes, for each row, the mean square of what rounding did to it.
    """
    axes = checkpoint.writers[name].axes.split()
    if axes[-1] == "x" and len(axes) == 2:
        for rows in checkpoint.files.chunks(name, ROWS):
            yield rows.double(), _off(rows)
        return
    whole = checkpoint.files.read(name).movedim(axes.index("x"), -1).reshape(-1, checkpoint.D)
    rows = _with_positions(checkpoint, name, whole.double())
    yield rows, _off(whole).expand(len(rows))


def sampled_rows(checkpoint: Checkpoint, name: str) -> tuple[Tensor, Tensor]:
    """All rows of a small writer, and of a large one enough to find its basis from."""
    count = checkpoint.files.entry(name).shape[0]
    wanted = _SAMPLE * checkpoint.D
    if checkpoint.writers[name].axes != "t x" or count <= wanted:
        rows, offs = zip(*row_slices(checkpoint, name), strict=True)
        return torch.cat(rows), torch.cat(offs)
    places = torch.linspace(0, count - 1, wanted).long().tolist()
    stored = checkpoint.files.rows(name, places)
    return stored.double(), _off(stored)


def _off(rows: Tensor) -> Tensor:
    """The mean square of what rounding did to each row."""
    return spread(rows).square().sum(dim=1)


def _with_positions(checkpoint: Checkpoint, name: str, rows: Tensor) -> Tensor:
    """A zoo net's positions are fixed; they are written with the bias."""
    if checkpoint.family.norms is not None or not name.endswith(".bias"):
        return rows
    return rows + sine_positions(checkpoint.settings.size("tokens"), checkpoint.D).double()


def find_first_basis(ours: Checkpoint, theirs: Checkpoint, rounding: float) -> Basis | None:
    """The basis of the first stream, from what the embeddings write into it."""
    if not ours.writers or ours.gives_hidden_states or ours.unknown or theirs.unknown:
        return None
    (a, off_a), (b, off_b) = (
        tuple(map(torch.cat, zip(*(sampled_rows(c, name) for name in c.writers), strict=True)))
        for c in (ours, theirs)
    )
    return find_basis(
        seen(ours, a),
        seen(theirs, b),
        permutation=ours.family.post_norm,
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


#: Of a zoo net's classifier what each hidden neuron reads, its bias last, and what it writes.
Classifier = tuple[Tensor, Tensor]


def classifier(checkpoint: Checkpoint, basis: Tensor | None = None) -> Classifier:
    """The classifier's neurons, "a x 1" and "a o 1", in a basis of the last stream."""
    assert checkpoint.hidden_head is not None
    w1, b1, w2, _ = (checkpoint.files.read(name).double() for name in checkpoint.hidden_head)
    w1 = w1 - w1.mean(dim=0)
    if basis is not None:
        w1 = basis.T @ w1
    return torch.cat([w1, b1[None]]).T.unsqueeze(-1), w2.unsqueeze(-1)


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
    layer = theirs.settings.norm == "layer"
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
    return Outside(norm, ones, untied)
