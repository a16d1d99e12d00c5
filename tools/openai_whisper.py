"""Give Whisper's tensors, as OpenAI's own file names them, the names that `transformers` has.

Usage: python tools/openai_whisper.py FOLDER OUT

FOLDER holds model.safetensors with OpenAI's names, and a config.json with the sizes that OpenAI's
file has beside them (n_mels, n_audio_head, …). No number is changed.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

#: What stands in a name of OpenAI's, as a whole part of it, and what `transformers` calls it.
_NAMES = {
    r"^(encoder|decoder)\.": r"model.\1.",
    r"\.blocks\.": ".layers.",
    r"\.cross_attn_ln\.": ".encoder_attn_layer_norm.",
    r"\.cross_attn\.": ".encoder_attn.",
    r"\.attn_ln\.": ".self_attn_layer_norm.",
    r"\.attn\.": ".self_attn.",
    r"\.(query|key|value)\.": lambda found: f".{found[1][0]}_proj.",
    r"attn\.out\.": "attn.out_proj.",
    r"\.mlp_ln\.": ".final_layer_norm.",
    r"\.mlp\.0\.": ".fc1.",
    r"\.mlp\.2\.": ".fc2.",
    r"^model\.(encoder\.ln_post|decoder\.ln)\.": lambda found: f"model.{found[1][:7]}.layer_norm.",
    r"\.positional_embedding$": ".embed_positions.weight",
    r"\.token_embedding\.": ".embed_tokens.",
}
#: Sizes of OpenAI's file, and the keys of config.json that they are.
_SIZES = {
    "n_mels": "num_mel_bins",
    "n_vocab": "vocab_size",
    "n_audio_ctx": "max_source_positions",
    "n_audio_state": "d_model",
    "n_audio_head": "encoder_attention_heads",
    "n_audio_layer": "encoder_layers",
    "n_text_ctx": "max_target_positions",
    "n_text_head": "decoder_attention_heads",
    "n_text_layer": "decoder_layers",
}


def renamed(name: str) -> str:
    """The name that `transformers` has for a tensor.

    Examples:
        >>> renamed("decoder.blocks.0.cross_attn.query.weight")
        'model.decoder.layers.0.encoder_attn.q_proj.weight'
        >>> renamed("encoder.ln_post.bias")
        'model.encoder.layer_norm.bias'
    """
    for pattern, other in _NAMES.items():
        name = re.sub(pattern, other, name)
    return name


def convert(folder: Path, out: Path) -> None:
    """Write the same numbers under other names."""
    tensors = {renamed(n): t for n, t in load_file(folder / "model.safetensors").items()}
    sizes: dict[str, Any] = json.loads((folder / "config.json").read_text())
    width = {"encoder": "encoder_ffn_dim", "decoder": "decoder_ffn_dim"}
    config = {
        "model_type": "whisper",
        "architectures": ["WhisperForConditionalGeneration"],
        **{_SIZES[name]: value for name, value in sizes.items() if name in _SIZES},
        **{k: len(tensors[f"model.{part}.layers.0.fc1.bias"]) for part, k in width.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1))
    print(f"{len(tensors)} tensors in {out}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
