"""What NeoX, Phi and Falcon share: rotary attention and a plain MLP."""

from typing import Any

from transformer_nfn.checkpoints.families.llamas.llama import rotary_attention
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Half, Mlp, compose


def plain_rotary_block(settings: Settings, *, parallel: bool = True, **more: Any) -> Block:
    """Rotary attention in groups and a plain MLP.

    Args:
        settings: Of a file.
        parallel: Whether both read the stream as it was before the block.
        more: Further fields of the attention.
    """
    parts = (rotary_attention(settings, **more), Mlp(settings.activation, scales=True))
    halves = (Half(part, settings.norm) for part in parts)
    return compose("rotary_plain", *halves, parallel=parallel)
