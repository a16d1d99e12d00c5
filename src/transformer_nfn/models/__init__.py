"""Models that read the weights of transformers."""

from transformer_nfn.models.config import NFNConfig
from transformer_nfn.models.encoder import Encoder
from transformer_nfn.models.nfn import TransformerNFN
from transformer_nfn.models.storage import ModelFileError, load_model, save_model

__all__ = [
    "Encoder",
    "ModelFileError",
    "NFNConfig",
    "TransformerNFN",
    "load_model",
    "save_model",
]
