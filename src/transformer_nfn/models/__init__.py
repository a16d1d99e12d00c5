"""Models that read the weights of transformers."""

from transformer_nfn.models.agreement import AgreementConfig, AgreementProbes
from transformer_nfn.models.config import NFNConfig
from transformer_nfn.models.encoder import Encoder
from transformer_nfn.models.flat_mlp import FlatMLP, FlatMLPConfig
from transformer_nfn.models.graphfeatures import graph_features
from transformer_nfn.models.headnet import HeadNet
from transformer_nfn.models.headnetconfig import HeadNetConfig
from transformer_nfn.models.losses import LOSSES, ranking_loss
from transformer_nfn.models.netgraph import net_graph
from transformer_nfn.models.nfn import TransformerNFN
from transformer_nfn.models.parts import PartsModel, WeightModel
from transformer_nfn.models.probes import ProbeNet, ProbeNetConfig
from transformer_nfn.models.statnn import StatNN, StatNNConfig, tensor_statistics
from transformer_nfn.models.storage import (
    ModelFileError,
    load_model,
    register_model,
    save_model,
)
from transformer_nfn.models.weighttokens import TokenNet, TokenNetConfig

__all__ = [
    "LOSSES",
    "AgreementConfig",
    "AgreementProbes",
    "Encoder",
    "FlatMLP",
    "FlatMLPConfig",
    "HeadNet",
    "HeadNetConfig",
    "ModelFileError",
    "NFNConfig",
    "PartsModel",
    "ProbeNet",
    "ProbeNetConfig",
    "StatNN",
    "StatNNConfig",
    "TokenNet",
    "TokenNetConfig",
    "TransformerNFN",
    "WeightModel",
    "graph_features",
    "load_model",
    "net_graph",
    "ranking_loss",
    "register_model",
    "save_model",
    "tensor_statistics",
]
