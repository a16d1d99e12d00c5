"""Folders of small checkpoints for bulk work."""

from pathlib import Path

import fsspec

from tests.checkpoints import made


def some_nets(home: Path, count: int = 3) -> Path:
    """Zoo nets with distinct weights, one below the other."""
    for number in range(count):
        made.zoo_net(home / f"{number % 2}" / f"{number}.safetensors", "residual", number)
    return home


def upload(home: Path, url: str) -> str:
    """The same files behind a URL."""
    fs, path = fsspec.core.url_to_fs(url)
    for file in home.rglob("*"):
        if file.is_file():
            fs.pipe_file(f"{path}/{file.relative_to(home)}", file.read_bytes())
    return url
