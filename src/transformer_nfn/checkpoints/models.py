"""What people may give for a model: a path, or what they have in memory."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias, runtime_checkable

from safetensors.torch import save_file
from torch import Tensor

from transformer_nfn.checkpoints.checkpoint import Checkpoint
from transformer_nfn.checkpoints.files.places import place_of, read_json_file


@runtime_checkable
class SavesItself(Protocol):
    """A model of `transformers`."""

    def save_pretrained(self, save_directory: str | Path) -> Any:
        """Write weights and config.json to a folder."""


Model: TypeAlias = str | Path | Checkpoint | SavesItself | Mapping[str, Tensor]
#: A table, a config of `transformers`, or where config.json is.
Config: TypeAlias = Any


@contextmanager
def opened(model: Model, config: Config = None, only: str | None = None) -> Iterator[Checkpoint]:
    """A model as a checkpoint.

    Args:
        model: A path or URL, an open checkpoint, a model of `transformers`, or tensors by the names
            that it has for them.
        config: Of the tensors; or another than that beside a path.
        only: A part of the model; of an open checkpoint what it was opened with.

    Raises:
        TypeError: If it is none of these, or tensors come without a config.
    """
    if isinstance(model, Checkpoint):
        yield model
    elif isinstance(model, str | Path):
        given = config if isinstance(config, str | Path) else None
        options = None if given is not None or config is None else _table(config)
        with Checkpoint(model, config=given, options=options, only=only) as checkpoint:
            yield checkpoint
    else:
        with TemporaryDirectory() as home:
            _write(model, config, Path(home))
            with Checkpoint(home, only=only) as checkpoint:
                yield checkpoint


def _write(model: SavesItself | Mapping[str, Tensor], config: Config, home: Path) -> None:
    if isinstance(model, SavesItself):
        model.save_pretrained(home)
        return
    if not isinstance(model, Mapping) or not all(isinstance(t, Tensor) for t in model.values()):
        raise TypeError(
            f"a model is a path, a model of transformers, or a dict of tensors, not {type(model)}"
        )
    if config is None:
        raise TypeError("tensors alone do not say what they compute: give config= as well")
    # Tied tensors share their memory, which safetensors does not allow.
    own = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.items()}
    save_file(own, home / "model.safetensors", {"format": "pt"})
    (home / "config.json").write_text(json.dumps(_table(config)))


def _table(config: Config) -> dict[str, Any]:
    if isinstance(config, str | Path):
        return dict(read_json_file(place_of(config)))
    if hasattr(config, "to_dict"):
        # Through its own JSON: a dtype is no JSON, and some values only it can write.
        return dict(json.loads(config.to_json_string(use_diff=False)))
    return dict(config)
