"""Networks of your own, wherever they are, as batches and datasets to learn from."""

from transformer_nfn.data.dataset import WeightDataset
from transformer_nfn.data.reading import StateDictReader, read_net

__all__ = ["StateDictReader", "WeightDataset", "read_net"]
