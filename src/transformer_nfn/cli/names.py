"""How commands show the names of files that they found."""

import os
from collections.abc import Sequence
from pathlib import Path

from transformer_nfn.escaping import for_terminal

#: What a file alone in its folder is called.
USUAL = ("model.safetensors", "model.safetensors.index.json")


def short(path: str, folder: Path) -> str:
    """A name under a folder, as a terminal may show it.

    The usual names of a file alone in its folder say nothing, so the folder's stands for them.
    """
    below = Path(path)
    if below.is_relative_to(folder):
        below = below.relative_to(folder)
    return for_terminal(
        str(below.parent if below.name in USUAL and below.parent != Path() else below)
    )


def one_line(text: str) -> str:
    r"""An error as one line that steers no terminal: it may quote what a file says.

    Example:
        >>> one_line("not JSON:\n  line 1\x1b[2J")
        'not JSON: line 1\\x1b[2J'
    """
    return for_terminal(" ".join(text.split()))[:2000]


def common_folder(paths: Sequence[str]) -> Path:
    """The folder that some files or URLs share.

    Example:
        >>> str(common_folder(["/nets/a/1.safetensors", "/nets/ab/1.safetensors"]))
        '/nets'
    """
    try:
        return Path(os.path.commonpath([os.path.dirname(path) for path in paths]))
    except ValueError:  # none, or files and URLs
        return Path("/")
