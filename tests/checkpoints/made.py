"""Small checkpoints of each family, written by `transformers` itself, nothing left at 0 or 1."""

import contextlib
import io
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

FAMILIES = ("gpt2", "bert", "vit", "llama", "qwen2")


def config(family: str, **changes: Any) -> transformers.PretrainedConfig:
    """Sizes that differ from each other: D=24, 3 heads of 8 (Llama 6 of 4 in 2 groups), D_A=40."""
    bert = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
    }
    llama = {
        **bert,
        "vocab_size": 60,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    made: dict[str, Any] = {
        "gpt2": lambda **c: transformers.GPT2Config(**c),
        "bert": lambda **c: transformers.BertConfig(**c),
        "vit": lambda **c: transformers.ViTConfig(**c),
        "llama": lambda **c: transformers.LlamaConfig(**c),
        "qwen2": lambda **c: transformers.Qwen2Config(**c),
        "mistral": lambda **c: transformers.MistralConfig(**c),
    }
    sizes: dict[str, dict[str, Any]] = {
        "gpt2": {
            "vocab_size": 60,
            "n_positions": 16,
            "n_embd": 24,
            "n_layer": 2,
            "n_head": 3,
            "n_inner": 40,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "bert": {**bert, "vocab_size": 60, "max_position_embeddings": 16},
        "vit": {**bert, "image_size": 12, "patch_size": 4, "num_labels": 5},
        "llama": llama,
        "qwen2": {**llama, "tie_word_embeddings": True},
        "mistral": llama,
    }
    return made[family](**{**sizes[family], **changes})


CLASSES = {
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "vit": "ViTForImageClassification",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "mistral": "MistralForCausalLM",
}


def model(family: str, seed: int = 0, cls: str | None = None, **changes: Any) -> Any:
    """A model with random weights, biases and norms."""
    torch.manual_seed(seed)
    with contextlib.redirect_stderr(io.StringIO()):
        net = getattr(transformers, cls or CLASSES[family])(config(family, **changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in net.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("bias"):
                value.copy_(noise * 0.3)
            elif "norm" in name.lower() or "ln_" in name:
                value.copy_(1 + 0.3 * noise)
            else:
                value.copy_(noise * (0.3 if value.dim() > 1 else 1.0))
    return net


def save(net: Any, folder: Path, dtype: torch.dtype = torch.float32, **options: Any) -> Path:
    """Write it as `transformers` does."""
    with contextlib.redirect_stderr(io.StringIO()):
        net.to(dtype).save_pretrained(folder, **options)
    return folder


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """Read it as `transformers` does."""
    with contextlib.redirect_stderr(io.StringIO()):
        kind = transformers.AutoConfig.from_pretrained(folder).architectures[0]
        net = getattr(transformers, kind).from_pretrained(folder, dtype=dtype).eval()
        net.set_experts_implementation("eager")  # the grouped one knows no float64
        return net


def inputs(family: str, seed: int = 0) -> dict[str, Tensor]:
    """What the model is called with."""
    generator = torch.Generator().manual_seed(seed)
    if family == "vit":
        return {"pixel_values": torch.randn(3, 3, 12, 12, generator=generator)}
    return {"input_ids": torch.randint(0, 60, (3, 9), generator=generator)}


@torch.no_grad()
def logits(net: Any, family: str, seed: int = 0) -> Tensor:
    """What it says, in its own dtype."""
    given = inputs(family, seed)
    if "pixel_values" in given:
        given = {"pixel_values": given["pixel_values"].to(next(net.parameters()).dtype)}
    with contextlib.redirect_stderr(io.StringIO()):
        out = net(**given)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def zoo_net(path: Path, block: str = "paper", seed: int = 0, text: bool = False) -> Path:
    """A net as `tnfn zoo export` writes it, with random weights and biases."""
    from safetensors.torch import save_file

    from transformer_nfn.zoo.dataset import NetShape

    shape = NetShape(
        block=block, tokens=9, inputs=0 if text else 20, D=24, heads=3, D_A=40, hidden=12, classes=5
    )
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (_, size) in shape.stored.items():
        scale = 0.3 if len(size) == 1 else size[-2] ** -0.5 * 1.5
        tensors[name] = torch.randn(size, generator=generator) * scale
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, {"net": shape.model_dump_json()})
    return path


def unchecked(checkpoint: Any, element: Any, out: Path) -> Path:
    """What an element makes of a checkpoint, though it is no symmetry of it."""
    from transformer_nfn.checkpoints import rewrite
    from transformer_nfn.identity.elements.acting import block_changes, outside_changes
    from transformer_nfn.identity.elements.applying import untied

    changes = dict(outside_changes(checkpoint, element))
    for number in range(checkpoint.blocks):
        changes |= dict(block_changes(checkpoint, element, number))
    added, config = untied(checkpoint, element)
    return rewrite(checkpoint, changes.items(), out, added=added, config=config)
