"""Two whole checkpoints: the element between them, found from the embeddings on, block by block."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.group import GroupElement
from transformer_nfn.identity.acting import canonical_block, folded_head, reading
from transformer_nfn.identity.bases import find_basis
from transformer_nfn.identity.blockmatch import BlockMatch, Known, match_block
from transformer_nfn.identity.canonical import Gauge, Rules, gauge_of
from transformer_nfn.identity.element import NetElement, Outside, last_stream, streams
from transformer_nfn.identity.heads import sums_agree
from transformer_nfn.identity.neurons import match_neurons
from transformer_nfn.identity.residuals import Residual, magnitudes, repaired, residuals
from transformer_nfn.space import WeightBatch, sine_positions

#: Tolerances in units of the stored dtype's rounding, and for each unit of condition. An honest
#: copy is off by 1 to 5 of them; where bases are estimated one after the other, by 9. In coarse
#: dtypes there is less room below what counts as another network.
_PLAIN = 64.0
_PLAIN_COARSE = 10.0
_COARSE = 1e-4
_CONDITION = 2.0
#: Even a badly conditioned element may not explain more than this.
_MOST = 0.05


@dataclass
class Match:
    """What was found.

    Attributes:
        bases: For each stream its basis where it is not the identity.
        blocks: The element of each block that was matched.
        gauges: The second checkpoint's gauges.
        hidden: The classifier's neurons, for zoo nets.
        unseen: Where LayerNorms became RMSNorms, the direction that was the ones.
        failures: Residuals beyond their tolerance, with the name of where they are.
        by_products: Heads whose products agree though no matrix carries one to the other.
        worst: The largest ratio of a residual to its tolerance.
        residual: The largest residual.
        condition: The largest condition number of a matrix.
        distances: For each block the distances of all pairs of heads.
        repaired: The second's block that did not fit, with what differs taken from the first.
    """

    bases: dict[int, Tensor] = field(default_factory=dict)
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
    repaired: dict[int, WeightBatch] = field(default_factory=dict)

    def note(self, where: str, residual: Residual) -> None:
        """Count a residual."""
        self.worst = max(self.worst, residual.ratio)
        self.residual = max(self.residual, residual.value)
        if not residual.ratio <= 1:
            self.failures.append((where, residual))


def unit_roundoff(*checkpoints: Checkpoint) -> float:
    """Half the distance of 1 to the next number of the coarsest dtype; float64 counts as 1e-13."""
    return max(1e-13, *(torch.finfo(checkpoint.dtype).eps / 2 for checkpoint in checkpoints))


def plain_tolerance(rounding: float) -> float:
    """What rounding explains where no matrix is involved."""
    return rounding * (_PLAIN_COARSE if rounding > _COARSE else _PLAIN)


def match(
    ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] = lambda _: None
) -> Match:
    """Find the element that carries one checkpoint to another of the same shapes.

    It stops after the first block that does not fit, since all that follows would be judged in a
    basis that is not theirs.
    """
    found = Match()
    rounding = unit_roundoff(ours, theirs)
    _match_writers(ours, theirs, rounding, found)
    for number in range(ours.blocks):
        _match_one(ours, theirs, number, rounding, found)
        progress(number + 1)
        if found.failures:
            return found
    _match_outside(ours, theirs, rounding, found)
    return found


def element_of(found: Match, ours: Checkpoint, theirs: Checkpoint) -> NetElement:
    """The element that a match without failures is, with the second checkpoint's gauges."""
    return NetElement(
        tuple(found.blocks),
        found.bases,
        tuple(found.gauges),
        _outside_gauge(ours, theirs, found.unseen),
        found.hidden,
        found.unseen,
    )


def fixes_ones(ours: Checkpoint, theirs: Checkpoint) -> bool:
    """Whether both have LayerNorm, so that the ones mean the same to both."""
    return ours.settings.norm == theirs.settings.norm == "layer"


def stored_rows(checkpoint: Checkpoint, name: str) -> Tensor:
    """A writer outside the blocks, a row for each thing it writes, float64."""
    axis = checkpoint.writers[name].axes.split().index("x")
    return checkpoint.files.read(name).double().movedim(axis, -1).reshape(-1, checkpoint.D)


def seen_rows(checkpoint: Checkpoint, rows: Tensor) -> Tensor:
    """What the first norm sees of rows that are written."""
    if checkpoint.settings.norm != "layer":
        return rows
    return rows - rows.mean(dim=1, keepdim=True)


