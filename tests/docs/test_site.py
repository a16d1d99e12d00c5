"""What holds for every page: it can be found, is short, and opens with what it is for."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
#: Pages of which another is made, or that are reached from their index.
NOT_IN_NAV = ("results/notes.md", "decisions/")
#: Written by `tnfn bench report`, and reached from its first page.
DETAILS = ("-independent.md", "-shared.md", "results/learning-curves.md", "results/transfer.md")
DETAILS += ("results/questions.md", "results/paper.md")
MOST_WORDS = 1500


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_in_the_navigation(page: str) -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    detail = page.startswith("results/") and page.endswith(DETAILS)
    assert page.startswith(NOT_IN_NAV) or detail or page in nav


@pytest.mark.parametrize("page", PAGES)
def test_pictures_are_there(page: str) -> None:
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (DOCS / page).read_text()):
        assert (DOCS / page).parent.joinpath(target).is_file(), target


@pytest.mark.parametrize("folder", ["tutorials", "guides"])
def test_pages_are_short_and_say_what_they_are_for(folder: str) -> None:
    for path in sorted((DOCS / folder).glob("*.md")):
        text = path.read_text()
        assert len(text.split()) <= MOST_WORDS, path.name
        title, _, rest = text.partition("\n\n")
        assert title.startswith("# "), path.name
        first = rest.split("\n\n")[0]
        assert re.match(r"[A-Z*`]", first), f"{path.name} does not open with a sentence"


@pytest.mark.parametrize("word", ["convert", "quantize", "fine-tune", "train"])
def test_the_search_finds_what_people_type(word: str) -> None:
    found = []
    for page in PAGES:
        text = (DOCS / page).read_text().lower()
        headings = [line for line in text.splitlines() if line.startswith("#")]
        if word in " ".join([*headings, *text.split("\n\n")[1:2]]):
            found.append(page)
    assert any(page.startswith(("guides/", "tutorials/")) for page in found)
