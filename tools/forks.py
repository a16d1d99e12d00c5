"""Run Python and `tnfn` in forks of this process, which has imported torch and the like once.

A fresh interpreter takes several seconds for that, which is most of what a small example takes. Our
own package is not among what is imported before: each fork imports it anew.
"""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

TIMEOUT = 900  # seconds for one fork


class Ended(NamedTuple):
    """The exit code and all that was printed."""

    code: int
    out: str
    err: str


def prepare(*modules: str) -> None:
    """Import what forks will need."""
    for name in ("torch", *modules):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)  # a fork has none of its parent's threads
    assert "transformer_nfn" not in sys.modules


def run_python(code: str) -> None:
    """Run a program as `python -W error -c` does."""
    warnings.simplefilter("error")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["-c"]
    exec(compile(code, "<page>", "exec"), main.__dict__)


def run_tnfn(words: list[str]) -> None:
    """Run a command as its script does."""
    from transformer_nfn.cli import main

    sys.argv = ["tnfn", *words]
    main()


def forked(do: Callable[[], None], folder: str | Path, env: Mapping[str, str]) -> Ended:
    """Call something in a fork, in another folder, and wait for its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            signal.alarm(TIMEOUT)
            for file, stream in ((out, 1), (err, 2)):
                os.dup2(file.fileno(), stream)
            _ended(do, folder, env)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed = []
        for file in (out, err):
            file.seek(0)
            printed.append(file.read().decode())
    return Ended(code, *printed)


def _ended(do: Callable[[], None], folder: str | Path, env: Mapping[str, str]) -> NoReturn:
    """The whole life of a fork: nothing of what its parent was about to do is done twice."""
    code = 1
    # Whatever its parent has there.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        os.chdir(folder)
        os.environ.update(env)
        do()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
