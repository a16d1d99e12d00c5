"""Compile kernel.cpp for this processor, once, and load it."""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

#: Set to 0, zoos are trained without a compiler.
OFF = "TNFN_COMPILE"
#: What a compiler of C++ may be called, after what the environment says.
COMPILERS = ("c++", "g++", "clang++")
SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-std=c++17", "-shared", "-fPIC")
REALS = {torch.float32: "float", torch.float64: "double"}
#: Compiling takes 4 s; a compiler that hangs must not hang a build.
LIMIT = 120.0


def _compiler() -> list[str] | None:
    if os.environ.get(OFF) == "0":
        return None
    for name in (os.environ.get("CXX", ""), *COMPILERS):
        words = shlex.split(name)
        if words and shutil.which(words[0]):
            return words
    return None


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "transformer-nfn"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What is loaded from here runs as code: nobody else may write there.
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(f"{folder} can be written by others")
    return folder


@lru_cache(maxsize=2)
def load_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled kernel for float32 or float64; None where it cannot be had.

    It is compiled for the processor it runs on, and kept in the user's cache under a hash of the
    source and of all that the compiler says of itself and of the processor.
    """
    compiler = _compiler()
    if compiler is None or dtype not in REALS:
        return None
    try:
        command = [*compiler, *FLAGS, f"-DREAL={REALS[dtype]}"]
        about = [*compiler, "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
        macros = subprocess.run(about, capture_output=True, check=True, timeout=LIMIT).stdout
        key = hashlib.sha256(SOURCE.read_bytes() + macros + shlex.join(command).encode())
        library = _folder() / f"kernel-{key.hexdigest()[:32]}.so"
        if not library.exists():
            # Several workers may compile at once; each writes its own file, and the last one stays.
            with tempfile.TemporaryDirectory(dir=library.parent) as folder:
                made = Path(folder) / library.name
                asked = [*command, str(SOURCE), "-o", str(made)]
                subprocess.run(asked, capture_output=True, check=True, timeout=LIMIT)
                made.replace(library)
        return ctypes.CDLL(str(library))
    except (OSError, subprocess.SubprocessError):
        return None
