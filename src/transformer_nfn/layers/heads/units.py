"""One block as heads and neurons, whatever its declaration calls them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from transformer_nfn.space import BlockSpec, Kind, ShapeError, WeightBatch

#: Tensors that read the attention's output for the neurons, and that write for them.
_READERS = ("A", "gate", "up")
_WRITERS = ("B", "down")
#: What a block writes whatever it reads.
_CONSTANTS = ("bB", "bO")
_NEURONS = ("free permuted", "permuted permuted")
#: The kinds of axes that each of them may have.
_KINDS = {
    "Q": ("permuted free linear", "permuted permuted free linear"),
    "K": ("permuted free linear",),
    "V": ("permuted free linear",),
    "O": ("permuted linear free", "permuted linear permuted", "permuted permuted linear free"),
    **dict.fromkeys(_READERS, _NEURONS),
    **dict.fromkeys(_WRITERS, ("permuted free",)),
    "bA": ("permuted",),
    **dict.fromkeys(_CONSTANTS, ("free",)),
}


@dataclass(frozen=True)
class Units:
    """Heads and neurons of one block of n networks, in float64.

    float64, since numbers of a head are computed from Q Qᵀ and the like: these square the condition
    number of a head, which a group element can make as large as it likes.

    Attributes:
        Q: Of each head; the last row of z is a bias where the block has one.
        K: The same; heads of a group have the same.
        V: The same.
        O: What each head writes.
        readers: The columns that a neuron reads with: A, or gate and up.
        writer: The rows that the neurons write.
        bias: bA, if the block has it.
        constants: bB and bO, if the block has them.
        one_basis: Whether O writes in the basis that Q, K and V read in. The paper's does not: the
            group permutes what it writes.
    """

    Q: Float64[Tensor, "n h z k"]
    K: Float64[Tensor, "n h z k"]
    V: Float64[Tensor, "n h z v"]
    O: Float64[Tensor, "n h v x"]
    readers: tuple[Float64[Tensor, "n x a"], ...]
    writer: Float64[Tensor, "n a x"]
    bias: Float64[Tensor, "n a"] | None
    constants: tuple[Float64[Tensor, "n x"], ...]
    one_basis: bool

    @property
    def without_bias_row(self) -> tuple[Float64[Tensor, "n h x _"], ...]:
        """Q, K and V as they meet what is written: a bias meets nothing."""
        width = self.O.shape[-1]
        return self.Q[:, :, :width], self.K[:, :, :width], self.V[:, :, :width]


def check_units(spec: BlockSpec) -> None:
    """Refuse a block that has no such heads and neurons.

    Raises:
        ShapeError: If a tensor is missing, has axes of other kinds, or is none of theirs: it would
            be left out without a word.
    """
    block = spec.block
    for wanted in (("Q",), ("K",), ("V",), ("O",), _READERS, _WRITERS):
        if not set(wanted) & set(block.tensors):
            raise ShapeError(
                f"block {block.name!r} has no tensor {' or '.join(wanted)}: its heads and "
                "neurons cannot be read one by one"
            )
    for name, allowed in _KINDS.items():
        kinds = " ".join(
            block.axes[index.label].kind.value for index in block.tensors.get(name, ())
        )
        if kinds and kinds not in allowed:
            raise ShapeError(
                f"{name} of block {block.name!r} has axes {kinds}: heads and neurons are read one "
                f"by one where it has {' or '.join(allowed)}"
            )
    if unknown := sorted(set(block.tensors) - set(_KINDS)):
        raise ShapeError(
            f"block {block.name!r} has {', '.join(unknown)}, which no head or neuron owns: "
            f"heads and neurons are read one by one where it has only {', '.join(_KINDS)}"
        )


def same_basis(spec: BlockSpec) -> bool:
    """Whether the heads of a block write in the basis that they read in."""
    return spec.block.axes[spec.block.tensors["O"][-1].label].kind is Kind.FREE


def units_of(batch: WeightBatch, block: int) -> Units:
    """The heads and neurons of one block.

    Raises:
        ShapeError: If the batch has more than one channel, or no such units.
    """
    if batch.channels != 1:
        raise ShapeError(f"{batch.channels} channels are features, not a network; it has one")
    check_units(batch.spec)
    w = {name: batch[name][:, 0, block].double() for name in batch.tensors}
    heads = [w[name] for name in ("Q", "K", "V", "O")]
    if heads[0].dim() == 5:  # n g m …: heads in groups, which share keys and values
        heads = [_each_head(tensor, heads[0].shape[2]) for tensor in heads]
    Q, K, V, O = heads
    return Units(
        Q=Q,
        K=K,
        V=V,
        O=O,
        readers=tuple(w[name] for name in _READERS if name in w),
        writer=next(w[name] for name in _WRITERS if name in w),
        bias=w.get("bA"),
        constants=tuple(w[name] for name in _CONSTANTS if name in w),
        one_basis=same_basis(batch.spec),
    )


def _each_head(tensor: Tensor, heads: int) -> Float64[Tensor, "n h _ _"]:
    """Heads side by side; what a group shares is given to each of its heads."""
    if tensor.dim() == 4:
        return tensor.repeat_interleave(heads, dim=1)
    return torch.flatten(tensor, 1, 2)
