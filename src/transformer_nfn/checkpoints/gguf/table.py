"""What llama.cpp makes of a model: its names, and what it changes of the numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Gguf:
    """How a model_type stands in GGUF.

    Attributes:
        architecture: What `general.architecture` says.
        tensors: Names without .weight or .bias, and what they are called in a checkpoint of
            `transformers`; braces stand for the number of a block.
        settings: Keys of config.json, and the settings after the architecture's name they are.
        paired: Names whose rows stand in pairs in each head, as they turn together, where
            `transformers` has the first halves of all pairs before the second; and the setting
            that says how many heads these are.
        added: What was added to all norms' scales.
        needed: Settings that must be there, beside those that all need.
        largest: Most blocks; larger ones have settings that llama.cpp knows by their size.
    """

    architecture: str
    tensors: Mapping[str, str]
    settings: Mapping[str, str]
    paired: Mapping[str, str] = field(default_factory=dict)
    added: float = 0.0
    needed: tuple[str, ...] = ()
    largest: int | None = None
