"""All that is needed to build a model again."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from transformer_nfn.layers import DEFAULT_BUDGET
from transformer_nfn.space import Block, BlockSpec, NetBatch, ShapeError, WeightBatch


class NFNConfig(BaseModel):
    """The shape of a `TransformerNFN`. A part of the model is off where its setting is None.

    Attributes:
        block: The declaration of the block, as plain data (`Block.to_dict`).
        sizes: Its sizes.
        blocks: l, how many blocks a network has.
        channels: Channels of the equivariant layers; None switches the encoder off.
        embedding: Numbers in a network's embedding; None leaves it unread.
        classifier: Numbers in a network's classifier; None leaves it unread.
        width: The paper's D'.
        hidden: Width of all MLPs.
        outputs: Numbers for each network: 1 gives them as "n", more as "n outputs".
        rank: R of the layers, for large D; None is the paper's layers.
        recompute: Run the encoder block by block, and again in the backward pass instead of
            keeping what is between its layers. None: where there is a rank.
        max_parameters: The budget of each layer.
        seed: Of the initial parameters; None draws them from torch's global generator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    block: dict[str, Any]
    sizes: dict[str, int]
    blocks: int = Field(ge=1)
    channels: tuple[int, ...] | None = Field(default=(10,), min_length=1)
    embedding: int | None = Field(default=None, ge=1)
    classifier: int | None = Field(default=None, ge=1)
    width: int = Field(default=1, ge=1)
    hidden: int = Field(default=10, ge=1)
    outputs: int = Field(default=1, ge=1)
    rank: int | None = Field(default=None, ge=1)
    recompute: bool | None = None
    max_parameters: int = DEFAULT_BUDGET
    seed: int | None = None

    @model_validator(mode="after")
    def _check(self) -> "NFNConfig":
        if self.channels is None and self.embedding is None and self.classifier is None:
            raise ValueError("all parts are off; set channels, embedding or classifier")
        self.spec()
        return self

    @staticmethod
    def of(
        nets: NetBatch | WeightBatch | BlockSpec, *, blocks: int | None = None, **settings: Any
    ) -> "NFNConfig":
        """A config for networks like these, all their parts read unless settings say otherwise.

        Of a spec alone it does not follow how many blocks there are, so that is to be given.
        """
        if isinstance(nets, NetBatch):
            for part in ("embedding", "classifier"):
                if getattr(nets, part):
                    settings.setdefault(part, nets.flat(part).shape[1])
            nets = nets.blocks
        if isinstance(nets, WeightBatch):
            blocks, nets = nets.blocks if blocks is None else blocks, nets.spec
        if blocks is None:
            raise ShapeError("a spec does not say how many blocks a network has: give blocks=")
        return NFNConfig(
            block=nets.block.to_dict(), sizes=dict(nets.sizes), blocks=blocks, **settings
        )

    def spec(self) -> BlockSpec:
        """The block with its sizes."""
        return BlockSpec(Block.from_dict(self.block), **self.sizes)
