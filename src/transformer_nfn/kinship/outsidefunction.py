"""What stands outside the blocks, for fingerprints: every row of every tensor counts."""

from collections.abc import Iterator
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Head
from transformer_nfn.identity import seen
from transformer_nfn.kinship.blockfunction import times_stored
from transformer_nfn.kinship.probes import plain_norm, signs, stored_rows

#: Seeded sums of the rows of a tensor.
SUMS = 8
#: Numbers of a tensor that are summed at a time.
NUMBERS = 2**18


def embedding_of(checkpoint: Checkpoint, dtype: torch.dtype) -> Iterator[Float[Tensor, "u x"]]:
    """For each writer seeded sums ± of all its rows, in the basis of the stream."""
    for name, writer in checkpoint.writers.items():
        label = name.removeprefix(checkpoint.prefix)
        if writer.axes == "t x":
            rows = checkpoint.files.entry(name).shape[0]
            weights = signs(label, rows, SUMS).to(dtype).T / sqrt(rows)
            # [t, x] is a matrix that reads t and writes the stream.
            yield seen(checkpoint, times_stored(checkpoint, name, "t x", weights, reads=False))
        else:
            stored = stored_rows(checkpoint, name).to(dtype)
            weights = signs(label, len(stored), SUMS).to(dtype).T / sqrt(len(stored))
            yield seen(checkpoint, weights @ stored)


def heads_of(
    checkpoint: Checkpoint, plain: Float[Tensor, "p x"]
) -> Iterator[tuple[str, Float[Tensor, "p o"]]]:
    """By name what the heads say of probes, the classifier of a zoo's net, and all other tensors.

    A checkpoint without a head gives its hidden states, and then its last norm counts.
    """
    if checkpoint.hidden_head:
        first, bias1, second, bias2 = (
            checkpoint.files.read(name).to(plain.dtype) for name in checkpoint.hidden_head
        )
        yield "classifier", (plain @ first + bias1).relu() @ second + bias2
        return
    if checkpoint.raw and checkpoint.settings.norm == "layer":  # but heads read a norm's output
        plain = plain_norm(plain - plain.mean(dim=-1, keepdim=True))
    scale, shift = (part.to(plain.dtype) for part in checkpoint.norm(checkpoint.last_norm))
    read = plain * scale + shift
    for head in checkpoint.heads.values():
        yield head.name.removeprefix(checkpoint.prefix), _head(checkpoint, head, read)
    if checkpoint.gives_hidden_states and checkpoint.last_norm:
        products = read @ torch.cat([read, plain]).T / sqrt(read.shape[1])
        yield "last norm", products
    others = dict(_others(checkpoint))
    if others:
        yield "others", torch.stack([others[name] for name in sorted(others)])


def _head(checkpoint: Checkpoint, head: Head, read: Float[Tensor, "p x"]) -> Float[Tensor, "p u"]:
    """Seeded sums ± of a head's outputs for each probe."""
    rows = checkpoint.files.entry(head.weight).shape[0]
    outputs = times_stored(checkpoint, head.weight, "o x", read, reads=True)
    if head.bias:
        outputs = outputs + checkpoint.files.read(head.bias).to(read.dtype)
    weights = signs(head.name.removeprefix(checkpoint.prefix), rows, SUMS).to(read.dtype)
    return outputs @ weights / sqrt(rows)


def _others(checkpoint: Checkpoint) -> Iterator[tuple[str, Float[Tensor, " u"]]]:
    """Seeded sums ± of tensors that do not touch the stream; a shared decoder as if it was here."""
    files = checkpoint.files
    named = {name: name for name in checkpoint.others} | checkpoint.tied_decoder
    for name, stored in named.items():
        entry = files.entry(stored)
        if not entry.dtype.is_floating_point or not entry.shape or 0 in entry.shape:
            continue
        label = name.removeprefix(checkpoint.prefix)
        total = torch.zeros(SUMS, dtype=torch.float64)
        # Slices of a number of numbers, not bytes: the signs must not depend on the dtype.
        rows = max(1, NUMBERS * entry.shape[0] // torch.Size(entry.shape).numel())
        for number, piece in enumerate(files.chunks(stored, rows)):
            flat = piece.flatten().float()
            total += (signs(f"{label} {number}", SUMS, len(flat)) @ flat).double()
        yield label, total / sqrt(torch.Size(entry.shape).numel())
