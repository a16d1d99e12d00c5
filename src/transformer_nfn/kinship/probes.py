"""What fingerprints are taken with: seeded signs, and tokens made of a checkpoint's own embedding.

Tokens of the embedding turn with the basis of the residual stream, so all inner products of what
blocks make of them are free of it. They are made of the same rows in all files of one vocabulary.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_256
from math import prod

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity import seen
from transformer_nfn.space import Inputs, sine_positions

#: Tokens; a sequence of them is what attention sees.
COUNT = 16
#: Part of every label, so that another version of the numbers is another set of them.
SEED = "transformer-nfn fingerprint 3"
#: Words that tokens are made of, as many of these as there are: a vocabulary may grow a little.
_ROWS = (64, 1024)
#: Signs that are kept, not made again.
_SMALL = 2**14


@dataclass(frozen=True)
class Probes:
    """Tokens as they are written, and as a norm without scale and shift gives them.

    Attributes:
        written: What the embedding writes; under LayerNorm less its mean.
        plain: The same with root mean square 1.
    """

    written: Float[Tensor, "p x"]
    plain: Float[Tensor, "p x"]


def signs(label: str, *shape: int) -> Float[Tensor, "..."]:
    """Seeded +1 and -1, the same on every machine and with every version of torch.

    Example:
        >>> signs("example", 2, 4).tolist()
        [[1.0, 1.0, -1.0, 1.0], [-1.0, -1.0, -1.0, -1.0]]
    """
    count = prod(shape)
    return (_made if count > _SMALL else _remembered)(label, shape)


def _made(label: str, shape: tuple[int, ...]) -> Tensor:
    count = prod(shape)
    digest = shake_256(f"{SEED}: {label}".encode()).digest(-(-count // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8), count=count)
    return torch.from_numpy(bits).view(shape).float() * 2 - 1


#: Files of one shape, of which a hub has many, need the same ones: 64 kB each at most.
_remembered = lru_cache(maxsize=256)(_made)


def mixed(rows: Float[Tensor, "r x"], count: int) -> Float[Tensor, "p x"]:
    """Seeded sums ± of rows, about as large as one of them: no few rows decide what they are.

    A row has its signs whatever rows come after it.
    """
    weights = signs("rows", len(rows), count).double().T
    found: Tensor = weights @ rows.double() / len(rows) ** 0.5
    return found


def make_probes(checkpoint: Checkpoint, dtype: torch.dtype) -> Probes:
    """The tokens of a checkpoint, computed in float64 and given in `dtype`.

    Sums of word embeddings where there are any, of the first 64 or 1,024, so that a vocabulary may
    grow up to the next of these numbers.
    Half patches and half positions for ViT; for nets of a zoo the rows of the embedding, its bias
    and fixed positions. Nets that read vectors have none, and their stream has the vectors' own
    basis, so fixed tokens do.

    Raises:
        CheckpointError: If nothing is embedded, and the basis of the stream is anybody's.
    """
    rows = _sine_rows(checkpoint) if checkpoint.family.fixed_positions else _own_rows(checkpoint)
    written = seen(checkpoint, rows)
    return Probes(written.to(dtype), plain_norm(written).to(dtype))


def plain_norm(rows: Float[Tensor, "t x"]) -> Float[Tensor, "t x"]:
    """Root mean square 1; ε would break the symmetries of scale, so it is next to nothing."""
    return rows * rows.square().mean(dim=-1, keepdim=True).add(1e-30).rsqrt()


def stored_rows(checkpoint: Checkpoint, name: str) -> Float[Tensor, "t x"]:
    """A writer outside the blocks as it is stored, a row for each thing it writes."""
    axis = checkpoint.writers[name].axes.split().index("x")
    return checkpoint.files.read(name).movedim(axis, -1).reshape(-1, checkpoint.D)


def _own_rows(checkpoint: Checkpoint) -> Float[Tensor, "p x"]:
    files = checkpoint.files
    sources = [
        name for name in checkpoint.writers if np.prod(files.entry(name).shape) > checkpoint.D
    ]
    if not checkpoint.writers and checkpoint.family.inputs is Inputs.VECTORS:
        return signs("vectors", COUNT, checkpoint.D).double()
    if not sources:
        raise CheckpointError(
            f"{checkpoint.path} has no embedding, and so no tokens for a fingerprint"
        )
    first = sources[0]
    if checkpoint.writers[first].axes == "t x":
        rows = files.entry(first).shape[0]
        fitting = [count for count in _ROWS if count <= rows]
        return mixed(files.slice(first, 0, max(fitting, default=rows)), COUNT)
    each = -(-COUNT // len(sources))
    return torch.cat([mixed(stored_rows(checkpoint, name), each) for name in sources])[:COUNT]


def _sine_rows(checkpoint: Checkpoint) -> Float[Tensor, "p x"]:
    D = checkpoint.D
    positions = sine_positions(COUNT, D).double()
    if not checkpoint.writers:
        return signs("word vectors", COUNT, D).double() + positions
    weight, bias = (stored_rows(checkpoint, name) for name in checkpoint.writers)
    return mixed(weight, COUNT) + bias.double() + positions
