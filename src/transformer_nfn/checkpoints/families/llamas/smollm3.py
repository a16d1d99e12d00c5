"""SmolLM3: Llama of which every fourth block has no positions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families.llamas.llama import LLAMA, LLAMA_KEYS
from transformer_nfn.checkpoints.settings.keys import Joint, Key, padding, setting
from transformer_nfn.checkpoints.settings.rotary import ROPE, WINDOWS, qwen2_windows, read_rope

_PLACES = ("no_rope_layers", "no_rope_layer_interval")
_OTHERS = (
    "num_key_value_heads",
    "tie_word_embeddings",
    "sliding_window",
    "layer_types",
    "pad_token_id",
)


def _turning(config: Mapping[str, Any], blocks: int) -> tuple[bool, ...]:
    """What the list says, 1 where positions turn; else every so many blocks they do not."""
    stated = config.get("no_rope_layers")
    if stated is None:
        every = setting(config, Key("no_rope_layer_interval", "", int, 4))
        stated = [int((number + 1) % every != 0) for number in range(blocks)]
    if (
        not isinstance(stated, list)
        or len(stated) != blocks
        or any(n not in (0, 1) for n in stated)
    ):
        raise CheckpointError(f"no_rope_layers should be {blocks} times 0 or 1, not {stated!r:.60}")
    return tuple(bool(number) for number in stated)


def _windows(config: Mapping[str, Any], blocks: int) -> tuple[int | None, ...]:
    """Where nothing else is said, blocks without positions have the window."""
    stated = {"sliding_window": None, **config, "max_window_layers": 0}
    if stated.get("layer_types") is None:
        used = config.get("use_sliding_window") is True and stated["sliding_window"] is not None
        turning = _turning(config, blocks)
        kinds = [
            "full_attention" if turns or not used else "sliding_attention" for turns in turning
        ]
        stated["layer_types"] = kinds
    return qwen2_windows(stated, blocks)


_KEYS = replace(
    LLAMA_KEYS,
    classes="SmolLM3",
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("num_key_value_heads", "groups", int, 4, null=True),
        Key("tie_word_embeddings", "tied", bool, True),
        padding(128004),
    ),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 32768)),
        Joint(WINDOWS, "windows", _windows),
        Joint(_PLACES, "turning", _turning),
    ),
    blocks=36,
)

SMOLLM3 = replace(LLAMA, name="smollm3", keys={"smollm3": _KEYS})
