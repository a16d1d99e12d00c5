"""A `NetElement` as named tensors, and which of them an element of a given network can have."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.group import GroupElement
from transformer_nfn.identity.elements.canonical import Gauge, Rules
from transformer_nfn.identity.elements.element import NetElement, Outside
from transformer_nfn.identity.elements.parts import basis_streams


class Slot(NamedTuple):
    """What a tensor of an element must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def element_tensors(element: NetElement) -> dict[str, Tensor]:
    """All that an element is made of, by the names of the certificate's format."""
    found = {f"basis.{stream}": basis for stream, basis in element.bases.items()}
    for number, block in enumerate(element.blocks):
        found |= {f"block.{number}.{label}": part[0, 0] for label, part in block.parts.items()}
    for number, gauge in enumerate(element.gauges):
        if gauge is not None:
            found |= {f"gauge.{number}.{name}": value for name, value in _gauge(gauge).items()}
    if (outside := element.outside) is not None:
        found |= dict(zip(("outside.scale", "outside.shift"), outside.last_norm, strict=True))
        found |= {f"outside.ones.{name}": value for name, value in outside.ones.items()}
        found["outside.untied"] = torch.tensor(outside.untied)
    if element.unseen is not None:
        found["unseen"] = element.unseen
    if element.hidden is not None:
        found |= dict(zip(("hidden.order", "hidden.scale"), element.hidden, strict=True))
    if element.encoder is not None:
        inner = element_tensors(element.encoder)
        found |= {f"encoder.{name}": value for name, value in inner.items()}
    return found


def _gauge(gauge: Gauge) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for half, (scale, shift) in enumerate(gauge.norms):
        found |= {f"norm.{half}.scale": scale, f"norm.{half}.shift": shift}
    found |= {f"ones.{name}": value for name, value in gauge.ones.items()}
    found |= {f"shared.{name}": value for name, value in gauge.shared.items()}
    return found | {f"bias.{name}": value for name, value in gauge.biases.items()}


