import json
from pathlib import Path

import pytest

from transformer_nfn.checkpoints import read_vocabulary

UNIGRAMS = [["the", 0.0], ["▁cat", -1.5], ["Ġsat", -2.0]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.txt", "the\n▁cat\nĠsat\n"),
        ("vocab.json", json.dumps({"the": 0, "▁cat": 1, "Ġsat": 2, "odd": "no number"})),
        ("tokenizer.json", json.dumps({"model": {"vocab": {"the": 0, "▁cat": 1, "Ġsat": 2}}})),
        ("tokenizer.json", json.dumps({"model": {"vocab": UNIGRAMS}})),
    ],
)  # fmt: skip
def test_words_of_each_kind_of_file(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_vocabulary(tmp_path) == {0: "the", 1: " cat", 2: " sat"}


def test_words_of_bytes_are_decoded(tmp_path: Path) -> None:
    """Those of GPT-2: letters beyond ASCII and ends of lines are written as other letters."""
    words = {"Ġcaf\u00c3\u00a9": 0, "Ċ": 1, "Ã": 2, "｜x": 3, "a": 4}
    (tmp_path / "vocab.json").write_text(json.dumps(words))
    assert read_vocabulary(tmp_path) == {0: " café", 1: "\n", 2: "\ufffd", 3: "｜x", 4: "a"}
    (tmp_path / "vocab.json").write_text(json.dumps({"Ã©": 0}))  # here nothing is of bytes
    assert read_vocabulary(tmp_path) == {0: "Ã©"}


def test_a_line_ends_only_where_a_tokenizer_ends_it(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes("a\r\n\u2028\n\x85\n\x0c\nb\n".encode())
    assert read_vocabulary(tmp_path) == {0: "a", 1: "\u2028", 2: "\x85", 3: "\x0c", 4: "b"}


def test_a_word_that_nobody_can_read_is_cut(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("a" * 10**6 + "\n" + "b" * 40)
    assert read_vocabulary(tmp_path) == {0: "a" * 40 + "…", 1: "b" * 40}


@pytest.mark.parametrize(
    "content",
    ["", "[", "[" * 100_000, "3", "{}", '{"model": 3}', '{"model": {"vocab": 7}}',
     '{"model": {"vocab": [3, [], [7]]}}', "[[]," * 2**20, "\x00\xff"],
)  # fmt: skip
def test_what_is_no_vocabulary_is_passed_over(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="latin-1")
    assert read_vocabulary(tmp_path) == {}
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    assert read_vocabulary(tmp_path) == {0: "a", 1: "b"}


def test_a_folder_in_its_place_and_a_file_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    assert read_vocabulary(tmp_path) == {}
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    monkeypatch.setattr("transformer_nfn.checkpoints.vocabulary._MOST_BYTES", 3)
    assert read_vocabulary(tmp_path) == {}
