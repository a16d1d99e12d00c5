"""Random symmetries of a checkpoint, of all parts of its group or of some."""

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.group import GroupElement, conditioned, random_element
from transformer_nfn.identity.elements.acting import (
    last_norm_of,
    moved_gauge,
    reading,
)
from transformer_nfn.identity.elements.canonical import Gauge, Norm, Rules, invertible
from transformer_nfn.identity.elements.digits import last_digit
from transformer_nfn.identity.elements.element import NetElement, Outside
from transformer_nfn.identity.elements.parts import (
    basis_streams,
    free_heads,
    free_writers,
    last_norm_is_free,
    last_shift_is_free,
    shifts_are_free,
    symmetry_parts,
)
from transformer_nfn.identity.elements.settling import settled
from transformer_nfn.space import StreamKind

#: Which axes of a block's declaration a part moves.
_AXES = {"heads": "hgmo", "qk": "kip", "vo": "vq", "neurons": "a", "experts": "u", "scales": "s"}


def random_net_element(
    checkpoint: Checkpoint,
    generator: torch.Generator,
    *,
    parts: Collection[str] | None = None,
    condition: float = 10.0,
) -> NetElement:
    """A random symmetry.

    Args:
        checkpoint: Of which network.
        generator: The source of randomness.
        parts: Names from `symmetry_parts`; all of them if None.
        condition: Of each matrix; scales lie between its inverse root and its root.

    Raises:
        CheckpointError: If a part is no symmetry of this network.
    """
    there = symmetry_parts(checkpoint)
    chosen = set(there if parts is None else parts)
    encoder, inner = checkpoint.encoder, None
    if encoder is not None:
        of_encoder = [part for part in symmetry_parts(encoder) if part in chosen]
        inner = random_net_element(encoder, generator, parts=of_encoder, condition=condition)
    if wrong := sorted(chosen - set(there)):
        raise CheckpointError(
            f"{', '.join(wrong)}: no symmetry of {checkpoint.path}; it has {', '.join(there)}"
        )
    bases = {}
    if "basis" in chosen:
        bases = {stream: _basis(checkpoint, generator) for stream in basis_streams(checkpoint)}
    if checkpoint.shares_words and inner is not None:
        bases = dict(inner.bases)
    blocks = tuple(
        _block(checkpoint, chosen, condition, generator) for _ in range(checkpoint.blocks)
    )
    element = NetElement(blocks, bases, (None,) * checkpoint.blocks, encoder=inner)
    gauges = tuple(
        _gauge(checkpoint, element, number, chosen, generator)
        for number in range(checkpoint.blocks)
    )
    element = replace(
        element, gauges=gauges, hidden=_hidden(checkpoint, chosen, condition, generator)
    )
    element = replace(element, outside=_outside(checkpoint, element, chosen, generator))
    return settled(element, checkpoint)


def random_basis(size: int, generator: torch.Generator, *, fix_ones: bool) -> Tensor:
    """A random orthogonal matrix; one that fixes the vector of ones if asked."""
    if not fix_ones:
        return _orthogonal(size, generator)
    inner = torch.eye(size, dtype=torch.float64)
    inner[1:, 1:] = _orthogonal(size - 1, generator)
    # A reflection that carries the first unit vector to the direction of the ones.
    normal = -torch.full((size,), size**-0.5, dtype=torch.float64)
    normal[0] += 1
    normal /= torch.linalg.vector_norm(normal)
    inner = inner - 2 * torch.outer(inner @ normal, normal)
    turned: Tensor = inner - 2 * torch.outer(normal, normal @ inner)
    return turned


def _orthogonal(size: int, generator: torch.Generator) -> Tensor:
    return conditioned(1.0)((), size, generator)


