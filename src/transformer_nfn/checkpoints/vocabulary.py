"""The words behind token ids, from the tokenizer's files beside a checkpoint: only to be shown."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Largest file that is read, and most objects and lists in it: pairs of merges are lists.
_MOST_BYTES = 32 * 2**20
_MOST_CONTAINERS = 2**20
#: How tokenizers write the space before a word.
_SPACES = {"Ġ": " ", "▁": " "}


def read_vocabulary(folder: Path) -> dict[int, str]:
    """Words by their ids; empty where there is no tokenizer, or none that can be read.

    Nothing depends on it but what a person sees, so files that are broken, hostile or too large
    are passed over in silence.

    Args:
        folder: Where config.json lies.
    """
    for name, words in (("tokenizer.json", _of_tokenizer), ("vocab.json", _of_table)):
        with suppress(OSError, ValueError, RecursionError):
            text = _small(folder / name)
            if text.count(b"[") + text.count(b"{") <= _MOST_CONTAINERS and (
                found := words(json.loads(text))
            ):
                return found
    with suppress(OSError, ValueError):
        lines = _small(folder / "vocab.txt").decode().splitlines()
        return dict(enumerate(map(_shown, lines)))
    return {}


def _small(path: Path) -> bytes:
    if not path.is_file() or path.stat().st_size > _MOST_BYTES:
        raise ValueError
    return path.read_bytes()[:_MOST_BYTES]


def _of_tokenizer(content: Any) -> dict[int, str]:
    """Of `tokenizer.json`: a table of words, or for unigrams a list of words and scores."""
    model = content.get("model") if isinstance(content, dict) else None
    words = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(words, list):
        pairs = ((row[0], i) for i, row in enumerate(words) if isinstance(row, list) and row)
        words = {word: number for word, number in pairs if isinstance(word, str)}
    return _of_table(words)


def _of_table(words: Any) -> dict[int, str]:
    if not isinstance(words, Mapping):
        return {}
    return {number: _shown(word) for word, number in words.items() if isinstance(number, int)}


def _shown(word: str) -> str:
    for mark, space in _SPACES.items():
        word = word.replace(mark, space)
    return word
