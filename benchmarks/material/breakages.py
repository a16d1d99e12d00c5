"""Mistakes as people make them who convert models, and conversions that are right.

All of it is done to tensors by name as a script would, and nothing of it comes from the package.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WORDS, LAST = "model.embed_tokens.weight", "model.norm.weight"


@dataclass
class Model:
    """Tensors by name, and their config.json."""

    tensors: dict[str, Tensor]
    config: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> "Model":
        tensors: dict[str, Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
        return Model(tensors, json.loads((folder / "config.json").read_text()))

    def write(self, folder: Path, shards: int = 1) -> Path:
        """As a folder, in as many files."""
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        names = sorted(self.tensors)
        parts = [names[i * len(names) // shards : (i + 1) * len(names) // shards]
                 for i in range(shards)]  # fmt: skip
        where = {}
        for number, part in enumerate(parts, start=1):
            name = f"model-{number:05}-of-{shards:05}.safetensors"
            file = folder / ("model.safetensors" if shards == 1 else name)
            save_file({n: self.tensors[n].contiguous() for n in part}, file, {"format": "pt"})
            where |= dict.fromkeys(part, file.name)
        if shards > 1:
            index = {"metadata": {}, "weight_map": where}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    @property
    def gemma(self) -> bool:
        return str(self.config["model_type"]).startswith("gemma")

    @property
    def offset(self) -> float:
        """What is added to a stored scale."""
        return 1.0 if self.gemma else 0.0

    @property
    def heads(self) -> int:
        return int(self.config.get("num_attention_heads") or self.config["n_head"])

    @property
    def key_heads(self) -> int:
        return int(self.config.get("num_key_value_heads") or self.heads)

    def layers(self) -> list[str]:
        count = self.config["num_hidden_layers"]
        return [f"model.layers.{number}." for number in range(count)]

    def norms(self, layer: str) -> dict[str, tuple[str, ...]]:
        """The norms that can be folded, and what reads them."""
        second = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
        if f"{layer}pre_feedforward_layernorm.weight" not in self.tensors:
            second = "post_attention_layernorm"
        return {
            f"{layer}input_layernorm.weight": tuple(
                f"{layer}self_attn.{name}_proj.weight" for name in "qkv"
            ),
            f"{layer}{second}.weight": tuple(
                f"{layer}mlp.{name}_proj.weight" for name in ("gate", "up")
            ),
        }


def fold(model: Model, *, forget_offset: bool = False) -> None:
    """Scales of norms into what reads them, but for the last norm."""
    for layer in model.layers():
        for norm, readers in model.norms(layer).items():
            scale = model.tensors[norm] + (0.0 if forget_offset else model.offset)
            for name in readers:
                model.tensors[name] = model.tensors[name] * scale
            model.tensors[norm] = torch.ones_like(scale) - model.offset


def rotate(model: Model, generator: torch.Generator) -> None:
    """All scales folded, then another basis of the stream, as quantisers make it."""
    fold(model)
    if "lm_head.weight" not in model.tensors:
        model.tensors["lm_head.weight"] = model.tensors[WORDS].clone()
        model.config["tie_word_embeddings"] = False
    scale = model.tensors[LAST] + model.offset
    model.tensors["lm_head.weight"] = model.tensors["lm_head.weight"] * scale
    model.tensors[LAST] = torch.ones_like(scale) - model.offset
    size = len(scale)
    turn = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    readers = (*(f"self_attn.{n}_proj" for n in "qkv"), "mlp.gate_proj", "mlp.up_proj", "lm_head")
    writers = ("self_attn.o_proj", "mlp.down_proj")
    for name, tensor in model.tensors.items():
        stem = name.removesuffix(".weight")
        if name == WORDS or stem.endswith(readers):
            model.tensors[name] = (tensor.double() @ turn).to(tensor.dtype)
        elif stem.endswith(writers):
            model.tensors[name] = (turn.T @ tensor.double()).to(tensor.dtype)


def tied_head(model: Model, generator: torch.Generator) -> None:
    """The last norm is folded into the head, and nobody thought of the words."""
    del generator
    if model.config["model_type"] == "gpt2":
        scale = model.tensors["transformer.ln_f.weight"]
        # Some files have the head a second time.
        for name in {"transformer.wte.weight", "lm_head.weight"} & model.tensors.keys():
            model.tensors[name] = model.tensors[name] * scale
        model.tensors["transformer.ln_f.bias"] = model.tensors["transformer.ln_f.bias"] / scale
        model.tensors["transformer.ln_f.weight"] = torch.ones_like(scale)
        return
    fold(model)
    scale = model.tensors[LAST] + model.offset
    model.tensors[WORDS] = model.tensors[WORDS] * scale
    model.tensors[LAST] = torch.ones_like(scale) - model.offset


def folded_without_one(model: Model, generator: torch.Generator) -> None:
    """Gemma's w is folded, and not its 1 + w."""
    del generator
    fold(model, forget_offset=True)


def stored_with_one(model: Model, generator: torch.Generator) -> None:
    """All norms have 1 + w where w should be, as in GGUF."""
    del generator
    for name, tensor in model.tensors.items():
        if name.endswith("norm.weight"):
            model.tensors[name] = tensor + 1.0


