"""What attention and MLP of a block make of probes, reading the stored weights in slices.

No weights are folded or put into another order: scale and shift of norms go onto the probes, and
the axes on disk come from the family's table.
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.space import ACTIVATIONS, Attention, Rope, UnknownFunctionError, rms_norm

#: Bytes of a matrix that are in memory at a time; they stay in the processor's cache as well.
SLICE = 2**22


@dataclass(frozen=True)
class Written:
    """What a half of a block writes: Y = varying + constant, the constant the same for all tokens.

    For the MLP, whose biases are inside its activation, the constant is only its output bias.

    Attributes:
        varying: What depends on the token.
        constant: What does not.
        apart: The same where tokens do not mix, each attending to itself alone. Attention without
            skip connections makes all tokens alike, and then says little of what comes after.
    """

    varying: Float[Tensor, "p x"]
    constant: Float[Tensor, " x"]
    apart: Float[Tensor, "p x"]


def attention_of(
    checkpoint: Checkpoint,
    number: int,
    half: int,
    plain: Float[Tensor, "p x"],
    memory: Float[Tensor, "q x"] | None = None,
) -> Written:
    """Attention over the probes as one sequence, without the skip connection.

    The scores of each head are divided by their root mean square where it is above 1: a softmax
    that takes one token only would hide small changes of Q and K and amplify rounding. Without
    RoPE the constant part of the keys is left out, since softmax does not see it.

    Args:
        checkpoint: The network.
        number: Of the block.
        half: Which of its halves.
        plain: The probes.
        memory: What keys and values read, as `read_inputs` gives it; the same probes if None.
    """
    part = checkpoint.spec.block.halves[half].part
    assert isinstance(part, Attention)
    given = _read_inputs(checkpoint, number, half, plain)
    remembered = given if memory is None else memory
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    for matrix in checkpoint.family.matrices:
        if matrix.tensors[0] in part.readers:
            read = given if matrix.tensors[0] == part.query else remembered
            parts |= _read(checkpoint, number, matrix, read)
    heads, groups = checkpoint.settings.heads, checkpoint.settings.groups
    count = len(plain)
    q = torch.add(*parts[part.query]).view(count, groups, heads // groups, -1)  # t g m k
    rope = checkpoint.settings.rope if part.rotary else None
    looked_at = parts[part.key][0] if rope is None else torch.add(*parts[part.key])
    k = looked_at.view(len(looked_at), groups, -1)
    if "nQ" in checkpoint.spec.block.tensors:
        q, k = (_normed(checkpoint, number, *pair) for pair in ((q, "nQ"), (k, "nK")))
    if rope is not None:
        q, k = _turned(q, rope), _turned(k, rope)
    weights = _weights(q, k, causal=part.causal)
    values, constant = parts[part.value]
    v, constant = values.view(len(values), groups, -1), constant.view(groups, -1)
    mixed = torch.einsum("gmts,sgv->tgmv", weights, v).flatten(1)
    # Attention weights sum to 1, so a constant of the values stays as it is, once for each head.
    constant = constant.repeat_interleave(heads // groups, dim=0).flatten()
    given_rows = [mixed, constant[None]]
    if not checkpoint.skip:
        given_rows.append(v.repeat_interleave(heads // groups, dim=1).flatten(1))
    rows, bias = _write(checkpoint, number, part.output_weight, torch.cat(given_rows))
    return Written(rows[:count], rows[count] + bias, rows[-count:])


def mlp_of(checkpoint: Checkpoint, number: int, half: int, plain: Float[Tensor, "p x"]) -> Written:
    """The MLP of each probe, without the skip connection."""
    given = _read_inputs(checkpoint, number, half, plain)
    if checkpoint.spec.block.shifted:
        return _experts_of(checkpoint, number, given)
    parts: dict[str, tuple[Tensor, Tensor]] = {}
    for matrix in checkpoint.family.matrices:
        if matrix.tensors[0] in ("A", "gate", "up"):
            parts |= _read(checkpoint, number, matrix, given)
    act = ACTIVATIONS.get(checkpoint.settings.activation, F.gelu)
    if "gate" in parts:
        (gate, b), (up, c) = parts["gate"], parts["up"]
        name, hidden = "down", act(gate + b) * (up + c)
    else:
        name, hidden = "B", act(parts["A"][0] + parts["A"][1])
    rows, bias = _write(checkpoint, number, name, hidden)
    return Written(rows, bias, rows)


def _experts_of(checkpoint: Checkpoint, number: int, given: Float[Tensor, "q x"]) -> Written:
    """All experts, each by its share: a choice would jump where two are almost as good."""
    act = ACTIVATIONS.get(checkpoint.settings.activation, F.gelu)
    matrices = {matrix.tensors[0]: matrix for matrix in checkpoint.family.matrices}
    block = checkpoint.block_name(number)

    def through(tensor: str, expert: int, rows: Tensor, *, reads: bool = True) -> Tensor:
        matrix = matrices[tensor]
        name = block + matrix.weight.format(expert)
        return times_stored(checkpoint, name, matrix.single.axes, rows, reads=reads)

    scores = through("router", 0, given)
    shares = (scores[:-1] + scores[-1]).softmax(dim=-1)
    out = torch.zeros_like(given[:-1])
    for expert in range(shares.shape[1]):
        gate, up = (through(name, expert, given) for name in ("gate", "up"))
        hidden = act(gate[:-1] + gate[-1]) * (up[:-1] + up[-1])
        out += shares[:, expert, None] * through("down", expert, hidden, reads=False)
    return Written(out, out.new_zeros(out.shape[1]), out)


def times_stored(
    checkpoint: Checkpoint, name: str, axes: str, x: Float[Tensor, "p i"], *, reads: bool
) -> Float[Tensor, "p o"]:
    """X W for a stored W, in slices.

    Args:
        checkpoint: Whose.
        name: The tensor.
        axes: Its axes on disk, as in `Matrix`.
        x: Rows.
        reads: Whether the input of W is the stream, `x` or `z`, or all axes but that.
    """
    files, labels = checkpoint.files, axes.split()
    shape = files.entry(name).shape
    if len(shape) != 2:  # a zoo's: small, and the stream may stand in the middle
        stream = next(i for i, label in enumerate(labels) if label in "xz")
        flat = files.read(name).to(x.dtype).movedim(stream, 0).flatten(1)  # x, all others
        return x @ (flat if reads else flat.T)
    out_first = (labels[0] == "x") != reads
    out, at = x.new_zeros(len(x), shape[0 if out_first else 1]), 0
    for stored in files.chunks(name, slice_rows(checkpoint, name)):
        piece, to = stored.to(x.dtype), at + len(stored)
        if out_first:
            out[:, at:to] = x @ piece.T
        else:
            out.addmm_(x[:, at:to], piece)
        at = to
    return out


def slice_rows(checkpoint: Checkpoint, name: str) -> int:
    """How many rows of a tensor make a slice."""
    entry = checkpoint.files.entry(name)
    return max(1, SLICE * entry.shape[0] // max(entry.end - entry.begin, 1))


def _read_inputs(checkpoint: Checkpoint, number: int, half: int, plain: Tensor) -> Tensor:
    """Probes as a half of a block reads them."""
    return through_norm(checkpoint, checkpoint.reading_norms(number)[half], plain)


def through_norm(
    checkpoint: Checkpoint, name: str | None, plain: Float[Tensor, "p x"]
) -> Float[Tensor, "q x"]:
    """Probes times the scale of a norm, and below them its shift."""
    scale, shift = checkpoint.norm(name)
    return torch.cat([plain * scale.to(plain.dtype), shift.to(plain.dtype)[None]])


def _read(
    checkpoint: Checkpoint, number: int, matrix: Any, given: Float[Tensor, "q x"]
) -> dict[str, tuple[Tensor, Tensor]]:
    """For each tensor of a reading matrix what depends on the token, and what does not."""
    if "z" in matrix.axes:  # the bias is a last row, and belongs to the constant
        given = F.pad(given, (0, 1))
        given[-1, -1] = 1
    name = checkpoint.block_name(number)
    out = times_stored(checkpoint, name + matrix.weight, matrix.axes, given, reads=True)
    constant = out[-1]
    if matrix.bias and name + matrix.bias in checkpoint.files:
        constant = constant + checkpoint.files.read(name + matrix.bias).to(out.dtype)
    both = checkpoint.outputs(matrix, torch.cat([out[:-1], constant[None]]))
    return {tensor: (rows[:-1], rows[-1]) for tensor, rows in both.items()}


def _write(
    checkpoint: Checkpoint, number: int, tensor: str, rows: Float[Tensor, "p o"]
) -> tuple[Float[Tensor, "p x"], Float[Tensor, " x"]]:
    """Rows through a writing matrix, and its bias beside them."""
    matrix = next(m for m in checkpoint.family.matrices if m.tensors == (tensor,))
    name = checkpoint.block_name(number)
    out = times_stored(checkpoint, name + matrix.weight, matrix.axes, rows, reads=False)
    if matrix.bias and name + matrix.bias in checkpoint.files:
        return out, checkpoint.files.read(name + matrix.bias).to(out.dtype)
    return out, out.new_zeros(out.shape[1])


def _normed(checkpoint: Checkpoint, number: int, x: Tensor, tensor: str) -> Tensor:
    """Queries or keys after the norm of each head, or of all together."""
    scale = checkpoint.tensor(number, tensor).to(x.dtype).flatten()
    rows = x if len(scale) == x.shape[-1] else x.flatten(1)
    return (rms_norm(rows, checkpoint.settings.eps) * scale).view(x.shape)


def _weights(
    q: Float[Tensor, "t g m k"], k: Float[Tensor, "t g k"], *, causal: bool
) -> Float[Tensor, "g m t t"]:
    scores = torch.einsum("tgmk,sgk->gmts", q, k) / sqrt(q.shape[-1])
    allowed = torch.ones(scores.shape[-2:], dtype=scores.dtype)
    if causal:
        allowed = allowed.tril()
    mean = (scores * allowed).sum(-1, keepdim=True) / allowed.sum(-1, keepdim=True)
    centred = (scores - mean) * allowed
    size = (centred.square().sum((-2, -1), keepdim=True) / allowed.sum()).sqrt()
    return (centred / size.clamp_min(1)).masked_fill(allowed == 0, -torch.inf).softmax(dim=-1)


def _turned(x: Float[Tensor, "t ..."], rope: Rope) -> Float[Tensor, "t ..."]:
    """Queries or keys at positions 0, 1, …: coordinates i and i + k/2 turn together."""
    half = x.shape[-1] // 2
    if rope.kind not in ("default", "linear", "llama3"):
        # Kinds that stretch long contexts; any frequencies are invariant, and the kind is part of
        # the fingerprint's shape.
        rope = replace(rope, kind="default")
    try:
        frequencies = rope.frequencies(2 * half)
    except UnknownFunctionError as error:
        raise CheckpointError(str(error)) from None
    angles = torch.outer(torch.arange(len(x)).double(), frequencies)  # t k/2
    angles = angles.view(len(x), *(1,) * (x.dim() - 2), half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
