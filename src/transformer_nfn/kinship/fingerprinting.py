"""Fingerprints: a few numbers for each part of a checkpoint that no symmetry of it changes.

Every half of a block is run on the same probes n, tokens of the file's own embedding. What it
writes, Y, is a function, so heads, neurons, matrices between Q and K or V and O, scales and biases
that cancel are gone. Inner products Y nᵀ and Y Yᵀ are free of the basis of the residual stream, and
seeded signs and sizes make 16 numbers of them. The layers outside the blocks are treated alike.

In the paper's nets, which have no skip connection, each LayerNorm has a basis of its own: there
each half's probes are made of what the half before writes, see `Written.apart`.

Since the probes are the same for all blocks of a residual net, a fingerprint of some blocks reads
only these and the first words of the embedding. The paper's nets are always read whole.
"""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, read_json_object
from transformer_nfn.identity import seen
from transformer_nfn.jobs import one_thread
from transformer_nfn.kinship.blockfunction import attention_of, mlp_of, through_norm
from transformer_nfn.kinship.outsidefunction import embedding_of, heads_of
from transformer_nfn.kinship.probes import Probes, make_probes, plain_norm, signs
from transformer_nfn.kinship.sketch.making import Sketch, sketch
from transformer_nfn.space import Attention

#: Numbers for each part.
WIDTH = 16
#: Which blocks may be chosen, beside "all": numbers of l blocks.
CHOICES: Mapping[str, Callable[[int], int]] = MappingProxyType(
    {"first": lambda _: 0, "middle": lambda count: count // 2, "last": lambda count: count - 1}
)


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """What is kept of a checkpoint.

    Attributes:
        path: Where it was.
        shape: Family and sizes; only fingerprints of one shape are compared.
        dtype: How its blocks are stored, such as "float32".
        parts: 16 numbers for each part: ``"attention 0"``, ``"mlp 0"``, …, ``"embedding"``, and
            each head by its name.
        sketch: By which kin are found that have other depths or were changed much; None where
            there are no neurons, or only some blocks were read.
    """

    path: str
    shape: str
    dtype: str
    parts: Mapping[str, Float[Tensor, "16"]]
    sketch: Sketch | None = None

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        numbers = {name: value.tolist() for name, value in self.parts.items()}
        found = {"path": self.path, "shape": self.shape, "dtype": self.dtype, "parts": numbers}
        if self.sketch is not None:
            content = b64encode(self.sketch.to_bytes()).decode()
            found["sketch"] = {"kind": self.sketch.kind, "numbers": content}
        return found

    @staticmethod
    def from_json(text: str) -> "Fingerprint":
        """The inverse of `to_json`, from its text.

        Raises:
            CheckpointError: If it is no fingerprint.
        """
        given = read_json_object(text.encode(errors="surrogatepass"), "a fingerprint")
        words = [given.get(name) for name in ("path", "shape", "dtype")]
        parts = given.get("parts")
        if (
            not all(isinstance(word, str) for word in words)
            or not isinstance(parts, dict)
            or not all(_are_numbers(value) for value in parts.values())
        ):
            raise CheckpointError(
                f"a fingerprint has path, shape, dtype, and {WIDTH} finite numbers for each part"
            )
        stacked = {name: torch.tensor(value, dtype=torch.float64) for name, value in parts.items()}
        drawn = _read_sketch(given.get("sketch"))
        return Fingerprint(given["path"], given["shape"], given["dtype"], stacked, drawn)


def _read_sketch(given: object) -> Sketch | None:
    if given is None:
        return None
    try:
        if isinstance(given, dict) and isinstance(given.get("kind"), str):
            content = b64decode(given["numbers"], validate=True)
            return Sketch.from_bytes(given["kind"], content)
    except (KeyError, TypeError, ValueError):
        pass
    raise CheckpointError("a sketch has a kind, and its numbers in base 64")


def _are_numbers(value: object) -> bool:
    """16 of them; integers that are larger than any float are none."""
    return (
        isinstance(value, list)
        and len(value) == WIDTH
        and all(type(n) in (int, float) and abs(n) < 1e300 for n in value)
    )


def fingerprint(
    checkpoint: Checkpoint | str | Path,
    progress: Callable[[int], None] = lambda _: None,
    *,
    blocks: str = "all",
) -> Fingerprint:
    """The fingerprint of a checkpoint; weights are read once and in slices.

    Args:
        checkpoint: An open one, or the path or URL of one.
        progress: Called with the number of blocks that are done.
        blocks: "all", or some of "first", "middle" and "last" with commas. Then only these are
            read, and neither heads nor the embedding but for its first words. Such fingerprints are
            of another shape, and compared only with each other.

    Raises:
        CheckpointError: If it cannot be read, has no embedding, or is not finite.
    """
    if not isinstance(checkpoint, Checkpoint):
        with Checkpoint(checkpoint) as opened:
            return fingerprint(opened, progress, blocks=blocks)
    chosen = chosen_blocks(checkpoint, blocks)
    dtype = torch.float64 if checkpoint.dtype == torch.float64 else torch.float32
    # Threads cost more than they give to products of 16 rows, and they change the rounding.
    with torch.no_grad(), one_thread("cpu"):
        parts = dict(_parts(checkpoint, dtype, progress, chosen))
    for name, value in parts.items():
        if not value.isfinite().all():
            raise CheckpointError(f"{checkpoint.path}: {name} has weights that are not finite")
    stored = str(checkpoint.dtype).removeprefix("torch.")
    shape = shape_of(checkpoint) + ("" if chosen is None else f" read={blocks}")
    drawn = sketch(checkpoint) if chosen is None else None
    return Fingerprint(str(checkpoint.path), shape, stored, parts, drawn)


def check_choice(blocks: str) -> list[str]:
    """The words of a choice of blocks.

    Raises:
        CheckpointError: If it is none.
    """
    words = blocks.split(",")
    if blocks != "all" and not (words == [word for word in CHOICES if word in words]):
        raise CheckpointError(
            f"blocks are all, or some of {','.join(CHOICES)} in this order; got {blocks!r:.60}"
        )
    return words


def chosen_blocks(checkpoint: Checkpoint, blocks: str) -> list[int] | None:
    """Numbers of the blocks that are read; None if the checkpoint is read whole."""
    words = check_choice(blocks)
    if blocks == "all" or not checkpoint.skip:
        return None
    return sorted({CHOICES[word](checkpoint.blocks) for word in words})


def shape_of(checkpoint: Checkpoint) -> str:
    """Family and sizes in a line: what two files must share; a vocabulary may be extended."""
    sizes = {**checkpoint.spec.sizes, "blocks": checkpoint.blocks}
    words = [f"{name}={size}" for name, size in sizes.items()]
    rope = checkpoint.settings.rope
    if rope and rope.kind != "default":
        words += [f"rope={rope.kind}", *(f"{name}={value:g}" for name, value in rope.options)]
    return " ".join([checkpoint.family.name, *words])


def _parts(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Callable[[int], None],
    chosen: list[int] | None,
) -> Iterator[tuple[str, Tensor]]:
    probes = make_probes(checkpoint, dtype)
    plain = probes.plain
    skip, memory = checkpoint.skip, None
    if (encoder := checkpoint.encoder) is not None:
        memory = through_norm(encoder, encoder.last_norm, make_probes(encoder, dtype).plain)
        if chosen is None:
            for name, value in _parts(encoder, dtype, lambda _: None, None):
                yield f"encoder {name}", value
    for number in range(checkpoint.blocks) if chosen is None else chosen:
        for place, half in enumerate(checkpoint.spec.block.halves):
            if not isinstance(half.part, Attention):
                name, written = "mlp", mlp_of(checkpoint, number, place, plain)
            elif half.part.elsewhere:
                name, written = "cross", attention_of(checkpoint, number, place, plain, memory)
            else:
                name, written = "attention", attention_of(checkpoint, number, place, plain)
            if not skip:  # what follows is in another basis, and so must the probes be
                apart = seen(checkpoint, written.apart, inside=True)
                plain = plain_norm(apart - apart.mean(dim=0))
            varying = seen(checkpoint, written.varying, inside=True)
            total = varying + seen(checkpoint, written.constant[None], inside=True)
            yield f"{name} {number}", basis_free(total, varying, plain)
        progress(number + 1)
    if chosen is None:
        yield from _outside(checkpoint, probes, plain)
    else:
        yield "tokens", basis_free(probes.written, probes.written, probes.plain)


def _outside(
    checkpoint: Checkpoint, probes: Probes, last: Float[Tensor, "p x"]
) -> Iterator[tuple[str, Tensor]]:
    if checkpoint.writers:
        rows = torch.cat([probes.written, *embedding_of(checkpoint, probes.written.dtype)])
        yield "embedding", basis_free(rows, rows, probes.plain)
    for name, value in heads_of(checkpoint, last):
        yield name, reduced(name, value, WIDTH)


def basis_free(
    total: Float[Tensor, "r x"],
    varying: Float[Tensor, "r x"],
    plain: Float[Tensor, "p x"],
) -> Float[Tensor, "16"]:
    """16 numbers of rows that no orthogonal basis changes, and that grow with the rows' size.

    Of Y Yᵀ the rows' mean is taken out first, since a large constant would hide all else, and the
    diagonal counts less, since it only says how long the rows are.

    Args:
        total: Y.
        varying: Y up to a constant.
        plain: Rows n in the same basis.
    """
    D = total.shape[-1]
    centred = (varying - varying.mean(dim=0)).double()
    size = centred.square().mean().sqrt().clamp_min(1e-300)
    gram = centred @ centred.T / (D**0.5 * size)
    gram.diagonal().mul_(D**-0.5)
    products = total.double() @ plain.double().T / D**0.5
    half = WIDTH // 2
    return torch.cat([reduced("products", products, half), reduced("gram", gram, WIDTH - half)])


def reduced(label: str, values: Tensor, width: int) -> Float[Tensor, " w"]:
    """Seeded sums ± of all values, about as large as one of them, and last twice their size.

    Few sums may all happen to be small, and then what rounding does to them looks large beside
    them. Beside the size of all values it does not.
    """
    flat = values.flatten().double()
    sums = signs(f"{label} {len(flat)}", width - 1, len(flat)).double() @ flat
    return torch.cat([sums, 2 * flat.norm()[None]]) / sqrt(len(flat))
