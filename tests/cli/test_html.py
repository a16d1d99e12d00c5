"""`--html`: a page that says what the command says."""

from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.cli.run import tnfn
from tests.reports.test_pages import parsed
from transformer_nfn.checkpoints import Checkpoint, rewrite


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A net, a copy, a stranger, a file that is none, and one of an unknown architecture."""
    home = tmp_path_factory.mktemp("nets")
    first = made.save(made.model("gpt2"), home / "first")
    with Checkpoint(first) as checkpoint:
        rewrite(checkpoint, [], home / "copy")
    made.save(made.model("gpt2", seed=1), home / "<b>other")
    (home / "broken.safetensors").write_bytes(b"no")
    return home


def page_of(capsys: pytest.CaptureFixture[str], path: Path, *words: object) -> tuple[str, str]:
    """The text of the page that a command writes, and what it prints."""
    ended = tnfn(capsys, *words, "--html", path)
    assert ended.code in (0, 3), ended
    tags = parsed(path)
    assert {tag for tag, _ in tags.found}.isdisjoint({"script", "b", "link"})
    return tags.text, ended.out


def test_same_shows_heads_and_what_both_say(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = nets / "first", nets / "<b>other"
    text, said = page_of(capsys, tmp_path / "a.html", "same", *pair)
    assert f"{pair[0]} and {pair[1]}" in text
    assert "different: not the same function" in text
    assert "An input on which they differ" in text
    assert text.count("block 0") == 1
    assert "html" in said
    assert "seen on" in text
    page = (tmp_path / "a.html").read_text()
    assert page.count("data:image/png") == 1 + 1  # up to the first block that differs; the legend


def test_kin_shows_the_table_of_the_terminal(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = page_of(capsys, tmp_path / "a.html", "kin", nets / "first", nets / "copy")
    assert "Blocks of the network" in text
    for line in said.splitlines():
        if "keep their place" in line:
            assert line.split("  ")[-1].strip() in text


def test_dedup_shows_trees_and_what_was_not_read(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = page_of(capsys, tmp_path / "a.html", "dedup", nets)
    assert said.splitlines()[-1] in text
    assert "Lineages" in text
    assert "<b>other" in text
    assert "broken.safetensors" in text


def test_inspect_shows_symmetries(
    nets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = page_of(capsys, tmp_path / "a.html", "inspect", nets / "first")
    assert "Symmetries" in text
    assert "order of hidden neurons" in text


@pytest.mark.parametrize(
    "words", [("same", "A", "A"), ("kin", "A", "A"), ("dedup", "A"), ("inspect", "A")]
)
def test_a_page_that_cannot_be_written_is_refused_first(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.txt", "none/a.html"):
        ended = tnfn(capsys, *words, "--html", tmp_path / name)
        assert ended.code == 1
        assert "A" not in ended.err.split() or "does not exist" not in ended.err
