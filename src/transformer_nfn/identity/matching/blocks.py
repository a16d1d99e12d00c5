"""One block against another: the group element between them, and what it leaves unexplained."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transformer_nfn.group import GroupElement
from transformer_nfn.identity.comparing.basis import Basis
from transformer_nfn.identity.comparing.heads import Heads
from transformer_nfn.identity.elements.canonical import Bases, rotated
from transformer_nfn.identity.matching.bases import find_basis
from transformer_nfn.identity.matching.experts import match_experts
from transformer_nfn.identity.matching.heads import between, between_pairs, match_heads
from transformer_nfn.identity.matching.neurons import back, match_neurons, rms, scale_between
from transformer_nfn.space import Attention, Kind, WeightBatch


@dataclass(frozen=True)
class BlockMatch:
    """What one block is to another.

    Attributes:
        element: The group element.
        bases: Of the streams that attention and MLP write, where they were not known before.
        condition: The largest condition number of M and N.
        loose: Heads of the second block for which no M or N was found that carries one pair of
            factors to the other: without full rank there is none, or many. By the axis of heads.
        distances: The squared distances of all pairs of heads of the first attention, for pictures.
    """

    element: GroupElement
    bases: tuple[Basis | None, Basis | None]
    condition: float
    loose: Mapping[str, tuple[int, ...]]
    distances: Tensor


@dataclass(frozen=True)
class _Heads:
    """The heads of one attention of two blocks, matched by where they look.

    Attributes:
        part: The attention.
        groups: For each of their groups which of ours it is.
        inside: The same for the heads of each group.
        ours: Our heads, in their order.
        theirs: Theirs.
        k: What stands between queries and keys of both.
        distances: Of all pairs of heads.
    """

    part: Attention
    groups: Tensor
    inside: Tensor
    ours: Heads
    theirs: Heads
    k: Tensor
    distances: Tensor

    @property
    def v(self) -> Tensor:
        """What stands between values and outputs of both."""
        outputs = (heads.O.transpose(2, 3).flatten(1, 2) for heads in (self.ours, self.theirs))
        return between(self.ours.V, self.theirs.V, *outputs)

    @property
    def parts(self) -> dict[str, Tensor]:
        """Of a group element."""
        back_in_order = {self.part.compared: self.k, self.part.carried: self.v}
        found = {label: back(value, self.groups) for label, value in back_in_order.items()}
        return found | {self.part.outer: self.groups, "m": self.inside}

    @property
    def conditions(self) -> tuple[Tensor, Tensor]:
        """Of each matrix between queries and keys, and between values and outputs."""
        if not self.ours.rotary:
            return torch.linalg.cond(self.k), torch.linalg.cond(self.v)
        size = self.k.abs() if self.part.normed else self.k.norm(dim=-1)
        return size.amax(-1) / size.amin(-1), torch.linalg.cond(self.v)


def match_block(
    ours: WeightBatch,
    theirs: WeightBatch,
    bases: Bases,
    *,
    known: bool,
    variances: tuple[WeightBatch, WeightBatch],
    rounding: float,
    fix_ones: bool,
) -> BlockMatch:
    """Find the element that carries one canonical block to another.

    Args:
        ours: The first block, canonical, in its own bases.
        theirs: The second.
        bases: Of the streams, None for the identity.
        known: Whether the last two are known; if not, they are found here.
        variances: How far rounding leaves the numbers of both.
        rounding: Unit roundoff of the stored numbers.
        fix_ones: Whether bases that are found here fix the ones.
    """
    spec = theirs.spec
    moved = GroupElement.identity(spec).parts
    start = rotated(ours, bases)
    heads = [_match_heads(start, theirs, each, outputs=known) for each in spec.block.attentions]
    middle: Basis | None = None
    if not known:
        (only,) = heads  # a network without skip connections has one attention a block
        middle = _middle_basis(only, (start, theirs), variances, rounding, fix_ones)
        if middle is not None:
            start = rotated(ours, (bases[0], middle.matrix, bases[2]))
            heads = [replace(only, ours=replace(only.ours, O=only.ours.O @ middle.matrix))]
    order: Tensor | None = None
    if "u" in spec.block.axes:
        neurons = match_experts(start, theirs)
    else:
        order, scale = _neurons(start, theirs, known)
        neurons = {"a": order} | ({} if scale is None else {"s": back(scale, order)})
    parts = {label: part for each in heads for label, part in each.parts.items()} | neurons
    parts = {label: part for label, part in parts.items() if label in moved}
    if "i" in moved:
        parts["i"] = _norm_scales(start, theirs, heads[0].groups, heads[0].inside)
    element = GroupElement(spec, {label: part[None, None] for label, part in parts.items()})
    last: Basis | None = None
    if not known and order is not None:
        last = _last_basis(element(start), theirs, order, scale, variances, rounding, fix_ones)
        if last is not None:
            second = None if middle is None else middle.matrix
            start = rotated(ours, (bases[0], second, last.matrix))
    moved_ours, conditions = element(start), [each.conditions for each in heads]
    loose = {
        each.part.outer: _loose(Heads.of(moved_ours, each.part), each.theirs, condition, rounding)
        for each, condition in zip(heads, conditions, strict=True)
    }
    return BlockMatch(
        element,
        (middle, last),
        max(c.nan_to_num(nan=torch.inf).max().item() for both in conditions for c in both),
        {label: some for label, some in loose.items() if some},
        heads[0].distances.flatten(2).flatten(0, 1),
    )


def _match_heads(
    ours: WeightBatch, theirs: WeightBatch, part: Attention, *, outputs: bool
) -> _Heads:
    """Which head of ours is which of theirs, and what stands between their queries and keys."""
    a, b = (Heads.of(batch, part) for batch in (ours, theirs))
    groups, inside, cost = match_heads(a, b, outputs=outputs)
    if theirs.spec.block.axes[part.outer].kind is Kind.FREE:
        groups, inside = torch.arange(a.groups), torch.arange(a.Q.shape[1]).expand_as(inside)
    picked = a.pick(groups, inside)
    k = _signs(picked, b) if part.normed else _query_key(picked, b)
    return _Heads(part, groups, inside, picked, b, k, cost)


def _loose(
    a: Heads, b: Heads, conditions: tuple[Tensor, Tensor], rounding: float
) -> tuple[int, ...]:
    """Heads whose factors differ by far more than rounding and the matrix between them explain."""
    found = torch.zeros(b.Q.shape[:2], dtype=torch.bool)
    for names, condition in zip(("QK", "VO"), conditions, strict=True):
        allowed = (rounding * (64 + 2 * condition.nan_to_num(nan=torch.inf))).clamp_max(0.05)
        for name in names:
            one, two = getattr(a, name), getattr(b, name)
            off = (one - two).square().sum(dim=(-2, -1)).sqrt()
            size = two.square().sum(dim=(-2, -1)).sqrt()
            limit = allowed if off.dim() == 1 else allowed.unsqueeze(1)
            wrong = ~(off <= limit * size)
            found |= wrong if wrong.dim() == 2 else wrong.unsqueeze(1)
    return tuple(torch.nonzero(found.flatten()).flatten().tolist())


def _query_key(a: Heads, b: Heads) -> Tensor:
    pairs = a.Q.flatten(1, 2), b.Q.flatten(1, 2), a.K, b.K
    return between_pairs(*pairs) if a.rotary else between(*pairs)


def _signs(a: Heads, b: Heads) -> Tensor:
    """A sign for each pair of coordinates, by which queries and keys agree best."""
    same = (a.Q * b.Q).sum(dim=(1, 2)) + (a.K * b.K).sum(dim=1)  # g k
    first, second = same.chunk(2, dim=-1)
    return torch.where(first + second < 0, -1.0, 1.0).double()


def _norm_scales(ours: WeightBatch, theirs: WeightBatch, groups: Tensor, inside: Tensor) -> Tensor:
    """What stands between the norms of queries and keys, "j 1 1"; "g j 1 1" if heads have own."""
    own = "g" in [index.label for index in theirs.spec.block.tensors["nQ"]]
    rows = []
    for name in ("nQ", "nK"):
        for batch in (ours, theirs):
            scale = batch[name][0, 0, 0].squeeze(-1)  # (g m) f j
            if own and batch is ours:
                if name == "nQ":
                    scale = torch.take_along_dim(scale, inside[:, :, None, None], dim=1)
                scale = scale[groups]
            if own:
                scale = scale.flatten(1, -2).transpose(0, 1)  # (m f) g j
            rows.append(scale.flatten(1).T)
    found = scale_between(*rows)
    return back(found.view(len(groups), -1, 1, 1), groups) if own else found


def _middle_basis(
    matched: _Heads,
    blocks: tuple[WeightBatch, WeightBatch],
    variances: tuple[WeightBatch, WeightBatch],
    rounding: float,
    fix_ones: bool,
) -> Basis | None:
    """The basis that attention writes in: first from V O, then from all that reads it as well.

    V O is taken in an orthonormal basis of what their V reads, where ours needs no N.
    """
    ours, theirs = blocks
    a, b = matched.ours, matched.theirs
    off, off_b = (Heads.of(batch, matched.part) for batch in variances)
    off_a = off.pick(matched.groups, matched.inside)
    q, _ = torch.linalg.qr(b.V)
    rows, squares = [], []
    for heads, uncertain in ((a, off_a), (b, off_b)):
        reads = torch.einsum("gji,gjv->giv", q, heads.V)
        rows.append(torch.einsum("giv,gmvx->gmix", reads, heads.O).flatten(0, 2))
        # Rounding of O moves a row by its own size, that of V moves all rows alike.
        through = torch.einsum("giv,gmvx->gmi", reads.square(), uncertain.O)
        around = torch.einsum("gzv,gmvx->gm", uncertain.V, heads.O.square()) / q.shape[1]
        squares.append((through + around.unsqueeze(-1)).flatten())
    sizes = (squares[0] + squares[1]).sqrt()
    first = find_basis(
        rows[0],
        rows[1],
        rounding=rounding,
        fix_ones=fix_ones,
        sizes=sizes,
    )
    turned = ours if first is None else rotated(ours, (None, first.matrix, None))
    order, _ = _neurons(turned, theirs, outputs=False)
    # A scale may stand between the neurons of the two, so each counts by its direction.
    one, two, off_one, off_two = (_rows(batch, "A") for batch in (*blocks, *variances))
    lengths = [reads.norm(dim=1, keepdim=True).clamp_min(1e-300) for reads in (one, two)]
    off_one, off_two = (
        uncertain.sum(dim=1) / length.squeeze(1).square()
        for uncertain, length in zip((off_one, off_two), lengths, strict=True)
    )
    return find_basis(
        torch.cat([rows[0], (one / lengths[0])[order]]),
        torch.cat([rows[1], two / lengths[1]]),
        rounding=rounding,
        fix_ones=fix_ones,
        sizes=torch.cat([sizes, (off_one[order] + off_two).sqrt()]),
    )


def _last_basis(
    ours: WeightBatch,
    theirs: WeightBatch,
    order: Tensor,
    scale: Tensor | None,
    variances: tuple[WeightBatch, WeightBatch],
    rounding: float,
    fix_ones: bool,
) -> Basis | None:
    """The basis that the MLP writes in, once its neurons are in order and have their scale."""
    off_ours, off_theirs = (_written(batch).sum(dim=1) for batch in variances)
    neurons = off_ours[:-1][order]
    if scale is not None:
        neurons = neurons / scale.flatten().square()
    return find_basis(
        _written(ours),
        _written(theirs),
        rounding=rounding,
        fix_ones=fix_ones,
        sizes=(torch.cat([neurons, off_ours[-1:]]) + off_theirs).sqrt(),
    )


def _written(batch: WeightBatch) -> Tensor:
    """All that an MLP may write: a row for each neuron, and the bias."""
    return torch.cat([_rows(batch, "B"), batch["bB"][0, 0, 0, None]])


def _neurons(ours: WeightBatch, theirs: WeightBatch, outputs: bool) -> tuple[Tensor, Tensor | None]:
    """Their order in ours, and in their order the scales between them, if neurons have any."""
    if "gate" in theirs:
        order = match_neurons(_rows(ours, "gate"), _rows(theirs, "gate"))
        return order, _scales(ours, theirs, "up", "down", order)
    if "s" not in theirs.spec.block.axes:
        names = ("A", "bA", "B") if outputs else ("A", "bA")
        return match_neurons(_stacked(ours, names), _stacked(theirs, names)), None
    features = []
    for batch in (ours, theirs):
        into = _stacked(batch, ("A", "bA"), plain=True)
        size = into.norm(dim=1, keepdim=True).clamp_min(1e-300)
        out = _rows(batch, "B") * size
        part = [into / size, out / rms(out)] if outputs else [into / size]
        features.append(torch.cat(part, dim=1))
    order = match_neurons(*features)
    return order, _scales(ours, theirs, "A", "B", order, positive=True, outputs=outputs)


def _scales(
    ours: WeightBatch,
    theirs: WeightBatch,
    into: str,
    out: str,
    order: Tensor,
    *,
    positive: bool = False,
    outputs: bool = True,
) -> Tensor:
    """The numbers by which a neuron's input is larger and its output smaller: "a 1 1" or "a 1"."""
    given = [_rows(ours, into)[order], _rows(theirs, into)]
    if outputs:
        given += [_rows(ours, out)[order], _rows(theirs, out)]
    scale = scale_between(*given)
    if positive:
        scale = torch.where(scale > 0, scale, torch.ones_like(scale)).squeeze(-1)
    return scale


def _rows(batch: WeightBatch, name: str) -> Tensor:
    """A row for each neuron."""
    tensor = batch[name][0, 0, 0]
    if name in ("A", "gate", "up"):
        return tensor.flatten(1).T  # x a (s)
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.unsqueeze(1)


def _stacked(batch: WeightBatch, names: tuple[str, ...], *, plain: bool = False) -> Tensor:
    """Rows of several tensors beside each other, each of the same weight."""
    parts = [
        batch[name][0, 0, 0].flatten().unsqueeze(1) if name == "bA" else _rows(batch, name)
        for name in names
    ]
    return torch.cat([part if plain else part / rms(part) for part in parts], dim=1)