def _basis(checkpoint: Checkpoint, generator: torch.Generator) -> Tensor:
    D = checkpoint.D
    if checkpoint.stream_kind is not StreamKind.ORTHOGONAL:
        order = torch.randperm(D, generator=generator)
        signs = {StreamKind.PERMUTED: 0, StreamKind.FLIPPED: 1}.get(checkpoint.stream_kind, D)
        sign = 1.0 - 2.0 * torch.randint(2, (signs,), generator=generator).double()
        return torch.eye(D, dtype=torch.float64)[order] * (sign if signs else 1.0)
    return random_basis(D, generator, fix_ones=checkpoint.settings.norm == "layer")


def _block(
    checkpoint: Checkpoint, chosen: set[str], condition: float, generator: torch.Generator
) -> GroupElement:
    spec = checkpoint.spec
    full = random_element(spec, generator=generator, matrices=conditioned(condition))
    moved = {label for part in chosen & set(_AXES) for label in _AXES[part]}
    still = GroupElement.identity(spec)
    return GroupElement(
        spec, {label: (full if label in moved else still).parts[label] for label in full.parts}
    )


def _gauge(
    checkpoint: Checkpoint,
    element: NetElement,
    number: int,
    chosen: set[str],
    generator: torch.Generator,
) -> Gauge | None:
    if not chosen & {"key_bias", "value_bias", "norms", "ones", "router"}:
        return None
    rules, batch = Rules.of(checkpoint), checkpoint.block(number)
    gauge = moved_gauge(checkpoint, element, number, batch, reading(checkpoint, number))
    for part, free in (("key_bias", rules.keys), ("value_bias", rules.values)):
        if part in chosen:
            drawn = {name: _normal(gauge.biases[name], generator) for name in sorted(free)}
            gauge = replace(gauge, biases={**gauge.biases, **drawn})
    if "router" in chosen:
        shared = {
            name: _in_reach(value, batch[name], generator) for name, value in gauge.shared.items()
        }
        gauge = replace(gauge, shared=shared)
    if "norms" in chosen:
        names = checkpoint.reading_norms(number)
        kept = gauge.norms[len(names) :]  # of the encoder, which has drawn its own
        drawn_norms = [
            norm
            if names[half] is None or checkpoint.gives_stream(names[half])
            else _norm(
                norm,
                generator,
                shifts=shifts_are_free(checkpoint),
                held=rules.holds(checkpoint.spec.block, half),
            )
            for half, norm in enumerate(gauge.norms[: len(names)])
        ]
        # Halves side by side may read one norm.
        drawn_norms = [drawn_norms[names.index(name)] for name in names]
        gauge = replace(gauge, norms=(*drawn_norms, *kept))
    if "ones" in chosen:
        written = not checkpoint.family.output_bias
        constants = [each.constant for each in checkpoint.spec.block.attentions]
        ones = {
            name: value
            if (written and name in constants) or name in rules.held
            else value
            + _normal(value, generator) * _size(batch[name]) * _room(checkpoint, gauge, name)
            for name, value in gauge.ones.items()
        }
        gauge = replace(gauge, ones=ones)
    return gauge


def _room(checkpoint: Checkpoint, gauge: Gauge, name: str) -> float:
    """How much of its own size may be laid over a tensor along the ones.

    What a reader stores is divided by the scale of its norm: where that is almost 0 (Whisper's is
    3e-6 for some coordinates), as much as usual would be beyond float16.
    """
    if name not in checkpoint.spec.block.readers:
        return 1.0
    return _room_beside(gauge.norms[checkpoint.spec.block.readers[name][1]][0])


def _room_beside(scale: Tensor) -> float:
    return min(1.0, 4 * scale.abs().min().item() / max(_size(scale), 1e-300))  # all may be 0


def _in_reach(shared: Tensor, router: Tensor, generator: torch.Generator) -> Tensor:
    """As large as the router's own numbers; its bias, which a file may have no place for, stays."""
    moved = shared + _normal(shared, generator) * _size(router)
    moved[-1] = shared[-1]
    return moved


