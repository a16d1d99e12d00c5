"""Bulk work on many checkpoints: listing, what is new or changed, batches, rows, results."""

from transformer_nfn.hub.bulk import Bulk, Tally
from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.fingerprint_task import MEMORY, FingerprintTask
from transformer_nfn.hub.items import Item
from transformer_nfn.hub.manifests import SUFFIXES as MANIFESTS
from transformer_nfn.hub.rank_task import RankTask, stored_ranks
from transformer_nfn.hub.sources import list_items
from transformer_nfn.hub.store import Results
from transformer_nfn.hub.stored import load_forest, save_forest, stored_digests, stored_index
from transformer_nfn.hub.work import Task

__all__ = [
    "MANIFESTS",
    "MEMORY",
    "Bulk",
    "FingerprintTask",
    "HubError",
    "Item",
    "RankTask",
    "Results",
    "Tally",
    "Task",
    "list_items",
    "load_forest",
    "save_forest",
    "stored_digests",
    "stored_index",
    "stored_ranks",
]
