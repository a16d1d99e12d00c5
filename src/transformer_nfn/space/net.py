"""A whole network: what stands before and after its blocks, and the function of the paper's net."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.errors import ShapeError
from transformer_nfn.space.functions import layer_norm, sine_positions
from transformer_nfn.space.weights import WeightBatch


@dataclass(frozen=True, eq=False)
class NetBatch:
    """n networks: their blocks, and the tensors of embedding and classifier, each "n …".

    The paper's nets: embedding ``weight: n p x``, ``bias: n x`` for patches of p pixels, none for
    word vectors; classifier ``weight1: n x u``, ``bias1: n u``, ``weight2: n u o``, ``bias2: n o``.
    """

    blocks: WeightBatch
    embedding: Mapping[str, Tensor] = field(default_factory=dict)
    classifier: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that all parts are of the same networks."""
        for part in ("embedding", "classifier"):
            tensors = MappingProxyType(dict(getattr(self, part)))
            for name, tensor in tensors.items():
                if tensor.shape[:1] != (self.blocks.networks,):
                    raise ShapeError(
                        f"{part} {name} has shape {tuple(tensor.shape)}, the blocks are of "
                        f"{self.blocks.networks} networks"
                    )
            object.__setattr__(self, part, tensors)

    def flat(self, part: str) -> Float[Tensor, "n weights"]:
        """All numbers of ``"embedding"`` or ``"classifier"`` in one row for each network."""
        tensors: Mapping[str, Tensor] = getattr(self, part)
        if not tensors:
            raise ShapeError(f"these networks have no {part}")
        return torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1)

    def select(self, networks: slice) -> "NetBatch":
        """Some of the networks."""
        return NetBatch(
            self.blocks.select(networks=networks),
            {name: tensor[networks] for name, tensor in self.embedding.items()},
            {name: tensor[networks] for name, tensor in self.classifier.items()},
        )


def apply_blocks(
    batch: WeightBatch, tokens: Float[Tensor, "n t x"], eps: float = 1e-5
) -> Float[Tensor, "n t x"]:
    """Send each network's own tokens through its blocks, one after the other.

    Raises:
        ShapeError: If the block declares no function, or the batch has more than one channel.
    """
    function = batch.spec.block.function
    if function is None:
        raise ShapeError(
            f"block {batch.spec.block.name!r} has no function; pass one to declare(function=…)"
        )
    if batch.channels != 1:
        raise ShapeError(f"{batch.channels} channels are features, not a network; it has one")
    for number in range(batch.blocks):
        weights = {name: tensor[:, 0, number] for name, tensor in batch.tensors.items()}
        tokens = function(weights, tokens, eps)
    return tokens


def apply_paper_net(
    net: NetBatch, inputs: Float[Tensor, "n t p"], eps: float = 1e-5
) -> Float[Tensor, "n o"]:
    """Logits of the paper's zoo net for one sequence of patches or word vectors for each network.

    Embedding (or word vectors as they are), fixed sine positions, LayerNorm, the blocks, mean
    over tokens, Linear-ReLU-Linear. The order LayerNorm → attention → LayerNorm → MLP of the zoo,
    with one LayerNorm before pooling, is the paper's block after one LayerNorm at the start.
    """
    tokens = inputs
    if net.embedding:
        tokens = inputs @ net.embedding["weight"] + net.embedding["bias"].unsqueeze(1)
    tokens = tokens + sine_positions(*tokens.shape[1:]).to(tokens)
    pooled = apply_blocks(net.blocks, layer_norm(tokens, eps), eps).mean(dim=1)  # n x
    c = net.classifier
    hidden = (torch.einsum("nx,nxu->nu", pooled, c["weight1"]) + c["bias1"]).relu()
    return torch.einsum("nu,nuo->no", hidden, c["weight2"]) + c["bias2"]
