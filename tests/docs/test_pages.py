"""The code on the pages of the documentation runs and prints what the pages show."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return [(m[1], m[2]) for m in FENCE.finditer((DOCS / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    "page",
    [
        "index.md",
        "guides/compare.md",
        "reference/symmetries.md",
        "reference/torch.md",
        "tutorials/own-networks.md",
        "understand/blocks.md",
        "understand/group.md",
        "understand/layers.md",
    ],
)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))  # a page may change it
    names: dict[str, object] = {}
    found = blocks(page)
    assert any(kind == "python" for kind, _ in found)
    printed = ""
    for kind, text in found:
        if kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, page, "exec"), names)
            printed = out.getvalue()
        elif printed:
            assert printed == text
            printed = ""
    assert not printed, "printed, but not shown on the page"


def test_a_new_block_takes_less_than_60_lines() -> None:
    declaration = next(text for kind, text in blocks("understand/blocks.md") if kind == "python")
    assert declaration.count("\n") < 60