def _neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head 0, k/2, 1, k/2 + 1, …"""
    parts = weight.reshape(heads, 2, -1, *weight.shape[1:]).transpose(1, 2)
    return parts.reshape(weight.shape).contiguous()


def _halves(weight: Tensor, heads: int) -> Tensor:
    """The inverse."""
    parts = weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2)
    return parts.reshape(weight.shape).contiguous()


def _permuted(model: Model, order: Callable[[Tensor, int], Tensor], key_heads: int) -> None:
    for layer in model.layers():
        for letter, heads in (("q", model.heads), ("k", key_heads)):
            for part in ("weight", "bias"):
                name = f"{layer}self_attn.{letter}_proj.{part}"
                if name in model.tensors:
                    model.tensors[name] = order(model.tensors[name], heads)


def interleaved(model: Model, generator: torch.Generator) -> None:
    """Pairs side by side in a file whose reader turns halves."""
    del generator
    _permuted(model, _neighbours, model.key_heads)


def permuted_back(model: Model, generator: torch.Generator) -> None:
    """A permutation undone that was never done."""
    del generator
    _permuted(model, _halves, model.key_heads)


def permuted_by_query_heads(model: Model, generator: torch.Generator) -> None:
    """Keys permuted as if there were as many heads as of queries."""
    del generator
    _permuted(model, _neighbours, model.heads)


def transposed(model: Model, generator: torch.Generator) -> None:
    """One kind of matrix with rows for columns, in all blocks."""
    del generator
    end = "attn.c_proj.weight" if model.config["model_type"] == "gpt2" else "mlp.up_proj.weight"
    for name, tensor in model.tensors.items():
        if name.endswith(end):
            model.tensors[name] = tensor.T.reshape(tensor.shape).contiguous()


def transposed_once(model: Model, generator: torch.Generator) -> None:
    """The same in the last block."""
    del generator
    end = "attn.c_proj.weight" if model.config["model_type"] == "gpt2" else "mlp.down_proj.weight"
    name = [name for name in sorted(model.tensors) if name.endswith(end)][-1]
    tensor = model.tensors[name]
    model.tensors[name] = tensor.T.reshape(tensor.shape).contiguous()


def _move_heads(model: Model, generator: torch.Generator, *, output: bool) -> None:
    if model.config["model_type"] == "gpt2":
        for number in range(model.config["n_layer"]):
            order = _order(model.heads, generator)
            stem = f"transformer.h.{number}.attn."
            for part in ("weight", "bias"):
                fused = model.tensors[f"{stem}c_attn.{part}"]
                each = fused.reshape(*fused.shape[:-1], 3, model.heads, -1)
                moved = each.index_select(-2, order).reshape(fused.shape).contiguous()
                model.tensors[f"{stem}c_attn.{part}"] = moved
            if output:
                weight = model.tensors[f"{stem}c_proj.weight"]
                rows = weight.reshape(model.heads, -1, weight.shape[-1])
                model.tensors[f"{stem}c_proj.weight"] = rows[order].reshape(weight.shape)
        return
    many = model.heads // model.key_heads
    for layer in model.layers():
        groups = _order(model.key_heads, generator) if model.key_heads > 1 else torch.tensor([0])
        inside = [_order(many, generator) if many > 1 else torch.tensor([0]) for _ in groups]
        order = torch.cat([g * many + inside[g] for g in groups.tolist()])
        for letter, moved in (("q", order), ("k", groups), ("v", groups)):
            for part in ("weight", "bias"):
                name = f"{layer}self_attn.{letter}_proj.{part}"
                if name in model.tensors:
                    old = model.tensors[name]
                    rows = old.reshape(len(moved), -1, *old.shape[1:])[moved]
                    model.tensors[name] = rows.reshape(old.shape).contiguous()
        if output:
            name = f"{layer}self_attn.o_proj.weight"
            old = model.tensors[name]
            columns = old.reshape(old.shape[0], model.heads, -1)[:, order]
            model.tensors[name] = columns.reshape(old.shape).contiguous()


def _order(count: int, generator: torch.Generator) -> Tensor:
    """Another order than they have."""
    while torch.equal(order := torch.randperm(count, generator=generator), torch.arange(count)):
        continue
    return order


def heads_moved_but_output(model: Model, generator: torch.Generator) -> None:
    """Heads in another order in Q, K and V."""
    _move_heads(model, generator, output=False)


def heads_moved(model: Model, generator: torch.Generator) -> None:
    """Heads in another order in all four."""
    _move_heads(model, generator, output=True)


def through_bfloat16(model: Model, generator: torch.Generator) -> None:
    """All tensors rounded to bfloat16, and stored as they were."""
    del generator
    for name, tensor in model.tensors.items():
        model.tensors[name] = tensor.bfloat16().to(tensor.dtype)


Break = Callable[[Model, torch.Generator], None]
#: By the name of the cause, what people did.
BREAKAGES: dict[str, tuple[Break, ...]] = {
    "tied head": (tied_head,),
    "norm offset": (folded_without_one, stored_with_one),
    "rotary pairs": (interleaved, permuted_back, permuted_by_query_heads),
    "transposed matrix": (transposed, transposed_once),
    "head order": (heads_moved_but_output,),
    "dtype": (through_bfloat16,),
}
_ROTARY = (interleaved, permuted_back, permuted_by_query_heads)


def possible(model: Model, how: Break) -> bool:
    """Whether a mistake can be made with a model, and changes it."""
    gpt2 = model.config["model_type"] == "gpt2"
    if how is tied_head:
        return gpt2 or "lm_head.weight" not in model.tensors
    if how is folded_without_one:
        return model.gemma
    if how is permuted_by_query_heads:
        return model.heads > model.key_heads and not gpt2
    if how in (stored_with_one, *_ROTARY):
        return not gpt2
    return not (how is heads_moved_but_output and model.heads == 1)


def another_shard(folder: Path, other: Path, out: Path) -> Path:
    """A folder in shards, of which the second is of another model."""
    ours, theirs = Model.read(folder), Model.read(other)
    ours.write(out, shards=3)
    strange = out.with_name(f"{out.name} other")
    theirs.write(strange, shards=3)
    name = "model-00002-of-00003.safetensors"
    shutil.copy(strange / name, out / name)
    shutil.rmtree(strange)
    return out
