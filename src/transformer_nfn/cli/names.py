"""How commands show the names of files that they found."""

from pathlib import Path


def short(path: str, folder: Path) -> str:
    """A name under a folder; quoted if it has characters that would steer a terminal.

    The usual names of a file alone in its folder say nothing, so the folder's stands for them.
    """
    below = Path(path).relative_to(folder)
    usual = ("model.safetensors", "model.safetensors.index.json")
    name = str(below.parent if below.name in usual and below.parent != Path() else below)
    return name if name.isprintable() else ascii(name)
