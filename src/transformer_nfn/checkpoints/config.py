"""Where settings come from: config.json, a zoo net's metadata, options of the command line."""

import json
from pathlib import Path
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.header import read_json_object
from transformer_nfn.checkpoints.places import Place, place_of, read_json_file
from transformer_nfn.checkpoints.tensorfiles import TensorFiles


def read_config(files: TensorFiles, family: Family, given: str | Path | None) -> dict[str, Any]:
    """The config of a checkpoint: the given file, its own metadata, or config.json beside it."""
    if given is None and family.norms is None:  # a zoo's net says what it is in its own metadata
        text = files.shards[0][1].metadata.get("net")
        if text is None:
            raise CheckpointError(
                f"{files.path} does not say what net it is; write it with `tnfn zoo export`"
            )
        # JSON may hold half of a surrogate pair, which is no UTF-8 and is then refused as such.
        raw = text.encode(errors="surrogatepass")
        return dict(read_json_object(raw, f"metadata of {files.path}"))
    beside = config_file(files, family, given)
    return dict(read_json_file(beside)) if beside is not None else {}


def config_file(files: TensorFiles, family: Family, given: str | Path | None) -> Place | None:
    """Where settings are read from; None where a file says itself what it is, or nothing does."""
    if given is not None:
        return place_of(given)
    beside = files.folder / "config.json"
    return beside if family.norms is not None and beside.exists() else None


def parse_option(text: str) -> tuple[str, Any]:
    """``"n_head=12"`` as a key and a value: JSON where it is JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CheckpointError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # not JSON, or nested too deep
        return name, value