def _norm(norm: Norm, generator: torch.Generator, *, shifts: bool, held: bool) -> Norm:
    scale, shift = invertible(norm[0]), norm[1]
    moved = scale * torch.exp2(
        torch.rand(scale.shape, generator=generator, dtype=scale.dtype) - 0.5
    )
    if held:  # a reader without bias keeps the constant β W only if β/γ stays
        return moved, shift / scale * moved
    # A shift that is far larger than the scale would take the digits of all that is read.
    size = min(0.3, 0.3 * _size(scale))
    return moved, (shift + size * _normal(shift, generator) if shifts else shift)


def _outside(
    checkpoint: Checkpoint, element: NetElement, chosen: set[str], generator: torch.Generator
) -> Outside | None:
    """The gauge outside the blocks, where a part asks for another than the moved one."""
    basis = bool(element.bases)
    if not (chosen & {"norms", "ones"}) and not basis:
        return None
    norm = last_norm_of(checkpoint, element)
    shared = any(head.tied for head in checkpoint.heads.values()) or checkpoint.tied_decoder
    if "norms" in chosen and last_norm_is_free(checkpoint):
        free = last_shift_is_free(checkpoint)
        norm = _norm(norm, generator, shifts=free, held=not free)
    ones: dict[str, Tensor] = {}
    if "ones" in chosen:
        for name in free_writers(checkpoint):
            entry = checkpoint.files.entry(name)
            axis = checkpoint.writers[name].axes.split().index("x")
            shape = [size for i, size in enumerate(entry.shape) if i != axis]
            size = _size_of(checkpoint, name)
            drawn_ones = size * torch.randn(shape, generator=generator, dtype=torch.float64)
            # By whole digits: numbers on a coarser grid, as sines and cosines in 16 bits, plus a
            # constant would all be rounded alike, and that is what a change that leans looks like.
            digit = _digit(checkpoint, name)
            means = checkpoint.files.read(name).double().mean(dim=axis)
            ones[name] = means + ((drawn_ones - means) / digit).round() * digit
        weights = free_heads(checkpoint)
        for head in checkpoint.heads.values():
            if head.weight in weights:
                sizes = _row_sizes(checkpoint, head.weight) * min(1.0, _size(norm[0]))
                sizes = sizes * _room_beside(norm[0])
                ones[head.name] = sizes * _normal(sizes, generator)
        if checkpoint.hidden_head:
            name = checkpoint.hidden_head[0]
            ones[name] = _size_of(checkpoint, name) * torch.randn(
                checkpoint.hidden_neurons, generator=generator, dtype=torch.float64
            )
    return Outside(norm, ones, untied=basis and bool(shared))


def _digit(checkpoint: Checkpoint, name: str) -> Tensor:
    """The last digit of numbers twice as large as the largest of a tensor."""
    largest = max(rows.abs().max().item() for rows in checkpoint.files.chunks(name, 4096))
    return 2 * last_digit(torch.tensor(largest, dtype=checkpoint.files.entry(name).dtype))


def _size_of(checkpoint: Checkpoint, name: str) -> float:
    """How much is laid over a tensor: not more than it has, and nothing over zeros."""
    rows = next(iter(checkpoint.files.chunks(name, 4096)))
    return min(0.3, rows.double().square().mean().sqrt().item())


def _row_sizes(checkpoint: Checkpoint, name: str) -> Tensor:
    """The same for each row: those of a pooler that nobody trained may be far smaller."""
    pieces = checkpoint.files.chunks(name, 4096)
    return torch.cat([p.double().square().mean(dim=-1).sqrt() for p in pieces]).clamp_max(0.3)


def _hidden(
    checkpoint: Checkpoint, chosen: set[str], condition: float, generator: torch.Generator
) -> tuple[Tensor, Tensor] | None:
    if checkpoint.hidden_head is None or not chosen & {"neurons", "scales"}:
        return None
    size = checkpoint.hidden_neurons
    order, scale = torch.arange(size), torch.ones(size, dtype=torch.float64)
    if "neurons" in chosen:
        order = torch.randperm(size, generator=generator)
    if "scales" in chosen:
        scale = conditioned(condition)((size,), 1, generator)[..., 0, 0].abs()
    return order, scale


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)


def _size(tensor: Tensor) -> float:
    return tensor.square().mean().sqrt().item()
