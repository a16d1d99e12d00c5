"""Commands as a user runs them, `main` and all, in this process."""

import sys
from typing import NamedTuple

import pytest

from transformer_nfn.cli.main import main


class Ended(NamedTuple):
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


def tnfn(capsys: pytest.CaptureFixture[str], *words: object) -> Ended:
    """Run a command; an exception that `main` does not turn into a line is raised."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as set:
        set.setattr(sys, "argv", ["tnfn", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    return Ended(int(ended.value.code or 0), said.out, said.err)