def first_rows(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """All that is written before the first block, by tensor; a zoo net's positions are fixed."""
    rows = {name: stored_rows(checkpoint, name) for name in checkpoint.writers}
    if checkpoint.family.norms is None and rows:
        positions = sine_positions(checkpoint.settings.size("tokens"), checkpoint.D).double()
        rows["embedding.bias"] = rows["embedding.bias"] + positions
    return rows


def _match_writers(ours: Checkpoint, theirs: Checkpoint, rounding: float, found: Match) -> None:
    rows = list(zip(first_rows(ours).values(), first_rows(theirs).items(), strict=True))
    basis = None
    fixed = ours.gives_hidden_states or bool(ours.unknown) or bool(theirs.unknown)
    if rows and not fixed:
        basis = find_basis(
            torch.cat([seen_rows(ours, a) for a, _ in rows]),
            torch.cat([seen_rows(theirs, b) for _, (_, b) in rows]),
            permutation=ours.family.post_norm,
            rounding=rounding,
            fix_ones=fixes_ones(ours, theirs),
        )
    if basis is not None:
        found.bases[0] = basis
    if ours.settings.norm == "layer" and theirs.settings.norm == "rms":
        ones = torch.ones(ours.D, dtype=torch.float64)
        found.unseen = ones if basis is None else ones @ basis
    for a, (name, b) in rows:
        moved = seen_rows(ours, a) if basis is None else seen_rows(ours, a) @ basis
        _note_rows(found, name, moved - seen_rows(theirs, b), b.norm(dim=1), rounding)
    if ours.family.post_norm:
        for name in ours.norm_names:
            _match_norm(ours, theirs, name, rounding, found)


def _note_rows(
    found: Match, name: str, difference: Tensor, stored: Tensor, rounding: float
) -> None:
    floor = 0.02 * stored.square().mean().sqrt()
    size = torch.maximum(stored, floor).clamp_min(1e-300)
    relative = difference.norm(dim=1) / size
    worst = int(relative.nan_to_num(nan=torch.inf).argmax())
    found.note(name, Residual(name, worst, relative[worst].item(), plain_tolerance(rounding)))


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
        stored = theirs_value.abs()
        _note_rows(found, f"{name}.{part}", (value - theirs_value)[:, None], stored, rounding)


def _match_one(
    ours: Checkpoint, theirs: Checkpoint, number: int, rounding: float, found: Match
) -> None:
    first, middle, last = streams(ours, number)
    bases = tuple(found.bases.get(stream) for stream in (first, middle, last))
    skip = ours.family.skip
    known = Known(bases, middle=skip, last=skip)  # type: ignore[arg-type]
    raw, norms = theirs.block(number), reading(theirs, number)
    result = match_block(
        canonical_block(ours, number),
        target := canonical_block(theirs, number, found.unseen),
        known,
        rounding=rounding,
        fix_ones=fixes_ones(ours, theirs),
    )
    if not skip:
        for stream, basis in zip((middle, last), result.bases, strict=True):
            if basis is not None:
                found.bases[stream] = basis
    found.blocks.append(result.element)
    found.gauges.append(gauge_of(raw, norms, Rules.of(theirs), found.unseen))
    found.distances.append(result.distances)
    found.condition = max(found.condition, *(c.max().item() for c in result.conditions))
    limits = _tolerances(result, rounding)
    place = ours.block_name(number)
    wrong = []
    for residual in residuals(result.moved, target, magnitudes(raw, norms), limits):
        if not residual.ratio <= 1 and _products_agree(result, residual, rounding):
            found.by_products.append(f"{place}: {residual.tensor} of head {residual.unit}")
            continue
        found.note(place, residual)
        if not residual.ratio <= 1:
            wrong.append(residual)
    if wrong:
        found.repaired[number] = repaired(target, result.moved, wrong)


def _tolerances(result: BlockMatch, rounding: float) -> dict[str, Tensor | float]:
    plain = plain_tolerance(rounding)
    qk, vo = (
        (plain + rounding * _CONDITION * c.nan_to_num(nan=torch.inf)).clamp_max(_MOST)
        for c in result.conditions
    )
    return {"Q": qk, "K": qk, "V": vo, "O": vo, "": plain}


def _products_agree(result: BlockMatch, residual: Residual, rounding: float) -> bool:
    """Whether a head that no matrix explains still has the same Q Kᵀ and V O."""
    name = residual.tensor.removeprefix("b")
    if name not in ("Q", "K", "V", "O") or residual.tensor == "bO" or residual.unit is None:
        return False
    # Squares are differences of sums, so distances are known to the root of float64's rounding.
    limit = max(plain_tolerance(rounding), 3e-8)
    a, b = result.heads
    inner = b.Q.shape[1]
    heads = [
        head
        for unit in residual.beyond
        for head in ([unit] if name in "QO" else range(unit * inner, (unit + 1) * inner))
    ]
    forms = result.forms[0 if name in "QK" else 1].flatten()
    apart = [head for head in heads if not forms[head] <= limit]
    return not apart or (name in "VO" and all(sums_agree(a, b, head, limit) for head in apart))


def _match_outside(ours: Checkpoint, theirs: Checkpoint, rounding: float, found: Match) -> None:
    basis = found.bases.get(last_stream(ours))
    if ours.hidden_head:
        _match_classifier(ours, theirs, rounding, found)
    elif ours.last_norm and not ours.family.post_norm and ours.gives_hidden_states:
        _match_norm(ours, theirs, ours.last_norm, rounding, found)
    for name, head in ours.heads.items():
        other = (
            theirs.heads.get(theirs.prefix + name.removeprefix(ours.prefix)) or theirs.heads[name]
        )
        folded = []
        for checkpoint, this in ((ours, head), (theirs, other)):
            weight = checkpoint.files.read(this.weight).double()
            bias = (
                checkpoint.files.read(this.bias).double()
                if this.bias
                else torch.zeros(len(weight)).double()
            )
            norm = checkpoint.norm(checkpoint.last_norm)
            folded.append((weight, bias, norm, checkpoint.settings.norm == "layer"))
        (a, one), (b, two) = (folded_head(*given) for given in folded)
        a = a if basis is None else a @ basis
        if found.unseen is not None:
            b = b - torch.outer(b @ found.unseen, found.unseen) / ours.D
        weight, bias, (scale, shift), _ = folded[1]
        _note_rows(found, other.weight, a - b, (weight * scale).norm(dim=1), rounding)
        stored = (bias.square() + (weight * shift).square().sum(dim=1)).sqrt()
        _note_rows(found, other.bias or other.weight, (one - two)[:, None], stored, rounding)
    for name in ours.others:
        other_name = (
            name if name in theirs.files else theirs.prefix + name.removeprefix(ours.prefix)
        )
        if other_name not in theirs.files:
            continue  # a decoder that one of the two files shares with its embedding
        a, b = (c.files.read(n) for c, n in ((ours, name), (theirs, other_name)))
        if a.shape == b.shape and a.dtype.is_floating_point and a.numel():
            a, b = a.double().flatten()[:, None], b.double().flatten()[:, None]
            _note_rows(found, name, a - b, b.abs().flatten(), rounding)
        elif a.shape != b.shape or not torch.equal(a, b):
            found.note(name, Residual(name, None, float("inf"), rounding))
    for own, of in ours.tied_decoder.items():
        if own in theirs.files:
            a, b = ours.files.read(of).double(), theirs.files.read(own).double()
            a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
            _note_rows(found, own, a - b, b.norm(dim=1), rounding)


def _match_classifier(ours: Checkpoint, theirs: Checkpoint, rounding: float, found: Match) -> None:
    assert ours.hidden_head is not None
    basis = found.bases.get(last_stream(ours))
    nets = []
    for checkpoint in (ours, theirs):
        w1, b1, w2, b2 = (checkpoint.files.read(name).double() for name in ours.hidden_head)
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
    names = ours.hidden_head
    _note_rows(found, names[0], (w1[:, order] * scale - v1).T, stored, rounding)
    _note_rows(found, names[1], (b1[order] * scale - c1)[:, None], c1.abs(), rounding)
    _note_rows(found, names[2], w2[order] / scale[:, None] - v2, v2.norm(dim=1), rounding)
    _note_rows(found, names[3], (b2 - c2)[:, None], c2.abs(), rounding)


def _outside_gauge(ours: Checkpoint, theirs: Checkpoint, unseen: Tensor | None) -> Outside:
    """The second checkpoint's own values of what may be anything outside the blocks."""
    ones: dict[str, Tensor] = {}
    layer = theirs.settings.norm == "layer"
    for name, other in zip(ours.writers, theirs.writers, strict=True):
        axis = theirs.writers[other].axes.split().index("x")
        mean = theirs.files.read(other).double().mean(dim=axis)
        ones[name] = mean if layer else torch.zeros_like(mean)
    scale, _ = norm = theirs.norm(theirs.last_norm)
    for name, head in zip(ours.heads, theirs.heads.values(), strict=True):
        direction = torch.ones_like(scale) if unseen is None else unseen
        ones[name] = (theirs.files.read(head.weight).double() * scale) @ direction / ours.D
    if theirs.hidden_head:
        first = theirs.hidden_head[0]
        ones[first] = theirs.files.read(first).double().mean(dim=0)
    tied = {head.name for head in ours.heads.values() if head.tied}
    still = {head.name for head in theirs.heads.values() if head.tied}
    untied = bool(tied - still) or (bool(ours.tied_decoder) and not theirs.tied_decoder)
    return Outside(norm, ones, untied)
