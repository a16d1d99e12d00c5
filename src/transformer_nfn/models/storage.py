"""Save and load a model: one safetensors file, its config in the file's metadata."""

import json
import os
import tempfile
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from transformer_nfn.models.agreement import AgreementConfig, AgreementProbes
from transformer_nfn.models.config import NFNConfig
from transformer_nfn.models.flat_mlp import FlatMLP, FlatMLPConfig
from transformer_nfn.models.headnet import HeadNet
from transformer_nfn.models.headnetconfig import HeadNetConfig
from transformer_nfn.models.nfn import TransformerNFN
from transformer_nfn.models.parts import WeightModel
from transformer_nfn.models.probes import ProbeNet, ProbeNetConfig
from transformer_nfn.models.statnn import StatNN, StatNNConfig
from transformer_nfn.models.weighttokens import TokenNet, TokenNetConfig

#: The value of "format" in the metadata; another number is another layout.
FORMAT = "transformer-nfn/1"


class Kind(NamedTuple):
    """What a model of a kind is built from and with."""

    config: type[BaseModel]
    module: Any  # takes such a config


#: The models that can be stored, by the value of "kind" in the metadata.
KINDS = {
    "nfn": Kind(NFNConfig, TransformerNFN),
    "flat_mlp": Kind(FlatMLPConfig, FlatMLP),
    "statnn": Kind(StatNNConfig, StatNN),
    "probes": Kind(ProbeNetConfig, ProbeNet),
    "agreement": Kind(AgreementConfig, AgreementProbes),
    "heads": Kind(HeadNetConfig, HeadNet),
    "tokens": Kind(TokenNetConfig, TokenNet),
}


def register_model(kind: str, config: type[BaseModel], module: type[WeightModel]) -> None:
    """Let `save_model` and `load_model` store models of your own.

    Who loads such a file has to register the same kind first: a file names it, and never says
    what code to run. But a file has the config, so let the config refuse what is too large: the
    model is built of it, without memory, before its tensors are compared with those of the file.

    Examples:
        >>> from pydantic import BaseModel
        >>> from transformer_nfn.models import WeightModel, register_model
        >>> class MineConfig(BaseModel):
        ...     width: int
        >>> class Mine(WeightModel):
        ...     def __init__(self, config: MineConfig) -> None:
        ...         super().__init__()
        ...         self.config = config
        >>> register_model("mine", MineConfig, Mine)

    Args:
        kind: What the file calls it; no name that another model has.
        config: All that is needed to build one again.
        module: Takes such a config, and has it as `config`.

    Raises:
        ValueError: If the name stands for another model.
        TypeError: If these are no classes of a config and of a model.
    """
    if not (isinstance(config, type) and issubclass(config, BaseModel)):
        raise TypeError(f"the config of {kind!r:.40} is {config!r:.60}, no pydantic model")
    if not (isinstance(module, type) and issubclass(module, WeightModel)):
        raise TypeError(f"{kind!r:.40} is {module!r:.60}, no WeightModel")
    if kind in KINDS and KINDS[kind] != Kind(config, module):
        raise ValueError(f"{kind!r} is the name of {KINDS[kind].module.__name__} already")
    KINDS[kind] = Kind(config, module)


class ModelFileError(ValueError):
    """A file that is not a model of this package."""