def element_from(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> NetElement:
    """The element of these tensors, all of which are known to be in the table.

    Raises:
        KeyError: If a tensor is missing.
        ShapeError: If a part of a block is missing.
    """
    numbers = range(checkpoint.blocks)
    blocks = tuple(
        GroupElement(
            checkpoint.spec,
            {label: part[None, None] for label, part in _under(tensors, f"block.{i}.").items()},
        )
        for i in numbers
    )
    bases = {int(name): basis for name, basis in _under(tensors, "basis.").items()}
    halves = _norms_read(checkpoint)
    gauges = tuple(_gauge_from(_under(tensors, f"gauge.{i}."), halves) for i in numbers)
    outside, hidden = None, None
    if outer := _under(tensors, "outside."):
        norm, untied = (outer["scale"], outer["shift"]), bool(outer["untied"].item())
        outside = Outside(norm, _under(outer, "ones."), untied)
    if classifier := _under(tensors, "hidden."):
        hidden = classifier["order"], classifier["scale"]
    inner = checkpoint.encoder
    encoder = element_from(_under(tensors, "encoder."), inner) if inner is not None else None
    return NetElement(blocks, bases, gauges, outside, hidden, tensors.get("unseen"), encoder)


def _norms_read(checkpoint: Checkpoint) -> int:
    """How many norms a block reads: one for each half, and the encoder's last."""
    return len(checkpoint.spec.block.halves) + (checkpoint.encoder is not None)


def _gauge_from(tensors: Mapping[str, Tensor], halves: int) -> Gauge | None:
    if not tensors:
        return None
    norms = tuple(
        (tensors[f"norm.{half}.scale"], tensors[f"norm.{half}.shift"]) for half in range(halves)
    )
    parts = (_under(tensors, f"{part}.") for part in ("ones", "bias", "shared"))
    return Gauge(norms, *parts)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def element_table(checkpoint: Checkpoint) -> dict[str, Slot]:
    """Every tensor that an element of this network can have: a part of its group, and read."""
    D = checkpoint.D
    table = {f"basis.{s}": Slot(torch.float64, (D, D)) for s in basis_streams(checkpoint)}
    parts = GroupElement.identity(checkpoint.spec).parts
    own = {f"block.{{}}.{n}": Slot(p.dtype, tuple(p.shape[2:])) for n, p in parts.items()}
    own |= {f"gauge.{{}}.{name}": slot for name, slot in gauge_table(checkpoint).items()}
    for number in range(checkpoint.blocks):
        table |= {name.format(number): slot for name, slot in own.items()}
    table |= {f"outside.{part}": Slot(torch.float64, (D,)) for part in ("scale", "shift")}
    table["outside.untied"] = Slot(torch.bool, ())
    if checkpoint.settings.norm == "layer":
        table |= {
            f"outside.ones.{name}": Slot(torch.float64, shape)
            for name, shape in outside_shapes(checkpoint).items()
        }
    if checkpoint.hidden_head:
        neurons = (checkpoint.hidden_neurons,)
        table["hidden.order"] = Slot(torch.int64, neurons)
        table["hidden.scale"] = Slot(torch.float64, neurons)
    if can_become_rms(checkpoint):
        table["unseen"] = Slot(torch.float64, (D,))
    if (encoder := checkpoint.encoder) is not None:
        table |= {f"encoder.{name}": slot for name, slot in element_table(encoder).items()}
    return table


def gauge_table(checkpoint: Checkpoint) -> dict[str, Slot]:
    """What the gauge of a block can have; values that the file has no place for are not in it."""
    block = checkpoint.spec.block
    free = [*block.readers] if checkpoint.centred_reads else []
    free += [*block.writers] if checkpoint.centred_writes else []
    halves = range(_norms_read(checkpoint))
    names = [f"norm.{half}.{part}" for half in halves for part in ("scale", "shift")]
    table = {name: Slot(torch.float64, (checkpoint.D,)) for name in names}
    if checkpoint.settings.norm == "layer":
        table |= {
            f"ones.{name}": _beside_stream(checkpoint, name)
            for name in block.tensors
            if name in free and _has_place(checkpoint, name)
        }
    rows = (checkpoint.D + 1,)  # the last for a bias
    table |= {f"shared.{name}": Slot(torch.float64, rows) for name in block.shifted}
    rules = Rules.of(checkpoint)
    stored = {name for name in rules.keys if checkpoint.has_bias(name)}
    return table | {
        f"bias.{name}": _beside_stream(checkpoint, name) for name in stored | rules.values
    }


def _beside_stream(checkpoint: Checkpoint, tensor: str) -> Slot:
    """All axes of a tensor of a block but the stream's."""
    spec = checkpoint.spec
    labels = [i.label for i in spec.block.tensors[tensor] if i.label not in ("x", "z", "w")]
    return Slot(torch.float64, tuple(spec.size(label) for label in labels))


def _has_place(checkpoint: Checkpoint, tensor: str) -> bool:
    """Whether the file has a declared tensor: all weights, and the biases that are there."""
    block = checkpoint.block_name(0)
    return any(
        tensor in matrix.tensors
        or (tensor == matrix.bias_tensor and block + (matrix.bias or "") in checkpoint.files)
        for matrix in checkpoint.family.matrices
    )


def outside_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, ...]]:
    """For writers, heads and the classifier the sizes of all axes but the stream's."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, writer in checkpoint.writers.items():
        axis, shape = writer.axes.split().index("x"), checkpoint.files.entry(name).shape
        shapes[name] = (*shape[:axis], *shape[axis + 1 :])
    for name, head in checkpoint.heads.items():
        shapes[name] = checkpoint.files.entry(head.weight).shape[:1]
    if checkpoint.hidden_head:
        shapes[checkpoint.hidden_head[0]] = (checkpoint.hidden_neurons,)
    return shapes


def can_become_rms(checkpoint: Checkpoint) -> bool:
    """Whether the family has a setting that makes its LayerNorms RMSNorms."""
    tables = checkpoint.family.keys.values()
    choice = any(key.name == "norm" for table in tables for key in table.matter)
    return checkpoint.settings.norm == "layer" and choice
