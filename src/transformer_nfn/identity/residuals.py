"""How far two blocks are from each other, unit by unit: each head, each neuron, each constant.

A whole tensor's norm would hide one neuron among thousands. Distances are of canonical weights, in
units of what the file really stores: rounding errs relative to that.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_nfn.identity.canonical import READERS, WRITERS, Norm
from transformer_nfn.space import WeightBatch

#: A bias smaller than this part of its like is measured by them: zero has no relative error.
_FLOOR = 0.02


@dataclass(frozen=True)
class Residual:
    """The worst unit of a tensor.

    Attributes:
        tensor: The declared tensor, ``Q``, or ``bQ`` for its bias.
        unit: Which head, group or neuron; None if the tensor is one unit.
        beyond: All units beyond their tolerance.
        value: Relative distance.
        tolerance: What rounding explains.
    """

    tensor: str
    unit: int | None
    value: float
    tolerance: float
    beyond: tuple[int, ...] = ()

    @property
    def ratio(self) -> float:
        """The distance as a multiple of the tolerance."""
        return self.value / self.tolerance if self.value == self.value else float("inf")


def magnitudes(batch: WeightBatch, norms: tuple[Norm, Norm]) -> dict[str, Tensor]:
    """For each unit of each tensor the size of the stored numbers that it comes from."""
    block = {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}
    D = batch.spec.sizes["D"]
    sizes: dict[str, Tensor] = {}
    for name, (axis, half) in READERS.items():
        if name not in block:
            continue
        scale, shift = norms[half]
        whole = block[name].movedim(axis, 0)  # x or z first
        weight = whole[:D]
        bias = block[f"b{name}"] if len(whole) == D else whole[D]
        shape = (-1, *[1] * (weight.dim() - 1))
        from_shift = (weight * shift.view(shape)).square().sum(dim=0)
        sizes[name] = _unit_norms(name, weight * scale.view(shape))
        sizes[f"b{name}"] = _bias_norms(name, (bias.square() + from_shift).sqrt())
    for name in WRITERS:
        if name in block:
            sizes[name] = _writer_norms(name, block[name])
    values = (block["V"][..., D, :].abs().unsqueeze(-1) * _grouped(block["O"])).square()
    moved = values.sum(dim=tuple(range(values.dim() - 1)))
    sizes["bO"] = (sizes["bO"].square() + moved.sum()).sqrt()
    return sizes


def residuals(
    ours: WeightBatch,
    theirs: WeightBatch,
    sizes: Mapping[str, Tensor],
    tolerances: Mapping[str, Tensor | float],
) -> list[Residual]:
    """The worst unit of each tensor of two canonical blocks in the same coordinates.

    Args:
        ours: The first, moved.
        theirs: The second.
        sizes: `magnitudes` of the second.
        tolerances: For Q, K, V, O a tolerance for each group; for others one under ``""``.
    """
    found = []
    D = theirs.spec.sizes["D"]
    for name in theirs:
        difference = (ours[name] - theirs[name])[0, 0, 0]
        if name in READERS:
            axis = READERS[name][0]
            whole = difference.movedim(axis, 0)
            found.append(_worst(name, _unit_norms(name, whole[:D]), sizes[name], tolerances))
            if len(whole) > D:
                found.append(
                    _worst(f"b{name}", _bias_norms(name, whole[D]), sizes[f"b{name}"], tolerances)
                )
        elif name in WRITERS:
            found.append(_worst(name, _writer_norms(name, difference), sizes[name], tolerances))
        else:  # bA
            found.append(
                _worst(name, difference.abs().flatten(), sizes[name].flatten(), tolerances)
            )
    return found


def _worst(
    name: str, distance: Tensor, size: Tensor, tolerances: Mapping[str, Tensor | float]
) -> Residual:
    tolerance = torch.as_tensor(tolerances.get(name.removeprefix("b"), tolerances[""]))
    if name in ("bO", "bB", "bdown"):
        tolerance = tolerance.max()
    if tolerance.dim() and distance.dim() > 1:
        tolerance = tolerance.unsqueeze(-1)  # a group's for each of its heads
    floor = _FLOOR * size.square().mean().sqrt()
    relative = distance / torch.maximum(size, floor).clamp_min(1e-300)
    relative = torch.where(distance == 0, 0.0, relative)
    ratio = (relative / tolerance).flatten()
    worst = int(ratio.nan_to_num(nan=torch.inf).argmax())
    limits = tolerance.expand_as(relative).flatten() if relative.dim() else tolerance.view(1)
    unit = worst if relative.dim() else None
    beyond = torch.nonzero(~(ratio <= 1)).flatten().tolist() if relative.dim() else ()
    value = relative.flatten()[worst].item()
    return Residual(name, unit, value, limits[worst].item(), tuple(beyond))


def repaired(theirs: WeightBatch, ours: WeightBatch, wrong: list[Residual]) -> WeightBatch:
    """The second canonical block, with the units that differ too much replaced by the first's."""
    block = {name: tensor.clone() for name, tensor in theirs.tensors.items()}
    D = theirs.spec.sizes["D"]
    for residual in wrong:
        name = residual.tensor
        bias = name not in block
        if bias:  # the bias row of a reader
            name = name.removeprefix("b")
        source, target = ours[name][0, 0, 0], block[name][0, 0, 0]
        if name in READERS:
            axis = READERS[name][0]
            source, target = source.movedim(axis, 0), target.movedim(axis, 0)  # x or z first
            rows = slice(D, None) if bias else slice(0, D)
            source, target = source[rows], target[rows]
            heads = name in ("Q", "K", "V")
            flat = (1, -2) if heads else (1, -1)
            source, target = source.flatten(*flat), target.flatten(*flat)
            units = list(residual.beyond)
            target[:, units] = source[:, units]
        elif residual.unit is None:
            target.copy_(source)
        else:
            last = -3 if name == "O" else -2 if name in ("B", "down") else -1
            units = list(residual.beyond)
            target.flatten(0, last)[units] = source.flatten(0, last)[units]
    return WeightBatch(theirs.spec, block)


def _unit_norms(name: str, weight: Tensor) -> Tensor:
    """Of a reader with the stream first: a number for each head, group or neuron."""
    if name in ("Q", "K", "V"):
        return weight.square().sum(dim=(0, -1)).sqrt()  # (g m) or g
    return weight.square().sum(dim=0).sqrt().flatten()  # a


def _bias_norms(name: str, bias: Tensor) -> Tensor:
    return bias.square().sum(dim=-1).sqrt() if name in ("Q", "K", "V") else bias.abs().flatten()


def _writer_norms(name: str, tensor: Tensor) -> Tensor:
    if name == "O":
        return tensor.square().sum(dim=(-2, -1)).sqrt()  # (g m) or h
    if name in ("B", "down"):
        return tensor.square().sum(dim=-1).sqrt().flatten()  # a
    return tensor.square().sum().sqrt()


def _grouped(O: Tensor) -> Tensor:
    """O with heads of a group behind each other: "g v x" for a bias "g v" to meet."""
    return O if O.dim() == 3 else O.square().sum(dim=1).sqrt()
