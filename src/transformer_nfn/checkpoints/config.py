"""Where settings come from: config.json, a zoo net's metadata, options of the command line."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError, UnsupportedError
from transformer_nfn.checkpoints.families import FAMILIES, nearest
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.files.header import read_json_object
from transformer_nfn.checkpoints.files.places import Place, place_of, read_json_file
from transformer_nfn.checkpoints.files.tensors import TensorFiles


def read_config(files: TensorFiles, family: Family, given: str | Path | None) -> dict[str, Any]:
    """The config of a checkpoint: the given file, its own metadata, or config.json beside it."""
    if given is None and family.in_metadata is not None:
        text = files.shards[0][1].metadata.get(family.in_metadata)
        if text is None:
            raise CheckpointError(
                f"{files.path} does not say what net it is; write it with `tnfn zoo export`"
            )
        # JSON may hold half of a surrogate pair, which is no UTF-8 and is then refused as such.
        raw = text.encode(errors="surrogatepass")
        return dict(read_json_object(raw, f"metadata of {files.path}"))
    if given is None and files.config is not None:
        return dict(files.config)
    beside = config_file(files, family, given)
    return dict(read_json_file(beside)) if beside is not None else {}


def config_file(files: TensorFiles, family: Family, given: str | Path | None) -> Place | None:
    """Where settings are read from; None where a file says itself what it is, or nothing does."""
    if given is not None:
        return place_of(given)
    if family.in_metadata is not None or files.config is not None:
        return None
    beside = files.folder / "config.json"
    try:
        there = beside.exists()
        if isinstance(beside, Path) and beside.with_name("adapter_config.json").exists():
            raise CheckpointError(
                f"{files.folder} has an adapter_config.json, and a loader may add that adapter; "
                f"move one of them to a folder of its own"
            )
    except OSError as error:  # a store that does not answer, a folder that may not be looked into
        raise UnreadableError(f"{beside}: {error.strerror or error}") from None
    return beside if there else None


def read_model_type(
    family: Family,
    possible: tuple[str, ...],
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    where: str,
    names: Collection[str],
) -> str:
    """The model_type of a checkpoint, which decides what the keys of its config mean.

    Names of tensors alone do not tell: Qwen3 and Gemma have those of Llama and more.

    Args:
        family: What the names of its tensors suggest.
        possible: Every model_type with such names.
        config: Its config.json.
        options: What the user says.
        where: What was opened.
        names: Of its tensors.

    Raises:
        UnsupportedError: If nobody says it, it is another family's or nobody's, or the model has
            code of its own.
    """
    if family.in_metadata is not None:
        return family.model_types[0]
    kind = options.get("model_type", config.get("model_type"))
    first = possible[0] if len(possible) == 1 else "…"
    say = (
        f"if it computes what {' or '.join(possible)} does, as its tensors' names "
        f'suggest, say --set model_type={first} (in Python options={{"model_type": "{first}"}})'
    )
    if "model_type" not in options and config.get("auto_map"):
        raise UnsupportedError(
            f"{where}: config.json has auto_map, so the model runs code of its own, which is not "
            f"read; {say}"
        )
    if kind is None:
        raise UnsupportedError(f"{where}: no config.json says its model_type; {say}")
    if not any(kind in known.model_types for known in (family, *FAMILIES.values())):
        raise UnsupportedError(
            f"{where}: model_type {kind!r:.60} is not supported (`tnfn families` lists what is);"
            f"{nearest(names)}"
        )
    if kind not in family.model_types:
        raise UnsupportedError(
            f"{where}: config.json says {kind!r:.60}, the tensors' names say "
            f"{' or '.join(possible)}"
        )
    return str(kind)


def parse_option(text: str) -> tuple[str, Any]:
    """``"n_head=12"`` as a key and a value: JSON where it is JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CheckpointError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # not JSON, or nested too deep
        return name, value
