"""What stands outside the blocks, as it is compared: rows that are written, the classifier."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.rounding import spread
from transformer_nfn.space import sine_positions

#: Rows of a slice: of a large vocabulary only some rows are in memory.
ROWS = 4096
#: Rows of an embedding that its basis is found from, as a multiple of their length.
_SAMPLE = 16


def row_slices(checkpoint: Checkpoint, name: str) -> Iterator[tuple[Tensor, Tensor]]:
    """What a writer outside the blocks writes, float64, some rows at a time.

    With each slice comes, for each row, the mean square of what rounding did to it.
    """
    axes = checkpoint.writers[name].axes.split()
    if axes[-1] == "x" and len(axes) == 2:
        for rows in checkpoint.files.chunks(name, ROWS):
            yield rows.double(), _off(rows)
        return
    whole = checkpoint.files.read(name).movedim(axes.index("x"), -1).reshape(-1, checkpoint.D)
    rows = _with_positions(checkpoint, name, whole.double())
    yield rows, _off(whole).expand(len(rows))


def sampled_rows(checkpoint: Checkpoint, name: str) -> tuple[Tensor, Tensor]:
    """All rows of a small writer, and of a large one enough to find its basis from."""
    count = checkpoint.files.entry(name).shape[0]
    wanted = _SAMPLE * checkpoint.D
    if checkpoint.writers[name].axes != "t x" or count <= wanted:
        rows, offs = zip(*row_slices(checkpoint, name), strict=True)
        return torch.cat(rows), torch.cat(offs)
    places = torch.linspace(0, count - 1, wanted).long().tolist()
    stored = checkpoint.files.rows(name, places)
    return stored.double(), _off(stored)


def _off(rows: Tensor) -> Tensor:
    """The mean square of what rounding did to each row."""
    return spread(rows).square().sum(dim=1)


def _with_positions(checkpoint: Checkpoint, name: str, rows: Tensor) -> Tensor:
    """Fixed positions are written with the bias."""
    if not checkpoint.family.fixed_positions or checkpoint.writers[name].axes != "x":
        return rows
    return rows + sine_positions(checkpoint.settings.size("tokens"), checkpoint.D).double()


#: Of a zoo net's classifier what each hidden neuron reads, its bias last, and what it writes.
Classifier = tuple[Tensor, Tensor]


def classifier(checkpoint: Checkpoint, basis: Tensor | None = None) -> Classifier:
    """The classifier's neurons, "a x 1" and "a o 1", in a basis of the last stream."""
    assert checkpoint.hidden_head is not None
    w1, b1, w2, _ = (checkpoint.files.read(name).double() for name in checkpoint.hidden_head)
    w1 = w1 - w1.mean(dim=0)
    if basis is not None:
        w1 = basis.T @ w1
    return torch.cat([w1, b1[None]]).T.unsqueeze(-1), w2.unsqueeze(-1)
