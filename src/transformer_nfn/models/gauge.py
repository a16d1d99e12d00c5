"""Whole networks in a form that symmetries beyond the paper's group do not change.

See "Symmetries of the zoo's net beyond the paper's group" in the documentation. Shifts and scales
are removed here; rotations are not, but no product over a shared axis sees them.
"""

import torch
from torch import Tensor

from transformer_nfn.space import NetBatch, WeightBatch

_TINY = 1e-30


def canonical(net: NetBatch) -> NetBatch:
    """The same networks in float64, means, scales of LayerNorms and of neurons taken out.

    LayerNorm takes the mean of what is written away, and what it gives has none: writers and
    readers lose theirs. Where a LayerNorm reads nothing but weights (the paper's net, all but the
    first), what is written gets the size 1. A ReLU neuron reads with a column and bias of size 1.

    For blocks "residual" only means are taken out. Other blocks have RMSNorm: they stay.
    """
    blocks = {name: tensor.double() for name, tensor in net.blocks.tensors.items()}
    embedding = {name: tensor.double() for name, tensor in net.embedding.items()}
    classifier = {name: tensor.double() for name, tensor in net.classifier.items()}
    kind = net.blocks.spec.block.name
    if kind in ("paper", "residual", "residual_no_bo"):
        embedding = {name: _written(tensor) for name, tensor in embedding.items()}
        D = net.blocks.spec.sizes["D"]
        for name in ("Q", "K", "V"):
            blocks[name] = _read(blocks[name], D)
        blocks["A"] = _read(blocks["A"], D)
        for name in ("O", "B", "bB", "bO"):
            if name in blocks:
                blocks[name] = _written(blocks[name])
        if classifier:
            classifier["weight1"] = _read(classifier["weight1"], D)
            _unit_neurons(classifier, "weight1", "bias1", "weight2")
    if kind == "paper":
        _unit_neurons(blocks, "A", "bA", "B")
        _unit_attention(blocks)
        _unit_output(blocks)
    return NetBatch(WeightBatch(net.blocks.spec, blocks), embedding, classifier)


def _written(tensor: Tensor) -> Tensor:
    return tensor - tensor.mean(dim=-1, keepdim=True)


def _read(tensor: Tensor, width: int) -> Tensor:
    """Without the mean of each column; a row of biases below stays."""
    rows = tensor[..., :width, :]
    return torch.cat([rows - rows.mean(dim=-2, keepdim=True), tensor[..., width:, :]], dim=-2)


def _unit_neurons(tensors: dict[str, Tensor], reads: str, bias: str, writes: str) -> None:
    """Each neuron's column and bias together get the size 1; what it writes takes the rest."""
    square = tensors[reads].square().sum(dim=-2) + tensors[bias].square() + _TINY
    tensors[reads] = tensors[reads] * square.rsqrt().unsqueeze(-2)
    tensors[bias] = tensors[bias] * square.rsqrt()
    tensors[writes] = tensors[writes] * square.sqrt().unsqueeze(-1)


def _unit_attention(blocks: dict[str, Tensor]) -> None:
    """Σ |V O|² over the heads gets 1, by a factor of O: GL does not change that."""
    V, O = blocks["V"], blocks["O"]
    square = ((V.mT @ V) * (O @ O.mT).mT).sum(dim=(-3, -2, -1)) + _TINY
    blocks["O"] = O * square.rsqrt()[..., None, None, None]


def _unit_output(blocks: dict[str, Tensor]) -> None:
    square = blocks["B"].square().sum(dim=(-2, -1)) + blocks["bB"].square().sum(-1) + _TINY
    blocks["B"] = blocks["B"] * square.rsqrt()[..., None, None]
    blocks["bB"] = blocks["bB"] * square.rsqrt()[..., None]
