"""Whether an element is a symmetry of a network, part by part, trusting nothing in it.

Here is all that can be said without the weights of the blocks: that every part is there, of its
kind, and allowed in this network. `readback` says the rest.
"""

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.elements.acting import last_norm_of, moved_norm, reading
from transformer_nfn.identity.elements.element import MEMORY, NetElement, streams
from transformer_nfn.identity.elements.outsidecheck import check_outside
from transformer_nfn.identity.elements.rules import (
    CONDITION,
    EXACT,
    SCALE,
    ElementError,
    check_equal,
    check_norm,
    check_scale,
    stranger,
)
from transformer_nfn.identity.elements.table import Slot, element_table, element_tensors
from transformer_nfn.space import Kind, StreamKind


def check_element(checkpoint: Checkpoint, element: NetElement) -> None:
    """Raise unless an element is of the group of this checkpoint.

    Raises:
        ElementError: With the first thing that is wrong.
    """
    if checkpoint.unknown:
        raise ElementError(f"{checkpoint.path} has {stranger(checkpoint)}, so nothing may move")
    wanted = checkpoint.spec
    if len(element.blocks) != checkpoint.blocks or any(g.spec != wanted for g in element.blocks):
        raise ElementError(
            f"the element is for {len(element.blocks)} blocks, the first of "
            f"{element.blocks[0].spec if element.blocks else 'none'}; "
            f"{checkpoint.path} has {checkpoint.blocks} of {wanted}"
        )
    if (encoder := checkpoint.encoder) is not None:
        _check_encoder(checkpoint, element, encoder)
    if len(element.gauges) not in (0, checkpoint.blocks):
        raise ElementError(f"{len(element.gauges)} gauges for {checkpoint.blocks} blocks")
    _check_values(checkpoint, element)
    for number, block in enumerate(element.blocks):
        for label, part in block.parts.items():
            kind = wanted.block.axes[label].kind
            _check_part(part[0, 0], kind, f"block.{number}.{label}", wanted.size(label))
    for stream, basis in element.bases.items():
        _check_basis(checkpoint, basis, f"basis.{stream}", moves_ones=element.unseen is not None)
    _check_unseen(checkpoint, element)
    for number in range(len(element.gauges)):
        _check_gauge_norms(checkpoint, element, number)
    check_outside(checkpoint, element)
    if element.hidden is not None:
        _check_part(element.hidden[0], Kind.PERMUTED, "hidden.order", 1)
        check_scale(element.hidden[1], "hidden.scale", positive=True)


def _check_encoder(checkpoint: Checkpoint, element: NetElement, encoder: Checkpoint) -> None:
    """The encoder's own element, and that a table of words which both read moves once."""
    if element.encoder is None:
        raise ElementError("there is no element of the encoder")
    check_element(encoder, element.encoder)
    if checkpoint.shares_words:
        eye = torch.eye(checkpoint.D, dtype=torch.float64)
        one, two = (eye if b is None else b for b in (element.basis(0), element.basis(MEMORY)))
        check_equal(one, two, "basis.0, beside that of the encoder,")


def check_slot(name: str, given: Slot, table: dict[str, Slot]) -> None:
    """Raise unless a tensor of this dtype and shape may be in an element."""
    wanted = table.get(name)
    if wanted is None:
        raise ElementError(f"{name[:80]!r} is no part of any symmetry of this network")
    if given != wanted:
        raise ElementError(
            f"{name[:80]} should have shape {wanted.shape} of {wanted.dtype}, "
            f"not {given.shape} of {given.dtype}"
        )


def _check_values(checkpoint: Checkpoint, element: NetElement) -> None:
    table = element_table(checkpoint)
    for name, value in element_tensors(element).items():
        check_slot(name, Slot(value.dtype, tuple(value.shape)), table)
        if value.is_floating_point() and not value.isfinite().all():
            raise ElementError(f"{name} has NaN or infinite numbers")