def save_model(model: WeightModel, path: str | Path) -> None:
    """Write a model, or nothing: under a temporary name first, then renamed.

    The metadata has ``format``, ``kind`` and ``config``, the config as JSON; the tensors are the
    state dict.
    """
    path = Path(path)
    kind = next((name for name, kind in KINDS.items() if kind.module is type(model)), None)
    if kind is None:
        raise TypeError(
            f"{type(model).__name__} cannot be stored; only "
            f"{sorted(kind.module.__name__ for kind in KINDS.values())} can, and what "
            f"register_model was told of"
        )
    metadata = {"format": FORMAT, "kind": kind, "config": model.config.model_dump_json()}
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(save(tensors, metadata))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load_model(path: str | Path) -> WeightModel:
    """Read a model that `save_model` wrote. No code is run, nothing is unpickled.

    Raises:
        FileNotFoundError: If there is no such file.
        ModelFileError: If it is no model, or its tensors do not fit its config.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            kind, config = _kind_and_config(path, file.metadata() or {})
            names = list(file.keys())
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            _compare(path, shapes, _wanted_shapes(path, kind, config, shapes))
            model: WeightModel = kind.module(config)
            _fill(path, model, {name: file.get_tensor(name) for name in names})
    except SafetensorError as error:
        raise ModelFileError(f"{path} is not a safetensors file: {error}") from error
    return model


def _fill(path: Path, model: WeightModel, tensors: dict[str, torch.Tensor]) -> None:
    """Give a model its numbers, in the dtype that they were saved in."""
    for name, own in model.state_dict().items():
        if own.is_floating_point() != tensors[name].is_floating_point():
            raise ModelFileError(f"{path}: {name[:80]!r} is {tensors[name].dtype}, not {own.dtype}")
    dtypes = {tensors[name].dtype for name, _ in model.named_parameters()}
    if len(dtypes) == 1:
        model.to(dtypes.pop())
    model.load_state_dict(tensors)


def _wanted_shapes(
    path: Path, kind: Kind, config: BaseModel, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors that the config asks for, at the cost of what the file really holds.

    The config is the file's own word, so nothing is allocated (device "meta"), and a config that
    asks for more layers or parameters than the file has is refused before they are counted out.
    """
    try:
        if isinstance(config, NFNConfig):
            config = _limited(config, shapes)
        if isinstance(config, HeadNetConfig) and config.blocks > len(shapes):
            raise ValueError(f"it asks for {config.blocks} blocks of {len(shapes)} tensors")
        with torch.device("meta"):
            model = kind.module(config)
    except Exception as error:  # whatever a model of somebody's own may raise
        raise ModelFileError(f"the tensors of {path} do not fit its config: {error}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _limited(config: NFNConfig, shapes: dict[str, tuple[int, ...]]) -> NFNConfig:
    """Here the config says how many layers there are, and how large they are."""
    layers = len(config.channels or ()) + config.blocks
    if layers > len(shapes):
        raise ValueError(f"it asks for {layers} layers, the file has {len(shapes)} tensors")
    held = sum(prod(shape) for shape in shapes.values())
    return config.model_copy(update={"max_parameters": min(config.max_parameters, held)})


def _kind_and_config(path: Path, metadata: dict[str, str]) -> tuple[Kind, BaseModel]:
    if metadata.get("format") != FORMAT:
        raise ModelFileError(
            f"{path} is no saved model: its metadata has format "
            f"{metadata.get('format')!r}, expected {FORMAT!r}"
        )
    # The first files had one kind and did not say so.
    kind = KINDS.get(metadata.get("kind", "nfn"))
    if kind is None:
        raise ModelFileError(
            f"{path} has a model of kind {metadata['kind']!r:.60}, expected one of "
            f"{sorted(KINDS)}; if it is one of your own, call register_model first"
        )
    try:
        return kind, kind.config.model_validate(json.loads(metadata.get("config", "")))
    except (
        ValidationError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise ModelFileError(f"{path} has no valid config: {error}") from error


def _compare(
    path: Path, shapes: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]
) -> None:
    missing = sorted(set(wanted) - set(shapes))
    unexpected = sorted(set(shapes) - set(wanted))
    wrong = [
        f"{name} is {shapes[name]}, expected {wanted[name]}"
        for name in sorted(set(wanted) & set(shapes))
        if shapes[name] != wanted[name]
    ]
    if missing or unexpected or wrong:
        raise ModelFileError(
            f"the tensors of {path} do not fit its config; missing: {_some(missing)}, "
            f"unexpected: {_some(unexpected)}, of the wrong shape: {_some(wrong)}"
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{names[:5]}{more}"
