"""LoRA adapters: products of two small matrices beside the weights of a network, and GL(r)."""

from transformer_nfn.adapters.adapter import Adapter, is_adapter
from transformer_nfn.adapters.comparing import same_adapters
from transformer_nfn.adapters.moving import move_adapter

__all__ = ["Adapter", "is_adapter", "move_adapter", "same_adapters"]
