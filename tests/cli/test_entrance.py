"""What a stranger types first."""

import subprocess
import sys

import pytest

from tests.cli.run import tnfn
from transformer_nfn import __version__


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    ended = tnfn(capsys, "--version")
    assert (ended.code, ended.out) == (0, f"tnfn {__version__}\n")


@pytest.mark.parametrize("words", [(), ("same",), ("zoo", "build")])
def test_h_is_help(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    short, long = (tnfn(capsys, *words, option) for option in ("-h", "--help"))
    assert short.out == long.out
    assert "-h" in short.out
    assert "--help" in short.out


def test_the_package_is_a_command() -> None:
    words = [sys.executable, "-m", "transformer_nfn", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"tnfn {__version__}\n"
