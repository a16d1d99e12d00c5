"""Transformer-NFN: from the weights of a network to a number."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers import seeded_linear
from transformer_nfn.models.config import NFNConfig
from transformer_nfn.models.encoder import Encoder
from transformer_nfn.models.parts import WeightModel, seeded_generator
from transformer_nfn.space import NetBatch, ShapeError


class TransformerNFN(WeightModel):
    """The paper's model (appendix "Architecture and hyperparameters of Transformer-NFN").

    Three parts, each of which can be switched off: the encoder reads the blocks and is invariant
    under the group; MLPs read embedding and classifier as flat vectors. Their outputs stand side
    by side before one linear head.

    Examples:
        >>> import torch
        >>> from transformer_nfn.models import NFNConfig, TransformerNFN
        >>> from transformer_nfn.space import PAPER, BlockSpec
        >>> spec = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
        >>> config = NFNConfig.of(spec, blocks=2, embedding=544, classifier=1386)
        >>> TransformerNFN(config).parameter_count
        1812181
    """

    config: NFNConfig

    def __init__(self, config: NFNConfig) -> None:
        super().__init__()
        self.config = config
        generator = seeded_generator(config.seed)
        hidden = config.hidden
        self.encoder = self.embedding = self.classifier = None
        if config.channels is not None:
            self.encoder = Encoder(
                config.spec(),
                blocks=config.blocks,
                channels=config.channels,
                width=config.width,
                hidden=hidden,
                rank=config.rank,
                recompute=config.recompute,
                max_parameters=config.max_parameters,
                generator=generator,
            )
        if config.embedding is not None:
            self.embedding = seeded_linear(config.embedding, hidden, generator)
        if config.classifier is not None:
            self.classifier = nn.Sequential(
                seeded_linear(config.classifier, hidden, generator),
                nn.ReLU(),
                seeded_linear(hidden, hidden, generator),
                nn.ReLU(),
                seeded_linear(hidden, hidden, generator),
                nn.ReLU(),
            )
        parts = [self.encoder, self.embedding, self.classifier]
        read = hidden * sum(part is not None for part in parts)
        self.head = seeded_linear(read, config.outputs, generator)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"] | Float[Tensor, "n outputs"]:
        """A logit for each network; the paper's prediction is its sigmoid.

        Raises:
            ShapeError: If the networks lack a part that the model reads.
        """
        if not isinstance(net, NetBatch):
            raise ShapeError(
                f"a model reads a NetBatch, not {type(net).__name__}; NetBatch(blocks)"
            )
        vectors = []
        if self.encoder is not None:
            vectors.append(self.encoder(net.blocks))
        for part, module in (("embedding", self.embedding), ("classifier", self.classifier)):
            if module is not None:
                flat = net.flat(part)
                wanted = getattr(self.config, part)
                if flat.shape[1] != wanted:
                    raise ShapeError(
                        f"the model reads {part}s of {wanted} numbers, got {flat.shape[1]}"
                    )
                vectors.append(module(flat))
        out: Tensor = self.head(torch.cat(vectors, dim=1))
        return out.squeeze(1) if self.config.outputs == 1 else out
