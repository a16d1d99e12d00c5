"""Where the files of a task are: in the data folder or, if there is none, on the hub."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from transformer_nfn.zoo.tasks.errors import DataError

#: The environment variable that names the data folder.
VARIABLE = "TNFN_DATA"

ADVICE = f"set {VARIABLE} or --data to a folder that has it"


@dataclass(frozen=True)
class HubFiles:
    """Files of a dataset on the Hugging Face hub.

    Attributes:
        repo: The dataset, ``"owner/name"``.
        names: Paths in it.
    """

    repo: str
    names: tuple[str, ...]


def data_folder(data: Path | None) -> Path | None:
    """The data folder: the one given, else the one in TNFN_DATA, else None."""
    if data is not None:
        return data
    value = os.environ.get(VARIABLE)
    return Path(value) if value else None


def find(
    data: Path | None, folder: str, names: Sequence[str], hub: HubFiles | None
) -> dict[str, Path]:
    """The files of a task, by name.

    Where there is a data folder, only it is searched: who names a folder does not expect a
    download. A name that ends in ``.gz`` may also be there without that ending.

    Args:
        data: The data folder; None for the one in TNFN_DATA.
        folder: The task's folder inside it.
        names: The files wanted from that folder.
        hub: What to download instead if no data folder was given; then the keys of the result
            are the names in `hub`.

    Raises:
        DataError: If a file is missing, or cannot be downloaded.
    """
    root = data_folder(data)
    if root is not None:
        return {name: _local(root / folder, name) for name in names}
    if hub is None:
        raise DataError(f"no data folder was given, looked for {folder}/{names[0]}: {ADVICE}")
    return _download(folder, names[0], hub)


def _local(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / name.removesuffix(".gz")):
        if path.is_file():
            return path
    raise DataError(f"no file {name} in {folder}: put it there, or {ADVICE}")


def _download(folder: str, name: str, hub: HubFiles) -> dict[str, Path]:
    looked = f"no data folder was given, looked for {folder}/{name}"
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise DataError(
            f"{looked}: {ADVICE}, or `pip install 'transformer-nfn[hub]'` to download "
            f"{hub.repo} from the Hugging Face hub"
        ) from error
    # It tells of every attempt, before we say in one line what came of all.
    log = logging.getLogger("huggingface_hub")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        return {
            name: Path(hf_hub_download(hub.repo, name, repo_type="dataset")) for name in hub.names
        }
    except (OSError, ValueError) as error:  # no network, no such file
        raise DataError(
            f"{looked}, and {hub.repo} could not be downloaded from the Hugging Face hub "
            f"({error}): {ADVICE}"
        ) from error
    finally:
        log.setLevel(level)
