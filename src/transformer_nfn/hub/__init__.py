"""Bulk work on many checkpoints: listing, what is new or changed, batches, rows, results."""

from transformer_nfn.hub.bulk import Bulk, Tally
from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.fingerprint_task import MEMORY, FingerprintTask, stored_fingerprints
from transformer_nfn.hub.items import Item
from transformer_nfn.hub.sources import list_items
from transformer_nfn.hub.store import Results
from transformer_nfn.hub.work import Task

__all__ = [
    "MEMORY",
    "Bulk",
    "FingerprintTask",
    "HubError",
    "Item",
    "Results",
    "Tally",
    "Task",
    "list_items",
    "stored_fingerprints",
]
