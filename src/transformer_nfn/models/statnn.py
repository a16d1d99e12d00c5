"""The paper's StatNN baseline: a few statistics of each tensor."""

from typing import Any

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from transformer_nfn.models.parts import PartsModel, flat_size, own_weights, seeded_generator
from transformer_nfn.space import NetBatch

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
STATISTICS = 2 + len(QUANTILES)


class StatNNConfig(BaseModel):
    """The shape of a `StatNN`.

    Attributes:
        tensors: Tensors in all blocks of a network, 16 in two of the paper's.
        embedding: Numbers in its embedding; None leaves it unread.
        classifier_tensors: Tensors in its classifier; 0 leaves it unread.
        hidden: Width of the layers that read blocks and classifier.
        embedding_hidden: Width of the layer that reads the embedding.
        seed: Of the initial parameters; None draws them from torch's global generator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensors: int = Field(ge=1)
    embedding: int | None = Field(default=None, ge=1)
    classifier_tensors: int = Field(default=4, ge=0)
    hidden: int = Field(default=256, ge=1)
    embedding_hidden: int = Field(default=64, ge=1)
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, **settings: Any) -> "StatNNConfig":
        """A config for networks like these."""
        return StatNNConfig(
            tensors=net.blocks.blocks * len(net.blocks.tensors),
            embedding=flat_size(net, "embedding") if net.embedding else None,
            classifier_tensors=len(net.classifier),
            **settings,
        )


def tensor_statistics(tensor: Float[Tensor, "n ..."]) -> Float[Tensor, "n 7"]:
    """Mean, variance and the 0, 25, 50, 75 and 100 % quantiles of each network's numbers."""
    ordered = tensor.flatten(1).sort(dim=1).values
    # torch.quantile refuses more than 16 million numbers, which is a zoo of 8,000 networks.
    places = torch.tensor(QUANTILES, dtype=torch.float64) * (ordered.shape[1] - 1)
    below, above = ordered[:, places.floor().long()], ordered[:, places.ceil().long()]
    quantiles = below.lerp(above, places.frac().to(ordered))
    moments = [ordered.mean(dim=1), ordered.var(dim=1, correction=0)]
    return torch.cat([torch.stack(moments, dim=1), quantiles], dim=1)


class StatNN(PartsModel):
    """MLPs on statistics of each tensor.

    Appendix "Architecture and hyperparameters for other baselines". The embedding is read as flat
    weights. The statistics do not see permutations, but they do see the invertible matrices of
    the group.

    Examples:
        >>> from transformer_nfn.models import StatNN, StatNNConfig
        >>> StatNN(StatNNConfig(tensors=16, embedding=544)).parameter_count
        203393
    """

    config: StatNNConfig

    def __init__(self, config: StatNNConfig) -> None:
        hidden = config.hidden
        widths = {"blocks": [STATISTICS * config.tensors, hidden, hidden]}
        if config.embedding is not None:
            widths["embedding"] = [config.embedding, config.embedding_hidden]
        if config.classifier_tensors:
            widths["classifier"] = [STATISTICS * config.classifier_tensors, hidden, hidden]
        super().__init__(widths, seeded_generator(config.seed))
        self.config = config

    def vector(self, net: NetBatch, part: str) -> Float[Tensor, "n numbers"]:
        """Statistics of each tensor of a part, block after block; the embedding as it is."""
        if part == "blocks":
            blocks = own_weights(net).blocks
            tensors = [
                tensor[:, 0, number]
                for number in range(blocks.blocks)
                for tensor in blocks.tensors.values()
            ]
        elif part == "classifier" and net.classifier:
            tensors = list(net.classifier.values())
        else:
            return net.flat(part)
        return torch.cat([tensor_statistics(tensor) for tensor in tensors], dim=1)
