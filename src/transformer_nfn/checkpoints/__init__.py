"""Checkpoints: safetensors files of known families as networks, and back."""

from transformer_nfn.checkpoints.checkpoint import Checkpoint, Head
from transformer_nfn.checkpoints.config import parse_option
from transformer_nfn.checkpoints.converting import convert
from transformer_nfn.checkpoints.digests import Digests, canonical_json
from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError, UnsupportedError
from transformer_nfn.checkpoints.families import FAMILIES, installed, load_family
from transformer_nfn.checkpoints.family import Family, Matrix, Reader, WordPredictor, Writer, linear
from transformer_nfn.checkpoints.files.closing import Closing
from transformer_nfn.checkpoints.files.header import Entry, Header, read_header, read_json_object
from transformer_nfn.checkpoints.files.places import (
    SINGLES,
    blobs_of,
    find_files,
    place_of,
    read_json_file,
)
from transformer_nfn.checkpoints.files.tensors import OtherNumbers, TensorFiles
from transformer_nfn.checkpoints.models import Config, Model, opened
from transformer_nfn.checkpoints.opening import open_files
from transformer_nfn.checkpoints.settings.keys import Biases, Joint, Key, Keys
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.checkpoints.vocabulary import read_vocabulary
from transformer_nfn.checkpoints.writing import rewrite

__all__ = [
    "FAMILIES",
    "SINGLES",
    "Biases",
    "Checkpoint",
    "CheckpointError",
    "Closing",
    "Config",
    "Digests",
    "Entry",
    "Family",
    "Head",
    "Header",
    "Joint",
    "Key",
    "Keys",
    "Matrix",
    "Model",
    "OtherNumbers",
    "Reader",
    "Settings",
    "TensorFiles",
    "UnreadableError",
    "UnsupportedError",
    "WordPredictor",
    "Writer",
    "blobs_of",
    "canonical_json",
    "convert",
    "find_files",
    "installed",
    "linear",
    "load_family",
    "open_files",
    "opened",
    "parse_option",
    "place_of",
    "read_header",
    "read_json_file",
    "read_json_object",
    "read_vocabulary",
    "rewrite",
]
