"""An adapter as PEFT stores it: for each module s B A beside its weight, with A "r x" and B "y r*".

Whatever invertible matrix stands between B and A, the product is the same. Settings that would make
something else of the two are refused, and so is every setting that nobody knows.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from transformer_nfn.checkpoints import CheckpointError, Closing, Entry, TensorFiles, read_json_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
#: Those that say which modules of which network an adapter is for: two adapters are compared only
#: where they are equal.
PLACE = (
    "base_model_name_or_path", "revision", "task_type", "auto_mapping", "target_modules",
    "exclude_modules", "layers_to_transform", "layers_pattern", "fan_in_fan_out",
)  # fmt: skip
_SCALE = ("r", "lora_alpha", "use_rslora")
#: Those that a finished adapter is not changed by.
_HARMLESS = (
    "peft_version", "inference_mode", "lora_dropout", "megatron_core", "qalora_group_size",
    "runtime_config", "loftq_config",
)  # fmt: skip
#: What some must say. Other ways to begin change the network that the adapter is for, or leave
#: something where a module has no tensors.
_FIXED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (True, "gaussian"),
}
#: An empty one of others may be a setting of its own.
_PATTERNS = ("rank_pattern", "alpha_pattern")


def is_adapter(path: str | Path) -> bool:
    """Whether there is an adapter in a folder, or a file is one's."""
    here = Path(path)
    return (here / CONFIG).is_file() or (here.name == WEIGHTS and (here.parent / CONFIG).is_file())


class Module(NamedTuple):
    """What an adapter adds to the weight of one module.

    Attributes:
        down: A, "r x".
        up: B, "y r".
    """

    down: Tensor
    up: Tensor


class Adapter(Closing):
    """An adapter on a disk. A context manager, since it holds a file open.

    Attributes:
        path: Its folder.
        files: Its tensors.
        config: What adapter_config.json says.
        rank: The r of all its modules.
        scale: What the products are multiplied with.
        modules: The names of the modules that it changes.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the folder of an adapter, or its file of weights; no tensor is read.

        Raises:
            CheckpointError: If it is none, or has what is not known of LoRA.
        """
        here = Path(path)
        self.path = here.parent if here.name == WEIGHTS else here
        self.config = read_json_file(self.path / CONFIG)
        self.rank, self.scale = _settings(self.config, self.path / CONFIG)
        self.files = TensorFiles(self.path / WEIGHTS)
        try:
            self.modules = self._modules()
        except BaseException:
            self.close()
            raise

    def _modules(self) -> list[str]:
        found: dict[str, set[str]] = {}
        for name, entry in self.files.entries.items():
            ending = next((end for end in (_DOWN, _UP) if name.endswith(end)), None)
            if ending is None or not name.startswith(_PREFIX) or len(entry.shape) != 2:
                raise CheckpointError(
                    f"{self.files.path}: {name[:80]!r} is no matrix of LoRA beside a linear layer"
                )
            if not entry.dtype.is_floating_point:
                raise CheckpointError(f"{self.files.path}: {name[:80]!r} is {entry.dtype}")
            if entry.shape[0 if ending == _DOWN else 1] != self.rank or 0 in entry.shape:
                raise CheckpointError(
                    f"{self.files.path}: {name[:80]!r} has the shape {list(entry.shape)}, "
                    f"and {CONFIG} has r = {self.rank}"
                )
            found.setdefault(name.removesuffix(ending), set()).add(ending)
        for module, endings in found.items():
            if len(endings) != 2:
                raise CheckpointError(f"{self.files.path}: {module[:80]!r} lacks one of its two")
        if not found:
            raise CheckpointError(f"{self.files.path} has no tensors")
        return sorted(found)

    def module(self, name: str) -> Module:
        """Its two matrices as they are stored."""
        return Module(*(self.files.read(name + end) for end in (_DOWN, _UP)))

    def stored_entries(self, name: str) -> tuple[Entry, Entry]:
        """Dtypes and shapes of its two matrices."""
        return self.files.entry(name + _DOWN), self.files.entry(name + _UP)

    def stored(self, name: str, module: Module) -> dict[str, Tensor]:
        """The two matrices by their names in the file."""
        return {name + _DOWN: module.down, name + _UP: module.up}

    def close(self) -> None:
        """Close its file."""
        self.files.close()


def _settings(config: dict[str, Any], path: Path) -> tuple[int, float]:
    """The rank, and what products are multiplied with."""
    for key, allowed in _FIXED.items():
        if repr(config.get(key, allowed[0])) not in map(repr, allowed):  # 1 is not true
            raise CheckpointError(
                f"{path}: {key} is {config[key]!r:.40}, and only {allowed[0]!r} is known"
            )
    known = {*PLACE, *_SCALE, *_HARMLESS, *_FIXED}
    for key, value in config.items():
        off = value is None or value is False or (key in _PATTERNS and value == {})
        if key not in known and not off:
            raise CheckpointError(
                f"{path}: {key[:60]!r} is {value!r:.40}, which may make another function of two "
                f"matrices than their product"
            )
    rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    rooted = config.get("use_rslora", False)
    if type(rank) is not int or rank < 1 or type(rooted) is not bool:
        raise CheckpointError(f"{path}: r is {rank!r:.40}, use_rslora {rooted!r:.40}")
    if type(alpha) not in (int, float) or not math.isfinite(alpha):
        raise CheckpointError(f"{path}: lora_alpha is {alpha!r:.40}")
    return rank, alpha / (math.sqrt(rank) if rooted else rank)
