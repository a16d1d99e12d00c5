"""LoRA adapters: products of two small matrices beside the weights of a network, and GL(r)."""

from transformer_nfn.adapters.adapter import Adapter, is_adapter
from transformer_nfn.adapters.block import LORA
from transformer_nfn.adapters.collection import (
    AdapterCollection,
    ModuleShape,
    find_adapters,
    read_adapters,
)
from transformer_nfn.adapters.comparing import same_adapters
from transformer_nfn.adapters.moving import move_adapter
from transformer_nfn.adapters.net import AdapterNet
from transformer_nfn.adapters.netshape import AdapterNetShape
from transformer_nfn.adapters.spectrum import singular_values, soft_ranks

__all__ = [
    "LORA",
    "Adapter",
    "AdapterCollection",
    "AdapterNet",
    "AdapterNetShape",
    "ModuleShape",
    "find_adapters",
    "is_adapter",
    "move_adapter",
    "read_adapters",
    "same_adapters",
    "singular_values",
    "soft_ranks",
]
