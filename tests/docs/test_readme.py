"""What runs the tutorials sees when one of them is wrong."""

from functools import partial
from pathlib import Path

import pytest

from tools.forks import run_python, run_tnfn
from tools.readme import PAGES, ROOT, Example, Page, command, complaint, examples, session

SESSION = """$ tnfn same a b
answer   different
distance 0.3
$ echo $?
3
$ tnfn inspect a
"""


def test_a_session_is_its_calls_with_codes_and_lines_without_digits() -> None:
    first, second = session(7, SESSION)
    assert first[2:] == (None, ("answer   different",), 3)
    assert (first.line, second.lines, second.code) == (7, (), 0)
    for example, words in ((first, ["same", "a", "b"]), (second, ["inspect", "a"])):
        (call,) = example.calls
        assert isinstance(call, partial)
        assert (call.func, call.args) == (run_tnfn, (words,))


def test_a_line_for_the_shell_is_no_call() -> None:
    with pytest.raises(AssertionError, match="not only a call"):
        command("tnfn inspect a | head")


def says(code: str) -> tuple[partial[None], ...]:
    return (partial(run_python, code),)


@pytest.mark.parametrize(
    ("example", "wrong"),
    [
        (Example(1, says("print('one  two'); exit(3)"), None, ("one two",), 3), None),
        (Example(1, says("print('one'); exit(3)"), None, (), 0), "exit code 3, not 0"),
        (Example(1, says("print('one')"), None, ("two",)), "not printed: two"),
        (Example(1, says("print('one')"), "two\n"), "+one"),
        (Example(1, (*says("exit(3)"), *says("print('one')")), None, ("one",), 0), "exit code 3"),
        (Example(1, says("import warnings; warnings.warn('bad')")), "UserWarning: bad"),
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
