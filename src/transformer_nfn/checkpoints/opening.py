"""The tensors of a path, whatever format it is in."""

from pathlib import Path

from transformer_nfn.checkpoints.files.places import place_of
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.checkpoints.gguf.files import GgufFiles


def open_files(path: str | Path) -> TensorFiles:
    """Open a safetensors file, an index, a GGUF file, or a folder with one of them.

    Raises:
        CheckpointError: If there is none, or it is not sound.
    """
    place = place_of(path)
    gguf = place.suffix.lower() == ".gguf"
    if isinstance(place, Path) and place.is_dir():
        gguf = any(place.glob("*.gguf")) and not any(place.glob("*.safetensors*"))
    return (GgufFiles if gguf else TensorFiles)(path)
