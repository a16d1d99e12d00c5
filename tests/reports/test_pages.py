"""Pages load nothing, obey nothing that a name says, and show what they are given."""

import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from transformer_nfn.reports import HeatMap, Page, Twig, draw_tree, legend

HOSTILE = "<script>alert(1)</script>\"'><img src=http://evil/x>\n\u202e"


class Tags(HTMLParser):
    """All tags of a page, with their attributes, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(path: Path) -> Tags:
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    assert not tags.open
    return tags


def everything(text: str, path: Path) -> None:
    """A page with the same text wherever there can be some."""
    page = Page(text, text)
    page.heading(text)
    page.text(text)
    page.answer(text, [(text, text)], "good")
    page.table([text, "b"], [[text, text]], right=("b",))
    page.bars([(text, 0.5, text)])
    page.drawings([HeatMap(np.eye(3), 0.0, 1.0, text).html()])
    page.drawing(legend(text, text))
    page.drawing(draw_tree([Twig(text, "", 0, None, False), Twig(text, text, 1, 0, True)]))
    page.save(path, text)


def test_a_hostile_name_stays_text(tmp_path: Path) -> None:
    everything("harmless", tmp_path / "a.html")
    everything(HOSTILE, tmp_path / "b.html")
    plain, hostile = (parsed(tmp_path / name) for name in ("a.html", "b.html"))
    assert [tag for tag, _ in hostile.found] == [tag for tag, _ in plain.found]
    assert hostile.text.count("<script>alert(1)</script>") == plain.text.count("harmless")
    assert "\u202e" not in hostile.text


def test_nothing_is_loaded_from_elsewhere(tmp_path: Path) -> None:
    everything("plain", tmp_path / "a.html")
    tags = parsed(tmp_path / "a.html")
    assert {tag for tag, _ in tags.found}.isdisjoint({"script", "link", "iframe", "object"})
    for _, attributes in tags.found:
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("src") or "data:").startswith("data:")
        assert "href" not in attributes
    policy = next(a["content"] for t, a in tags.found if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_a_heat_map_has_a_pixel_for_each_number() -> None:
    numbers = np.array([[0.0, 1.0, np.nan], [0.5, -1.0, 2.0]])
    html = HeatMap(numbers, 0.0, 1.0, "a").html()
    found = re.search(r"base64,([^\"]+)", html)
    assert found is not None
    png = b64decode(found[1])
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (3, 2)
    start = png.index(b"IDAT") + 4
    rows = zlib.decompress(png[start:])
    pixels = np.frombuffer(rows, np.uint8).reshape(2, 10)[:, 1:].reshape(2, 3, 3)
    dark, bright = (68, 1, 84), (253, 231, 37)
    assert tuple(pixels[0, 0]) == tuple(pixels[1, 1]) == dark  # below the lowest: the lowest
    assert tuple(pixels[0, 1]) == tuple(pixels[1, 2]) == bright
    assert tuple(pixels[0, 2]) == (190, 190, 190)  # no number
    assert tuple(pixels[1, 0]) == (33, 145, 140)


def test_a_browser_can_read_the_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    found = re.search(r"base64,([^\"]+)", HeatMap(np.eye(5), 0.0, 1.0, "a").html())
    assert found is not None
    (tmp_path / "a.png").write_bytes(b64decode(found[1]))
    with image.open(tmp_path / "a.png") as opened:
        opened.verify()
        assert opened.size == (5, 5)


def test_a_tree_links_each_to_the_one_above() -> None:
    drawn = draw_tree(
        [
            Twig("a", "", 0, None, False),
            Twig("b", "copy", 1, 0, True),
            Twig("c", "0.1", 2, 1, False),
        ]
    )
    assert re.findall(r'circle class="(\w+)"', drawn) == ["root", "copy", "related"]
    assert len(re.findall("<path", drawn)) == 2
    (one, two) = re.findall(r'd="M(\d+) (\d+)V(\d+)H(\d+)"', drawn)
    assert (one, two) == (("10", "10", "30", "36"), ("36", "30", "50", "62"))
