"""The tensors of a GGUF file by the names of `transformers`, dequantised row by row.

Rows are whole blocks of numbers in every type, so a slice of rows is read and dequantised alone.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transformer_nfn.checkpoints.errors import CheckpointError, UnsupportedError
from transformer_nfn.checkpoints.families import FAMILIES
from transformer_nfn.checkpoints.files.header import Entry, Header
from transformer_nfn.checkpoints.files.places import File, Place
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.checkpoints.gguf.header import TYPES, GgufHeader, read_gguf_header
from transformer_nfn.checkpoints.gguf.table import Gguf

#: What is stored as numbers; all else is dequantised to float32.
_PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "F64": torch.float64,
    "BF16": torch.bfloat16,
}
#: Bytes that are dequantised at a time where a whole tensor is asked for.
_PIECE = 2**22
_HEADS, _GROUPS = "attention.head_count", "attention.head_count_kv"
#: Settings without which llama.cpp reads nothing.
_NEEDED = (
    "block_count",
    "embedding_length",
    "feed_forward_length",
    _HEADS,
    "attention.layer_norm_rms_epsilon",
)
#: Settings that say nothing where they are 0.
_NONE = ("expert_count", "expert_used_count")
#: Settings that make no other function of the same tensors, or are looked at by themselves.
_HARMLESS = frozenset(
    {
        "context_length",
        "vocab_size",
        "attention.value_length",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",  # which only kinds that are refused look at
        "tensor_data_layout",
    }
)
#: Tensors that are made of settings, not weights; a stretched context needs them.
_STRETCHED = "rope_freqs.weight"


class GgufFiles(TensorFiles):
    """One GGUF file.

    Attributes:
        config: What its config.json would say; empty if no family knows its architecture.
    """

    def __init__(self, path: str | Path) -> None:
        self._types: dict[str, str] = {}
        self._heads: dict[str, int] = {}
        self._added: dict[str, float] = {}
        super().__init__(path)

    def _read_header(self, handle: File, size: int, file: Place, limit: int) -> Header:
        where = str(file)
        header = read_gguf_header(handle, size, where)
        kind, classes, table = _known(header, where)
        said = {} if table is None else _said(header, table, where)
        entries: dict[str, Entry] = {}
        for stored, tensor in header.tensors.items():
            name = stored if table is None else _translated(table, stored, where)
            if name in entries:
                raise CheckpointError(f"{where} has {name[:80]!r} under two names")
            word = TYPES[tensor.type][0]
            dtype = _PLAIN.get(word, torch.float32)
            if table is not None:
                stem, _, end = stored.rpartition(".")
                stem = re.sub(r"\d+", "{}", stem)
                if stem in table.paired and end in ("weight", "bias"):
                    heads = said[table.paired[stem]]
                    self._heads[name] = _heads(heads, tensor.shape[0], stored, where)
                if table.added and stem.endswith("norm"):
                    self._added[name], dtype = table.added, torch.float32
            entries[name] = Entry(dtype, tensor.shape, tensor.begin, tensor.end)
            self._types[name], self._stored[name] = word, stored
        if table is None:
            self.config = {}
        else:
            self.config = _config(header, said, kind, classes, table, where)
        return Header(entries, {}, header.start)

    def stored_name(self, name: str) -> str:
        """What llama.cpp calls a tensor."""
        return self._stored[name]

    def read(self, name: str) -> Tensor:
        """A tensor with the names, order and offsets of `transformers`."""
        return torch.cat(list(self._whole(name, _PIECE)))

    def slice(self, name: str, first: int, last: int) -> Tensor:
        """The rows from `first` to before `last`."""
        if name not in self._heads or first == last:
            return self._values(name, self._rows(name, first, last), last - first)
        size = self.entry(name).shape[0] // self._heads[name]  # rows of a head
        begin, end = first // size * size, -(-last // size) * size
        found = self._values(name, self._rows(name, begin, end), end - begin)
        # Of each head rows 0, 2, 4, … and then 1, 3, 5, …
        pairs = found.view(-1, size // 2, 2, *found.shape[1:]).transpose(1, 2)
        return pairs.reshape(found.shape)[first - begin : last - begin]

    def pieces(self, name: str, most: int) -> Iterator[Tensor]:
        """The bytes of a tensor as `read` gives them, about so many at a time."""
        for values in self._whole(name, most):
            yield values.contiguous().flatten().view(torch.uint8)

    def _whole(self, name: str, most: int) -> Iterator[Tensor]:
        entry = self.entry(name)
        return self.chunks(name, max(1, most // (entry.dtype.itemsize * prod(entry.shape[1:]))))

    def _values(self, name: str, flat: Tensor, rows: int) -> Tensor:
        """Numbers of the bytes of some rows."""
        entry, word = self.entry(name), self._types[name]
        plain = _PLAIN.get(word)
        found = _dequantised(flat, word, str(self.path)) if plain is None else flat.view(plain)
        values = found.view(rows, *entry.shape[1:])
        if name not in self._added:
            return values
        values = values.float()
        moved = values - self._added[name]
        if not torch.equal(moved + self._added[name], values):
            raise CheckpointError(
                f"{self.path}: {name} has scales so near 0 that they cannot be told from it"
            )
        return moved


def _dequantised(flat: Tensor, word: str, where: str) -> Tensor:
    try:
        gguf = import_module("gguf")
    except ImportError:
        raise CheckpointError(
            f"{where} is quantised ({word}), which takes the package gguf: "
            f"pip install 'transformer-nfn[gguf]'"
        ) from None
    if not len(flat):
        return torch.empty(0)
    kind = getattr(gguf.GGMLQuantizationType, word)
    with np.errstate(all="ignore"):  # what is not finite is found by those who look for it
        return torch.from_numpy(gguf.dequantize(flat.numpy(), kind))


def _known(header: GgufHeader, where: str) -> tuple[str, str | None, Gguf | None]:
    """The model_type, classes and table of an architecture; None if nobody has one."""
    if header.settings.get("split.count", 1) not in (0, 1):
        raise CheckpointError(f"{where} is one of several parts; join them (llama-gguf-split)")
    said = header.settings.get("general.architecture")
    for family in FAMILIES.values():
        for kind, table in family.gguf.items():
            if kind in family.keys and table.architecture == said:
                return kind, family.keys[kind].classes, table
    return "", None, None


def _translated(table: Gguf, stored: str, where: str) -> str:
    stem, _, end = stored.rpartition(".")
    numbers = re.findall(r"\d+", stem)
    name = table.tensors.get(re.sub(r"\d+", "{}", stem))
    if name is None or len(numbers) != name.count("{}"):
        if stored == _STRETCHED:
            raise UnsupportedError(
                f"{where} has {stored}: its positions are stretched for long contexts, by numbers "
                f"that config.json says otherwise; not read from GGUF yet"
            )
        if re.sub(r"\d+", "{}", stem) in table.tensors.values():
            raise CheckpointError(f"{where}: {stored[:80]!r} is no name of GGUF")
        return stored  # nobody's, and said to be so
    return f"{name.format(*numbers)}.{end}"


def _heads(heads: object, rows: int, stored: str, where: str) -> int:
    if type(heads) is not int or heads < 1 or rows % (2 * heads):
        raise CheckpointError(f"{where}: {stored[:80]} has {rows} rows, of {heads!r:.40} heads")
    return heads


def _said(header: GgufHeader, table: Gguf, where: str) -> dict[str, Any]:
    """Settings of an architecture, and what llama.cpp takes where a file says nothing."""
    own = f"{table.architecture}."
    said = {
        name.removeprefix(own): value
        for name, value in header.settings.items()
        if name.startswith(own)
    }
    for name in (*_NEEDED, *table.needed):
        if name not in said:
            raise CheckpointError(f"{where} does not say {own}{name}")
    said.setdefault("rope.freq_base", 1e4)
    said.setdefault(_GROUPS, said[_HEADS])
    whole, heads = said["embedding_length"], said[_HEADS]
    if "attention.key_length" not in said and type(whole) is type(heads) is int and heads > 0:
        said["attention.key_length"] = whole // heads
    return said


def _config(
    header: GgufHeader,
    said: Mapping[str, Any],
    kind: str,
    classes: str | None,
    table: Gguf,
    where: str,
) -> dict[str, Any]:
    """What config.json would say."""
    config: dict[str, Any] = {"model_type": kind, "architectures": [f"{classes}ForCausalLM"]}
    config |= {key: said[name] for key, name in table.settings.items() if name in said}
    if (words := header.tensors.get("token_embd.weight")) is not None:
        config["vocab_size"] = words.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in header.tensors
    factor = said.get("rope.scaling.factor", 0.0)
    # llama.cpp stretches linearly where a file does not say how, and 0 is by nothing.
    scaling = said.get("rope.scaling.type", "linear")
    if scaling not in ("linear", "none"):
        raise UnsupportedError(
            f"{where}: its positions are stretched ({scaling!r:.40}); not read from GGUF yet"
        )
    if scaling == "linear" and factor != 0:
        config["rope_scaling"] = {"rope_type": scaling, "factor": factor}
    size = said.get("attention.key_length")
    for name in ("attention.value_length", "rope.dimension_count"):
        if name in said and said[name] != size:
            raise UnsupportedError(
                f"{where}: {name} is {said[name]!r:.40} and a head has {size!r:.40}; heads of two "
                f"sizes, and those of which only a part turns, are not read from GGUF yet"
            )
    # What nobody here knows goes to config.json as it is called, for `same` to be careful with.
    known = {*table.settings.values(), *_HARMLESS, *(n for n in _NONE if said.get(n) == 0)}
    config |= {
        f"{table.architecture}.{name}": value for name, value in said.items() if name not in known
    }
    blocks = said["block_count"]
    if table.largest is not None and not (type(blocks) is int and blocks <= table.largest):
        raise UnsupportedError(
            f"{where} has {blocks!r:.40} blocks; of so many GGUF does not say how scores are scaled"
        )
    return config
