"""What runs the tutorials sees when one of them is wrong."""

from pathlib import Path

import pytest

from tools.readme import PAGES, ROOT, Example, Page, complaint, examples, session

SESSION = """$ tnfn same a b
answer   different
distance 0.3
$ echo $?
3
$ tnfn inspect a
"""


def test_a_session_is_its_calls_with_codes_and_lines_without_digits() -> None:
    first, second = session(7, SESSION)
    assert first == Example(7, ["bash", "-c", "tnfn same a b"], None, ("answer   different",), 3)
    assert (second.command[2], second.lines, second.code) == ("tnfn inspect a", (), 0)


@pytest.mark.parametrize(
    ("example", "wrong"),
    [
        (Example(1, ["bash", "-c", "echo one  two; exit 3"], None, ("one two",), 3), None),
        (Example(1, ["bash", "-c", "echo one; exit 3"], None, (), 0), "exit code 3, not 0"),
        (Example(1, ["bash", "-c", "echo one"], None, ("two",)), "not printed: two"),
        (Example(1, ["bash", "-c", "echo one"], "two\n"), "+one"),
    ],
)
def test_what_is_not_as_shown_is_said(example: Example, wrong: str | None, tmp_path: Path) -> None:
    said = complaint(example, str(tmp_path))
    assert said is None if wrong is None else wrong in (said or "")


def test_what_is_to_be_made_small_must_be_on_the_page() -> None:
    assert (ROOT / "README.md").is_file()
    with pytest.raises(AssertionError, match="has no"):
        list(examples(Page("README.md", small={"--runs 123456": "--runs 1"})))


def test_ci_runs_every_page_and_each_once():
    """Each by itself, so that they run beside each other."""
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    words = [line.split()[2] for line in lines if line.startswith("python tools/readme.py ")]
    for page in PAGES:
        assert [word for word in words if word in page.path], page.path
    assert sorted(sum(word in page.path for page in PAGES) for word in words) == [1] * len(PAGES)
