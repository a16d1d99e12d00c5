"""The words behind token ids, from the tokenizer's files beside a checkpoint: only to be shown."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

#: Largest file that is read, and most objects and lists in it: pairs of merges are lists.
_MOST_BYTES = 32 * 2**20
_MOST_CONTAINERS = 2**20
#: Letters of a word that are kept.
_LONGEST = 40
#: How tokenizers write the space before a word.
_SPACE = "Ġ"
_SPACES = {_SPACE: " ", "▁": " "}
#: The letters that stand for bytes in GPT-2's tokenizer and those made like it: those that can be
#: seen stand for themselves, the others for further letters in order.
_SEEN = (*range(33, 127), *range(161, 173), *range(174, 256))
_UNSEEN = (number for number in range(256) if number not in _SEEN)
_BYTES = {chr(n): n for n in _SEEN} | {chr(256 + i): n for i, n in enumerate(_UNSEEN)}


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
        # Not `splitlines`: some words are characters that it takes for ends of lines.
        lines = _small(folder / "vocab.txt").decode().replace("\r\n", "\n").rstrip("\n").split("\n")
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
    shown = _of_bytes if any(_SPACE in word for word in words) else _shown
    return {number: shown(word) for word, number in words.items() if isinstance(number, int)}


def _of_bytes(word: str) -> str:
    """A word that is written byte by byte, as GPT-2 does: "cafÃ©" is "café"."""
    try:
        return _shown(bytes(_BYTES[letter] for letter in word).decode(errors="replace"))
    except KeyError:  # a word that was added as it is
        return _shown(word)


def _shown(word: str) -> str:
    for mark, space in _SPACES.items():
        word = word.replace(mark, space)
    return word if len(word) <= _LONGEST else word[:_LONGEST] + "…"
