"""What stands outside the blocks of two checkpoints: embeddings, heads, classifiers, the rest.

Embeddings and heads are read in slices: of a large vocabulary only some rows are in memory.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Head
from transformer_nfn.identity.acting import folded_head
from transformer_nfn.identity.bases import find_basis
from transformer_nfn.identity.element import Outside, last_stream
from transformer_nfn.identity.found import Match, plain_tolerance
from transformer_nfn.identity.neurons import match_neurons
from transformer_nfn.identity.probes import seen
from transformer_nfn.identity.residuals import Residual
from transformer_nfn.space import sine_positions

#: Rows of a slice.
_ROWS = 4096
#: Rows of an embedding that its basis is found from, as a multiple of their length.
_SAMPLE = 4


def fixes_ones(ours: Checkpoint, theirs: Checkpoint) -> bool:
    """Whether both have LayerNorm, so that the ones mean the same to both."""
    return ours.settings.norm == theirs.settings.norm == "layer"


def row_slices(checkpoint: Checkpoint, name: str) -> Iterator[Tensor]:
    """What a writer outside the blocks writes, float64, some rows at a time."""
    axes = checkpoint.writers[name].axes.split()
    if axes[-1] == "x" and len(axes) == 2:
        for rows in checkpoint.files.chunks(name, _ROWS):
            yield rows.double()
        return
    whole = checkpoint.files.read(name).double().movedim(axes.index("x"), -1)
    yield _with_positions(checkpoint, name, whole.reshape(-1, checkpoint.D))


def sampled_rows(checkpoint: Checkpoint, name: str) -> Tensor:
    """All rows of a small writer, and of a large one enough to find its basis from."""
    count = checkpoint.files.entry(name).shape[0]
    wanted = _SAMPLE * checkpoint.D
    if checkpoint.writers[name].axes != "t x" or count <= wanted:
        return torch.cat(list(row_slices(checkpoint, name)))
    places = torch.linspace(0, count - 1, wanted).long().tolist()
    return checkpoint.files.rows(name, places).double()


def _with_positions(checkpoint: Checkpoint, name: str, rows: Tensor) -> Tensor:
    """A zoo net's positions are fixed; they are written with the bias."""
    if checkpoint.family.norms is not None or not name.endswith(".bias"):
        return rows
    return rows + sine_positions(checkpoint.settings.size("tokens"), checkpoint.D).double()


def match_writers(ours: Checkpoint, theirs: Checkpoint, rounding: float, found: Match) -> None:
    """Find the basis of the first stream, and compare all that is written into it."""
    names = list(zip(ours.writers, theirs.writers, strict=True))
    basis = None
    fixed = ours.gives_hidden_states or bool(ours.unknown) or bool(theirs.unknown)
    if names and not fixed:
        a, b = (
            torch.cat([seen(checkpoint, sampled_rows(checkpoint, name)) for name in writers])
            for checkpoint, writers in ((ours, ours.writers), (theirs, theirs.writers))
        )
        basis = find_basis(
            a,
            b,
            permutation=ours.family.post_norm,
            rounding=rounding,
            fix_ones=fixes_ones(ours, theirs),
        )
    if basis is not None:
        found.bases[0] = basis
    if ours.settings.norm == "layer" and theirs.settings.norm == "rms":
        ones = torch.ones(ours.D, dtype=torch.float64)
        found.unseen = ones if basis is None else ones @ basis
    for name, other in names:
        rows = _Rows()
        for a, b in zip(row_slices(ours, name), row_slices(theirs, other), strict=True):
            moved = seen(ours, a) if basis is None else seen(ours, a) @ basis
            rows.add(moved - seen(theirs, b), b.norm(dim=1))
        rows.note(found, name, rounding)
    if ours.family.post_norm:
        for name in ours.norm_names:
            _match_norm(ours, theirs, name, rounding, found)


class _Rows:
    """Distances of rows, and the sizes they count in, gathered slice by slice."""

    def __init__(self) -> None:
        self._distances: list[Tensor] = []
        self._sizes: list[Tensor] = []

    def add(self, difference: Tensor, stored: Tensor) -> None:
        self._distances.append(difference.norm(dim=1))
        self._sizes.append(stored)

    def note(self, found: Match, name: str, rounding: float) -> None:
        distance, stored = torch.cat(self._distances), torch.cat(self._sizes)
        floor = 0.02 * stored.square().mean().sqrt()
        relative = distance / torch.maximum(stored, floor).clamp_min(1e-300)
        worst = int(relative.nan_to_num(nan=torch.inf).argmax())
        tolerance = plain_tolerance(rounding)
        found.note(name, Residual(name, worst, relative[worst].item(), tolerance))


def _note(found: Match, name: str, difference: Tensor, stored: Tensor, rounding: float) -> None:
    rows = _Rows()
    rows.add(difference, stored)
    rows.note(found, name, rounding)


def _match_norm(
    ours: Checkpoint, theirs: Checkpoint, name: str, rounding: float, found: Match
) -> None:
    """After a sum a norm's scale and shift are its own: they move with the basis only."""
    basis = found.bases.get(0)
    other = theirs.prefix + name.removeprefix(ours.prefix)
    for part, ours_value, theirs_value in zip(
        ("weight", "bias"), ours.norm(name), theirs.norm(other), strict=True
    ):
        value = ours_value
        if basis is not None:
            value = basis.square().T @ value if part == "weight" else value @ basis
        difference = (value - theirs_value)[:, None]
        _note(found, f"{name}.{part}", difference, theirs_value.abs(), rounding)


