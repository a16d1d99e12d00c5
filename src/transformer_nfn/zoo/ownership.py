"""zoo.json: what a folder holds. Written once, and whoever writes into the folder must agree."""

import json
import platform
from importlib.metadata import version
from typing import Any

import torch

from transformer_nfn.jobs import ShardFolder
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.schema import FORMAT

NAME = "zoo.json"


def check_owner(root: ShardFolder, content: dict[str, Any]) -> None:
    """Check that a folder holds this zoo, or none yet.

    Args:
        root: The zoo's folder.
        content: What defines the zoo: ``{"recipe": …}`` or ``{"source": …}``.

    Raises:
        StoreError: If it holds another.
    """
    try:
        there = json.loads(root.read_bytes(NAME))
    except FileNotFoundError:
        return
    wanted = {"format": FORMAT, **content}
    if not isinstance(there, dict) or any(there.get(key) != wanted[key] for key in wanted):
        raise StoreError(
            f"{root.url} holds another zoo (see its {NAME}): choose another folder, or go on with "
            "what this one was begun with"
        )


def claim(root: ShardFolder, content: dict[str, Any]) -> None:
    """Write zoo.json, or check that it is ours."""
    described = {
        "format": FORMAT,
        **content,
        "versions": {
            "transformer-nfn": version("transformer-nfn"),
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }
    if not root.write_once(NAME, json.dumps(described, indent=1).encode()):
        check_owner(root, content)
