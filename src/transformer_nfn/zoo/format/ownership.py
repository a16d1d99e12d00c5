"""A zoo's folder: where things are, and zoo.json, on which all who write into it must agree."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from transformer_nfn.jobs import DamagedError, ShardFolder
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.schema import FORMAT

NAME = "zoo.json"
SWEEP_AGE = 3600.0  # seconds; temporaries older than that belong to nobody


def data_url(url: str | Path) -> str:
    """Where the shards of a zoo are."""
    return f"{str(url).rstrip('/')}/data"


def logs_url(url: str | Path) -> str:
    """Where a zoo says how long its builds took."""
    return f"{str(url).rstrip('/')}/builds"


def read_description(root: ShardFolder) -> dict[str, Any] | None:
    """What zoo.json says; None if there is none.

    Raises:
        StoreError: If it is no JSON object, or of another format.
    """
    try:
        there = root.read_json(NAME)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        raise StoreError(str(error)) from None
    if there.get("format") != FORMAT:
        found = there.get("format")
        raise StoreError(f"{root.url}/{NAME} has format {found!r:.60}, this version reads {FORMAT}")
    for key in ("recipe", "source"):
        if not isinstance(there.get(key, {}), dict):
            raise StoreError(f"{root.url}/{NAME}: {key} is no JSON object")
    return there


def check_owner(root: ShardFolder, content: dict[str, Any]) -> None:
    """Check that a folder holds this zoo, or none yet.

    Args:
        root: The zoo's folder.
        content: What defines the zoo: ``{"recipe": …}`` or ``{"source": …}``.

    Raises:
        StoreError: If it holds another.
    """
    there = read_description(root)
    if there is not None and any(there.get(key) != content[key] for key in content):
        raise StoreError(
            f"{root.url} holds another zoo (see its {NAME}): choose another folder, or go on with "
            "what this one was begun with"
        )


def claim(root: ShardFolder, content: dict[str, Any], **more: Any) -> None:
    """Write zoo.json, or check that it is ours.

    Args:
        root: The zoo's folder.
        content: What defines the zoo.
        more: What is told of it beside that.
    """
    described = {
        "format": FORMAT,
        **content,
        **more,
        "versions": {
            "transformer-nfn": version("transformer-nfn"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    if not root.write_once(NAME, json.dumps(described, indent=1).encode()):
        check_owner(root, content)