def _check_part(part: Tensor, kind: Kind, name: str, size: int) -> None:
    if kind is Kind.PERMUTED:
        if not (part.sort(dim=-1).values == torch.arange(part.shape[-1])).all():
            raise ElementError(f"{name} is not a permutation")
    elif kind is Kind.ROTARY:
        check_scale(part.norm(dim=-1), f"the length of {name}")
    elif kind is Kind.SIGNED:
        if not (part.abs() == 1).all():
            raise ElementError(f"{name} are no signs")
    elif kind is Kind.SCALED:
        check_scale(part, name, positive=True)
    elif size == 1:
        check_scale(part, name)
    else:
        if not part.abs().max() <= SCALE:  # first, since the SVD of infinite products fails
            raise ElementError(f"{name} has a number above {SCALE:.1e}")
        values = torch.linalg.svdvals(part)
        check_scale(values, f"a singular value of {name}")
        worst = (values[..., 0] / values[..., -1]).max().item()
        if not worst <= CONDITION:
            raise ElementError(f"{name} has condition number {worst:.1e}, above {CONDITION:.0e}")


def _check_basis(checkpoint: Checkpoint, basis: Tensor, name: str, *, moves_ones: bool) -> None:
    if checkpoint.stream_kind is not StreamKind.ORTHOGONAL:
        places = basis
        if checkpoint.stream_kind is StreamKind.SIGNED:
            places = basis.abs()
        elif checkpoint.stream_kind is StreamKind.FLIPPED:
            places = basis * basis.sum().sign()  # of all of them together
        if not ((places == 0) | (places == 1)).all() or not (
            (places.sum(0) == 1).all() and (places.sum(1) == 1).all()
        ):
            raise ElementError(
                f"{name} is no basis of a stream that is {checkpoint.stream_kind.value}: norms "
                f"hold the axes"
            )
        return
    error = (basis @ basis.T).sub_(torch.eye(len(basis), dtype=basis.dtype)).abs().max().item()
    if not error < EXACT:
        raise ElementError(f"{name} is not orthogonal: R Rᵀ is off by {error:.1e}")
    if checkpoint.settings.norm == "layer" and not moves_ones:
        error = (basis.sum(dim=0) - 1).abs().max().item()
        if not error < EXACT:
            raise ElementError(f"{name} moves the vector of ones by {error:.1e}, under LayerNorm")


def _check_unseen(checkpoint: Checkpoint, element: NetElement) -> None:
    if element.unseen is None:
        return
    ones, basis = torch.ones(checkpoint.D, dtype=torch.float64), element.basis(0)
    check_equal(element.unseen, ones if basis is None else ones @ basis, "unseen")
    for number in range(checkpoint.blocks):
        # Their own gauge has means in what is written, which an RMSNorm would see.
        if not element.gauges or element.gauges[number] is None:
            raise ElementError(f"LayerNorms become RMSNorms, but there is no gauge.{number}")
    if element.outside is None:
        raise ElementError("LayerNorms become RMSNorms, but there is no gauge outside the blocks")


def _check_gauge_norms(checkpoint: Checkpoint, element: NetElement, number: int) -> None:
    if (gauge := element.gauges[number]) is None:
        return
    own, names = reading(checkpoint, number), checkpoint.reading_norms(number)
    for half, stream in enumerate(streams(checkpoint, number)[: len(names)]):
        place = f"gauge.{number}.norm.{half}"
        wanted, fixed = own[half], checkpoint.gives_stream(names[half])
        if fixed:
            wanted = moved_norm(own[half], element.basis(stream), fixed)
        check_norm(checkpoint, gauge.norms[half], wanted, place, names[half], free=not fixed)
    if (encoder := checkpoint.encoder) is not None and element.encoder is not None:
        given = gauge.norms[len(names)], last_norm_of(encoder, element.encoder)
        for part, value, wanted_part in zip(("scale", "shift"), *given, strict=True):
            check_equal(value, wanted_part, f"gauge.{number}.norm.{len(names)}.{part}")