def match_readers(ours: Checkpoint, theirs: Checkpoint, rounding: float, found: Match) -> None:
    """Compare all that reads the last stream, and all that touches none."""
    if ours.hidden_head:
        _match_classifier(ours, theirs, rounding, found)
    elif ours.last_norm and not ours.family.post_norm and ours.gives_hidden_states:
        _match_norm(ours, theirs, ours.last_norm, rounding, found)
    for head, their_head in zip(ours.heads.values(), theirs.heads.values(), strict=True):
        _match_head(ours, theirs, head, their_head, rounding, found)
    for name in ours.others:
        other_name = name
        if name not in theirs.files:
            other_name = theirs.prefix + name.removeprefix(ours.prefix)
        if other_name in theirs.files:  # else a decoder that shares its tensor with the embedding
            _match_plain(
                ours.files.read(name), theirs.files.read(other_name), name, rounding, found
            )
    for own, of in ours.tied_decoder.items():
        if own in theirs.files:
            _match_plain(ours.files.read(of), theirs.files.read(own), own, rounding, found)


def _match_head(
    ours: Checkpoint,
    theirs: Checkpoint,
    head: Head,
    other: Head,
    rounding: float,
    found: Match,
) -> None:
    basis = found.bases.get(last_stream(ours))
    norms = [checkpoint.norm(checkpoint.last_norm) for checkpoint in (ours, theirs)]
    weights, constants = _Rows(), _Rows()
    at = 0
    for one, two in zip(
        ours.files.chunks(head.weight, _ROWS),
        theirs.files.chunks(other.weight, _ROWS),
        strict=True,
    ):
        folded = []
        for checkpoint, this, rows, norm in zip(
            (ours, theirs), (head, other), (one, two), norms, strict=True
        ):
            bias = torch.zeros(len(rows), dtype=torch.float64)
            if this.bias:
                bias = checkpoint.files.read(this.bias)[at : at + len(rows)].double()
            folded.append((rows.double(), bias, norm, checkpoint.settings.norm == "layer"))
        (a, ours_constant), (b, theirs_constant) = (folded_head(*given) for given in folded)
        a = a if basis is None else a @ basis
        if found.unseen is not None:
            b = b - torch.outer(b @ found.unseen, found.unseen) / ours.D
        weight, bias, (scale, shift), _ = folded[1]
        weights.add(a - b, (weight * scale).norm(dim=1))
        stored = (bias.square() + (weight * shift).square().sum(dim=1)).sqrt()
        constants.add((ours_constant - theirs_constant)[:, None], stored)
        at += len(one)
    weights.note(found, other.weight, rounding)
    constants.note(found, other.bias or other.weight, rounding)


def _match_plain(a: Tensor, b: Tensor, name: str, rounding: float, found: Match) -> None:
    """Tensors that no symmetry moves: number by number."""
    if a.shape == b.shape and a.dtype.is_floating_point and a.numel():
        a, b = a.double().flatten(), b.double().flatten()
        _note(found, name, (a - b)[:, None], b.abs(), rounding)
    elif a.shape != b.shape or not torch.equal(a, b):
        found.note(name, Residual(name, None, float("inf"), rounding))


def _match_classifier(ours: Checkpoint, theirs: Checkpoint, rounding: float, found: Match) -> None:
    names = ours.hidden_head
    assert names is not None
    basis = found.bases.get(last_stream(ours))
    nets = []
    for checkpoint in (ours, theirs):
        w1, b1, w2, b2 = (checkpoint.files.read(name).double() for name in names)
        stored = w1.norm(dim=0)
        w1 = w1 - w1.mean(dim=0)
        if checkpoint is ours and basis is not None:
            w1 = basis.T @ w1
        nets.append((w1, b1, w2, b2, stored))
    features = []
    for w1, b1, w2, _, _ in nets:
        into = torch.cat([w1, b1[None]]).T
        size = into.norm(dim=1, keepdim=True).clamp_min(1e-300)
        features.append(torch.cat([into / size, w2 * size], dim=1))
    order = match_neurons(*features)
    (w1, b1, w2, b2, _), (v1, c1, v2, c2, stored) = nets
    into, theirs_in = torch.cat([w1, b1[None]])[:, order], torch.cat([v1, c1[None]])
    scale = (into * theirs_in).sum(0) / into.square().sum(0).clamp_min(1e-300)
    scale = torch.where(torch.isfinite(scale) & (scale > 0), scale, torch.ones_like(scale))
    found.hidden = order, scale
    _note(found, names[0], (w1[:, order] * scale - v1).T, stored, rounding)
    _note(found, names[1], (b1[order] * scale - c1)[:, None], c1.abs(), rounding)
    _note(found, names[2], w2[order] / scale[:, None] - v2, v2.norm(dim=1), rounding)
    _note(found, names[3], (b2 - c2)[:, None], c2.abs(), rounding)


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
        parts = theirs.files.chunks(head.weight, _ROWS)
        ones[name] = torch.cat([rows.double() @ (scale * direction) for rows in parts]) / ours.D
    if theirs.hidden_head:
        first = theirs.hidden_head[0]
        ones[first] = theirs.files.read(first).double().mean(dim=0)
    tied = {head.name for head in ours.heads.values() if head.tied}
    still = {head.name for head in theirs.heads.values() if head.tied}
    untied = bool(tied - still) or (bool(ours.tied_decoder) and not theirs.tied_decoder)
    return Outside(norm, ones, untied)
