"""What can be known to be wrong before anything heavy is imported: torch alone takes seconds."""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from math import inf
from pathlib import Path

import typer


class EarlyError(ValueError):
    """A path or a package that a command cannot do without."""


#: Of the benchmark, which is not imported before it is needed (a test compares them).
SPLITS = 5


def check_there(*paths: str | None) -> None:
    """Complain of the first path that does not exist; what is at a URL is seen later.

    Raises:
        EarlyError: If there is one.
    """
    for path in paths:
        if path is not None and _is_missing(path):
            raise EarlyError(f"{path or repr(path)} does not exist")


def check_some_there(paths: Sequence[str]) -> None:
    """The same where commands go on with what is there: only if all are missing."""
    if all(map(_is_missing, paths)):
        check_there(*paths)


def check_zoos(*folders: str | None) -> None:
    """The same of zoos, with what makes one."""
    for folder in folders:
        if folder is not None and _is_missing(folder):
            raise EarlyError(
                f"{folder} is no zoo: it does not exist. `tnfn zoo build RECIPE --out FOLDER` "
                "makes one"
            )


def _is_missing(path: str) -> bool:
    if "://" in path:
        return False
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):  # such as a folder that may not be looked into: said later
        return False
    return False


def check_writable(path: Path | None, kinds: tuple[str, ...]) -> None:
    """Complain of a file that cannot be written before hours of work and not after.

    Raises:
        EarlyError: If its ending is another, its folder missing, or it is a folder.
    """
    if path is None:
        return
    if path.name in ("", *kinds):  # no name at all, or only an ending
        raise EarlyError(f"{path} is no name for a file; give one that ends in {kinds[0]}")
    if path.suffix not in kinds:
        raise EarlyError(f"{path} should end in {' or '.join(kinds)}")
    if not path.absolute().parent.is_dir():
        raise EarlyError(f"{path.parent} is no folder; make it first")
    if path.is_dir():
        raise EarlyError(f"{path} is a folder, not a file to write")
    if path.is_symlink() and path.resolve().suffix not in kinds:
        raise EarlyError(f"{path} is a link to {path.resolve()}, which would be overwritten")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise EarlyError(f"{path} cannot be written: permission denied")


def check_not_read(reads: Sequence[str | None], *writes: Path | None) -> None:
    """Complain of a file to write that the same command reads: a checkpoint would be lost.

    Raises:
        EarlyError: If it is one of the inputs, or one of the files of an input.
    """
    for path in writes:
        for source in reads:
            if path is not None and source is not None and _is_read(path, source):
                raise EarlyError(f"{path} is what this command reads; choose another name")


def _is_read(path: Path, source: str) -> bool:
    """Whether a file is an input, or lies with the weights of an input of several files."""
    if not path.exists() or not os.path.exists(source):
        return False
    if os.path.samefile(path, source):
        return True
    folder = source if os.path.isdir(source) else os.path.dirname(source) or "."
    several = os.path.isdir(source) or source.endswith(".json")
    weights = path.resolve().suffix in (".safetensors", ".gguf")
    return weights and several and os.path.samefile(path.resolve().parent, folder)


def above_zero(value: float | None) -> float | None:
    """A number that is to be above 0 and finite, which no range of typer says.

    Raises:
        typer.BadParameter: If it is not.
    """
    if value is not None and not 0 < value < inf:
        raise typer.BadParameter(f"{value} is not a number above 0")
    return value


def known_device(device: str) -> str:
    """A device that is there.

    Raises:
        typer.BadParameter: If there is no such GPU.
    """
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise typer.BadParameter("torch sees no GPU here; --device cpu needs none")
    return device


def chosen_splits(text: str) -> tuple[int, ...]:
    """Splits as the command line has them: how many, or which, as a list with a comma.

    Raises:
        typer.BadParameter: If it is neither.
    """
    try:
        named = tuple(int(one) for one in text.split(",") if one)
    except ValueError:
        named = ()
    if "," not in text:
        named = tuple(range(named[0])) if named else ()
    if not named or not set(named) <= set(range(SPLITS)):
        raise typer.BadParameter(
            f"{text!r} is no number of splits, 1 to {SPLITS}, and no list of them, such as 1,2"
        )
    return tuple(dict.fromkeys(named))


def check_package(package: str, what: str, extra: str) -> None:
    """Complain of a package that will be missing.

    Raises:
        EarlyError: If it is not installed, saying what installs it.
    """
    if find_spec(package) is None:
        raise EarlyError(f"{what} needs {package}: `pip install 'transformer-nfn[{extra}]'`")


def check_picture(path: Path | None) -> None:
    """Complain of a picture that cannot be drawn before the work, too."""
    check_writable(path, (".png", ".pdf", ".svg"))
    if path is not None:
        check_package("matplotlib", "--plot", "zoo")
