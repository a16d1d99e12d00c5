"""Word vectors, reduced to a few coordinates."""

from pathlib import Path

import numpy as np
import torch
from gensim.models import KeyedVectors  # type: ignore[import-untyped]
from jaxtyping import Float32, Float64, Int64
from torch import Tensor

from transformer_nfn.zoo.tasks.errors import DataError
from transformer_nfn.zoo.tasks.files import ADVICE, data_folder

FOLDER = "embeddings"
_RECIPE = (
    "a word2vec binary file, as gensim's "
    "KeyedVectors.save_word2vec_format('embeddings/name.bin', binary=True) writes it"
)


def find_vectors(data: Path | None) -> Path:
    """The only ``.bin`` file in ``embeddings/`` of the data folder.

    There is no download: the copies on the hub are pickles, and a pickle is code.

    Raises:
        DataError: If there is no such file, or more than one.
    """
    root = data_folder(data)
    if root is None:
        raise DataError(
            f"no data folder was given, looked for {FOLDER}/*.bin, {_RECIPE}: {ADVICE}; "
            f"word vectors are not downloaded"
        )
    found = sorted((root / FOLDER).glob("*.bin"))
    if len(found) != 1:
        names = [path.name for path in found]
        raise DataError(
            f"{root / FOLDER} must have exactly one .bin file, {_RECIPE}; it has {names}: "
            f"put one there, or {ADVICE}"
        )
    return found[0]


def read_vectors(path: Path) -> tuple[dict[str, int], Float32[Tensor, "words axes"]]:
    """Read word vectors: the row of each word, and the rows.

    Raises:
        DataError: If it is not a word2vec binary file, or a vector is not finite.
    """
    try:
        _check_header(path)
        vectors = KeyedVectors.load_word2vec_format(str(path), binary=True)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is not {_RECIPE}: {error}") from error
    rows = torch.from_numpy(np.asarray(vectors.vectors, dtype=np.float32))
    if not rows.isfinite().all():
        raise DataError(f"{path} has vectors that are not finite")
    return vectors.key_to_index, rows


def _check_header(path: Path) -> None:
    """Compare the sizes in the header with the file's: gensim allocates what the header says."""
    with path.open("rb") as file:
        header = file.readline(64).split()
    if len(header) != 2 or not all(number.isdigit() for number in header):
        raise DataError("its first line is not 'words width'")
    words, width = map(int, header)
    if not (words and width) or words * width * 4 > path.stat().st_size:
        raise DataError(
            f"{words} vectors of width {width} by its first line do not fit in "
            f"{path.stat().st_size} bytes"
        )


def reduce(
    vectors: Float32[Tensor, "words axes"], used: Int64[Tensor, " used"], width: int
) -> Float32[Tensor, "words p"]:
    """Principal coordinates of all vectors, with mean and axes of the used ones.

    The axes are in the order of falling variance, each with its largest entry positive, since
    an eigenvector's sign is an accident. One common factor makes the mean variance of a
    coordinate 1, over the used vectors.

    Args:
        vectors: One row for each word.
        used: The rows that count, each once.
        width: How many coordinates to keep.

    Raises:
        DataError: If the used vectors do not span as many axes.
    """
    chosen: Float64[Tensor, "used axes"] = vectors[used].double()
    if not 1 <= width <= min(vectors.shape[1], len(used) - 1):
        raise DataError(
            f"{len(used)} words with vectors of width {vectors.shape[1]} cannot be reduced to "
            f"width {width}"
        )
    mean = chosen.mean(0)
    centred = chosen - mean
    values, axes = torch.linalg.eigh(centred.T @ centred / len(used))
    values, axes = values.flip(0)[:width], axes.flip(1)[:, :width]
    if values[-1] <= values[0] * 1e-12:
        raise DataError(f"the vectors of {len(used)} words span fewer than {width} axes")
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    axes = axes * largest.sign() * values.mean().rsqrt()
    coordinates: Tensor = (vectors.double() - mean) @ axes
    return coordinates.float()
