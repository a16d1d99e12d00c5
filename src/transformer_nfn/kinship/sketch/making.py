"""A sketch of a checkpoint: some kilobytes by which its kin are found among very many files.

Units keep their numbers when a network is fine-tuned, quantised or merged. So the first 128 hidden
neurons of each block, each of length 1 and less their mean, are summed with seeded signs by their
numbers and by the coordinates they read: 256 sums, of which those of kin are almost parallel. If
the neurons of one file stand in a random order, as in strangers, the expected product of two such
vectors is exactly 0, since neurons less their mean sum up to nothing. Divided by their lengths it
has a standard deviation of about one over the root of 256, and a little more where neurons are few
and short.

Where neurons were cut away the others lose their numbers. So beside these sums there are those of
products of two coordinates, in which neurons may stand in any order; and sums of some words, by
their rows. None depends on the depth or on the size of the vocabulary, and the sum over all blocks
is a first look that takes 448 bytes.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.jobs import one_thread
from transformer_nfn.kinship.descent.counting import spread
from transformer_nfn.kinship.probes import signs, stored_rows
from transformer_nfn.kinship.sketch.reading import UNITS, FirstUnits

#: Sums of neurons by their numbers, in any order, and of words.
NUMBERED, ORDERLESS, WORDS = 256, 128, 64
#: What is kept of a block, and of the network.
BLOCK, NETWORK = NUMBERED + ORDERLESS, NUMBERED + ORDERLESS + WORDS
#: Most blocks that are kept one by one: with the network at most 14,273 bytes.
BLOCKS = 36
#: One standard deviation of a sum of random signs, as it is stored.
_STEP = 24.0
#: Rows of the words: dense at first, and up to the largest vocabularies.
_ROWS = np.unique(np.geomspace(1, 2**18, 340).astype(np.int64)) - 1


@dataclass(frozen=True, eq=False)
class Sketch:
    """What is kept of a checkpoint.

    Attributes:
        kind: The axis of the neurons, the tensor that reads for them, and how much it reads; only
            sketches of one kind are compared.
        network: Sums over all blocks, and of words; these are 0 where there are none.
        blocks: Sums of single blocks, evenly spread if there are very many.
        units: Neurons of a block that were summed.
    """

    kind: str
    network: Int8[np.ndarray, "448"]
    blocks: Int8[np.ndarray, "l 384"]
    units: int

    def to_bytes(self) -> bytes:
        """The numbers, one after the other."""
        return bytes([self.units]) + self.network.tobytes() + self.blocks.tobytes()

    @staticmethod
    def from_bytes(kind: str, content: bytes) -> "Sketch":
        """The inverse of `to_bytes`.

        Raises:
            ValueError: If these are no sketch's.
        """
        blocks, rest = divmod(len(content) - 1 - NETWORK, BLOCK)
        if rest or not 1 <= blocks <= BLOCKS or not 2 <= content[0] <= UNITS or not width_of(kind):
            raise ValueError(f"a sketch of {kind[:40]!r} has no such {len(content)} bytes")
        numbers = np.frombuffer(content, dtype=np.int8)[1:]
        return Sketch(kind, numbers[:NETWORK], numbers[NETWORK:].reshape(blocks, BLOCK), content[0])


def width_of(kind: str) -> int:
    """How many numbers a neuron of a kind reads; 0 if it is no kind.

    Example:
        >>> width_of("a gate 4096")
        4096
    """
    words = kind.split(" ")
    return int(words[-1]) if len(words) == 3 and words[-1].isdecimal() else 0


@torch.no_grad()
def sketch(checkpoint: Checkpoint) -> Sketch | None:
    """The sketch of a checkpoint; None if its blocks have no neurons that could be numbered.

    An encoder's blocks come before those of its decoder. Only the first neurons are read.
    """
    networks = [one for one in (checkpoint.encoder, checkpoint) if one is not None]
    firsts = [first for one in networks if (first := FirstUnits.of(one)) is not None]
    kinds = {f"{first.label} {first.tensor} {checkpoint.D}" for first in firsts}
    if len(firsts) < len(networks) or len(kinds) != 1:
        return None
    with one_thread("cpu"):
        rows = [
            first.read(one, number)
            for one, first in zip(networks, firsts, strict=True)
            for number in range(one.blocks)
        ]
        if min(each.shape[:2].numel() for each in rows) < 2:
            return None
        blocks = torch.stack([torch.cat(_unit_parts(unit_sums(each))) for each in rows])
        network = torch.cat([*_unit_parts(blocks.sum(dim=0)), _word_sums(checkpoint)])
    parts = torch.cat(_unit_parts(blocks[spread(len(blocks), BLOCKS)]), dim=1)
    return Sketch(kinds.pop(), _stored(network), _stored(parts), rows[-1].shape[:2].numel())


def unit_sums(rows: Float[Tensor, "g u w"]) -> Float[Tensor, "384"]:
    """Sums by number and in any order of units, each of length 1 and then less their mean."""
    units = torch.nn.functional.normalize(rows - rows.mean(dim=1, keepdim=True), dim=-1)
    units = (units - units.mean(dim=1, keepdim=True)).flatten(0, 1)
    number, read, turned = _signs(units.shape[1])
    seen = units @ read
    numbered = (number[: len(units)] * seen).sum(dim=0)
    # Without the squares of coordinates: they are not alike where a formula writes positions.
    orderless = (seen[:, :ORDERLESS] * (units @ (read[:, :ORDERLESS] * turned))).sum(dim=0)
    return torch.cat([numbered, orderless - units.square().sum(dim=0) @ turned])


def _word_sums(checkpoint: Checkpoint) -> Float[Tensor, "64"]:
    """The same of some rows of the words, or of what else writes the stream."""
    words = _words(checkpoint)
    if words is None or len(words) < 2:
        return torch.zeros(WORDS)
    words = words - words.mean(dim=1, keepdim=True)  # a row's mean has a meaning of its own
    units = torch.nn.functional.normalize(words - words.mean(dim=0), dim=-1)
    row = signs("sketch rows", len(_ROWS), WORDS)[: len(units)]
    return _unit((row * (units @ signs("sketch words", checkpoint.D, WORDS))).sum(dim=0))


def _words(checkpoint: Checkpoint) -> Float[Tensor, "r x"] | None:
    """Some rows of the words, or of the first other writer that has several."""
    for name, writer in checkpoint.writers.items():
        size = torch.Size(checkpoint.files.entry(name).shape).numel()
        rows = _ROWS[size // checkpoint.D > _ROWS]
        if writer.axes == "t x":
            return checkpoint.files.rows(name, rows.tolist()).float()
        if len(rows) > 1:
            return stored_rows(checkpoint, name)[rows].float()
    return None


@lru_cache(maxsize=8)
def _signs(width: int) -> tuple[Tensor, Tensor, Tensor]:
    """By the numbers of neurons, by coordinates, and by these once more."""
    return (
        signs("sketch units", UNITS, NUMBERED),
        signs("sketch coordinates", width, NUMBERED),
        signs("sketch turned", width, ORDERLESS),
    )


def _unit(vector: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vector, dim=-1)


def _unit_parts(sums: Float[Tensor, "*l 384"]) -> list[Tensor]:
    """Sums by number and sums in any order, each of length 1."""
    return [_unit(sums[..., :NUMBERED]), _unit(sums[..., NUMBERED:])]


def _stored(parts: Float[Tensor, "*l n"]) -> Int8[np.ndarray, "*l n"]:
    """As bytes; what is beyond five standard deviations is cut off."""
    sizes = torch.tensor([NUMBERED] * NUMBERED + [ORDERLESS] * ORDERLESS + [WORDS] * WORDS)
    steps = parts * sizes[: parts.shape[-1]].sqrt() * _STEP
    stored: np.ndarray = steps.round().clamp(-127, 127).to(torch.int8).numpy()
    return stored
