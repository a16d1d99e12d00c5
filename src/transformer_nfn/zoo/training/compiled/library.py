"""Compile kernel.cpp for this processor, once, and load it."""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

import torch

#: If this is 0, networks of zoos are trained and asked without a compiler.
SWITCH = "TNFN_COMPILE"
#: What a compiler of C++ may be called, after what the environment says.
COMPILERS = ("c++", "g++", "clang++")
SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC")
REALS = {torch.float32: "float", torch.float64: "double"}
#: Compiling takes 4 s; a compiler that hangs must not hang a build.
LIMIT = 120.0


@lru_cache(maxsize=2)
def load_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled kernel for float32 or float64; None where it cannot be had.

    It is compiled for the processor it runs on, and kept in the user's cache under a hash of the
    source and of all that the compiler says of itself and of the processor.
    """
    if os.environ.get(SWITCH) == "0" or os.name != "posix" or dtype not in REALS:
        return None
    try:
        compiler = _compiler()
        if compiler is None:
            return None
        command = [*compiler, *FLAGS, f"-DREAL={REALS[dtype]}"]
        about = [*compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
        macros = _run(about)
        key = hashlib.sha256(SOURCE.read_bytes() + macros + os.fsencode(shlex.join(command)))
        library = _folder() / f"kernel-{key.hexdigest()[:32]}.so"
        if not library.exists():
            _compile(command, library)
        _check_own(library)
        try:
            return ctypes.CDLL(str(library))
        except OSError:  # cut off, when a machine lost its power
            _compile(command, library)
            return ctypes.CDLL(str(library))
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        _warn(f"the C++ compiler failed ({ascii(lines[-1])[:200]})")
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        _warn(ascii(str(error))[:200])
    return None


def _compiler() -> list[str] | None:
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    return None


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout


def _compile(command: list[str], library: Path) -> None:
    # Several workers may compile at once; each writes its own file, and the last one stays.
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        _run([*command, str(SOURCE), "-o", str(made)])
        made.replace(library)


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "transformer-nfn" / "compiled"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = folder.resolve()  # a link could lead elsewhere after the check
    _check_own(folder)
    return folder


def _check_own(path: Path) -> None:
    """What is loaded runs as code: nobody else may have written it."""
    status = path.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"others may write to {path}: make it your own, with mode 700")


def _warn(why: str) -> None:
    warnings.warn(
        f"torch runs the networks of zoos, half as fast or slower: {why}; {SWITCH}=0 says so "
        "beforehand",
        stacklevel=3,
    )
