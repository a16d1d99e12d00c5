"""Files behind a URL: asked for again when a request fails, created once, read by ranges."""

from transformer_nfn.stores.errors import UnreachableError
from transformer_nfn.stores.rangefile import RangeFile
from transformer_nfn.stores.store import CREATE_ONLY, Store

__all__ = ["CREATE_ONLY", "RangeFile", "Store", "UnreachableError"]
