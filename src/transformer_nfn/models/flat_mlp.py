"""The paper's MLP baseline: all weights as they are stored."""

from typing import Any

from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from transformer_nfn.models.parts import PartsModel, flat_size, own_weights, seeded_generator
from transformer_nfn.space import NetBatch


class FlatMLPConfig(BaseModel):
    """The shape of a `FlatMLP`.

    Attributes:
        blocks: Numbers in all blocks of a network.
        embedding: Numbers in its embedding; None leaves it unread.
        classifier: Numbers in its classifier; None leaves it unread.
        hidden: Width of all layers.
        seed: Of the initial parameters; None draws them from torch's global generator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    blocks: int = Field(ge=1)
    embedding: int | None = Field(default=None, ge=1)
    classifier: int | None = Field(default=None, ge=1)
    hidden: int = Field(default=50, ge=1)
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, **settings: Any) -> "FlatMLPConfig":
        """A config for networks like these."""
        return FlatMLPConfig(
            blocks=net.blocks.blocks * net.blocks.spec.weights,
            embedding=flat_size(net, "embedding") if net.embedding else None,
            classifier=flat_size(net, "classifier") if net.classifier else None,
            **settings,
        )


class FlatMLP(PartsModel):
    """MLPs on the flat weights.

    Appendix "Architecture and hyperparameters for other baselines". No symmetry is built in: other
    weights of the same function give another number.

    Examples:
        >>> from transformer_nfn.models import FlatMLP, FlatMLPConfig
        >>> FlatMLP(FlatMLPConfig(blocks=16576, embedding=544, classifier=1386)).parameter_count
        933251
    """

    config: FlatMLPConfig

    def __init__(self, config: FlatMLPConfig) -> None:
        hidden = config.hidden
        widths = {"blocks": [config.blocks, hidden, hidden]}
        if config.embedding is not None:
            widths["embedding"] = [config.embedding, hidden]
        if config.classifier is not None:
            widths["classifier"] = [config.classifier, hidden, hidden, hidden]
        super().__init__(widths, seeded_generator(config.seed))
        self.config = config

    def vector(self, net: NetBatch, part: str) -> Float[Tensor, "n numbers"]:
        """All numbers of a part."""
        if part == "blocks":
            return own_weights(net).blocks.flat().squeeze(1)
        return net.flat(part)
