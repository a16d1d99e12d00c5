"""A `NetElement` as a safetensors file, as docs/reference/certificates.md specifies it."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from transformer_nfn.checkpoints import (
    Checkpoint,
    CheckpointError,
    Digests,
    TensorFiles,
    canonical_json,
    read_json_object,
)
from transformer_nfn.identity.elements.check import check_element, check_slot
from transformer_nfn.identity.elements.element import NetElement
from transformer_nfn.identity.elements.rules import ElementError
from transformer_nfn.identity.elements.table import (
    Slot,
    element_from,
    element_table,
    element_tensors,
)
from transformer_nfn.space import ShapeError

FORMAT = "tnfn-certificate"
VERSION = "2"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Terms:
    """What a certificate says of itself; nothing of it is known to be true.

    Attributes:
        network: Family, declaration and sizes of the blocks, and how many.
        first: What it acts on.
        second: What that becomes.
        verdict: What `tnfn same` found: tolerances, seeds, figures.
        versions: Of this package and of torch.
    """

    network: Mapping[str, str]
    first: Digests
    second: Digests
    verdict: Mapping[str, str | int | float | bool]
    versions: Mapping[str, str]

    def metadata(self) -> dict[str, str]:
        """As it stands in the file: text for each key."""
        return {
            "format": FORMAT,
            "version": VERSION,
            **self.network,
            "first": _digests_text(self.first),
            "second": _digests_text(self.second),
            "verdict": canonical_json(self.verdict),
            **self.versions,
        }


def save_certificate(
    element: NetElement,
    ours: Checkpoint,
    theirs: Checkpoint,
    path: str | Path,
    *,
    verdict: Mapping[str, Any] | None = None,
) -> None:
    """Write an element with the digests of both checkpoints.

    Args:
        element: What carries the first to the second.
        ours: The checkpoint it acts on.
        theirs: What that becomes.
        path: Where to.
        verdict: What the verdict rests on; text and numbers are kept, all else is left out.

    Raises:
        ElementError: If the element is no symmetry of the first checkpoint; nothing is written.
    """
    check_element(ours, element)
    plain = {n: _plain(v) for n, v in (verdict or {}).items() if isinstance(v, str | int | float)}
    versions = {"package": version("transformer-nfn"), "torch": torch.__version__}
    terms = Terms(network_of(ours), Digests.of(ours), Digests.of(theirs), plain, versions)
    # A file may not hold one storage twice.
    tensors = {name: value.clone().contiguous() for name, value in element_tensors(element).items()}
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{uuid4().hex}.part")
    try:
        save_file(tensors, temporary, terms.metadata())
        os.replace(temporary, final)
    except SafetensorError as error:  # which is how it says that a disk is full
        raise OSError(f"{path} cannot be written: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def network_of(checkpoint: Checkpoint) -> dict[str, str]:
    """What a network must be for an element to be of its group."""
    return {
        "family": checkpoint.family.name,
        "block": checkpoint.spec.block.name,
        "sizes": json.dumps(dict(checkpoint.spec.sizes)),
        "blocks": str(checkpoint.blocks),
    }


def read_terms(path: str | Path) -> Terms:
    """What a certificate says of itself; only its header is read.

    Raises:
        CheckpointError: If it is no certificate of this version.
    """
    with TensorFiles(path) as files:
        return _terms(files)


def load_certificate(path: str | Path, ours: Checkpoint) -> tuple[NetElement, Terms]:
    """Read an element for a checkpoint, and what it was found for.

    Names, dtypes and shapes are held against what this network can have before a tensor is read,
    and every number after it. Whether the files are those it was found for is not looked at.

    Raises:
        CheckpointError: If it is no certificate.
        ElementError: If it is one for another network, or holds what is no symmetry.
    """
    with TensorFiles(path) as files:
        terms = _terms(files)
        for name, value in network_of(ours).items():
            if terms.network[name] != value:
                raise ElementError(
                    f"{path} is no certificate for {ours.path}: {name} is "
                    f"{terms.network[name][:80]!r}, not {value!r}"
                )
        try:
            table = element_table(ours)
            for name, entry in files.entries.items():
                check_slot(name, Slot(entry.dtype, entry.shape), table)
            element = element_from({name: files.read(name) for name in files}, ours)
            check_element(ours, element)
        except KeyError as error:
            raise ElementError(f"{path} is not a sound certificate: {error} is missing") from None
        except (ElementError, ShapeError) as error:
            raise ElementError(f"{path} is not a sound certificate: {str(error)[:300]}") from None
    return element, terms


def _terms(files: TensorFiles) -> Terms:
    where, metadata = str(files.path), dict(files.shards[0][1].metadata)
    if metadata.pop("format", None) != FORMAT or len(files.shards) > 1:
        raise CheckpointError(f"{where} is no certificate: `tnfn same --certificate` writes them")
    if (found := metadata.pop("version", None)) != VERSION:
        raise CheckpointError(
            f"{where} is a certificate of version {str(found)[:20]!r}, not {VERSION!r}; make it "
            f"again with `tnfn same`"
        )
    names = ("family", "block", "sizes", "blocks", "first", "second", "verdict", "package", "torch")
    if set(metadata) != set(names):
        wrong = sorted(set(metadata) ^ set(names))[0]
        raise CheckpointError(f"{where} has no {wrong[:80]!r} in its metadata, or should not have")
    verdict = _table(metadata["verdict"], f"verdict in {where}")
    if not all(isinstance(value, str | int | float) for value in verdict.values()):
        raise CheckpointError(f"verdict in {where} should be text and numbers")
    return Terms(
        {name: metadata[name] for name in names[:4]},
        _digests(metadata["first"], f"first in {where}"),
        _digests(metadata["second"], f"second in {where}"),
        verdict,
        {name: metadata[name] for name in names[-2:]},
    )


def _plain(value: str | int | float) -> str | int | float:
    """JSON has no NaN and no infinity, so they are text."""
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def _digests_text(digests: Digests) -> str:
    table = {"files": dict(digests.files), "config": digests.config, "options": digests.options}
    return canonical_json(table)


def _digests(text: str, where: str) -> Digests:
    table = _table(text, where)
    files, config, options = (table.get(name) for name in ("files", "config", "options"))
    if not isinstance(files, dict) or not isinstance(options, str):
        raise CheckpointError(f"{where} should have a table of files, and options as text")
    for digest in (*files.values(), *([] if config is None else [config])):
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise CheckpointError(f"{where} has {str(digest)[:80]!r}, which is no SHA-256")
    return Digests(files, config, options)


def _table(text: str, where: str) -> dict[str, Any]:
    # JSON may hold half of a surrogate pair, which is no UTF-8 and is then refused as such.
    return read_json_object(text.encode(errors="surrogatepass"), where)
