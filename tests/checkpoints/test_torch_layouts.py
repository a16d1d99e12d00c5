"""Layouts of PyTorch's own encoder and of timm's ViT, against the networks themselves."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import apply_element, random_net_element, run, same, symmetry_parts
from transformer_nfn.kinship import distance, fingerprint

ENCODERS = {
    "torch-encoder": {"activation": "relu", "norm_first": False},
    "torch-encoder-norm-first": {"activation": "gelu", "norm_first": True},
}


def encoder(kind: str, seed: int = 0) -> nn.TransformerEncoder:
    """Two layers, nothing left at 0 or 1."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(
        24, 6, 40, dropout=0.0, batch_first=True, dtype=torch.float64, **ENCODERS[kind]
    )
    last = nn.LayerNorm(24, dtype=torch.float64) if ENCODERS[kind]["norm_first"] else None
    net = nn.TransformerEncoder(layer, 2, last, enable_nested_tensor=False)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.3 * torch.randn_like(value) + (value.dim() == 1) * (value == 1))
    return net


def written(net: nn.Module, folder: Path, prefix: str = "") -> Path:
    folder.mkdir()
    tensors = {prefix + name: value.contiguous() for name, value in net.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def options(kind: str) -> dict[str, Any]:
    return {"model_type": kind, "nhead": 6, "activation": ENCODERS[kind]["activation"]}


@pytest.mark.parametrize("kind", ENCODERS)
def test_an_encoder_of_torch(kind: str, tmp_path: Path) -> None:
    net = encoder(kind)
    folder = written(net, tmp_path / "a", "transformer_encoder.")
    inputs = torch.randn(3, 7, 24, dtype=torch.float64)
    with Checkpoint(folder, options=options(kind)) as ours, torch.no_grad():
        wanted = net(inputs)
        torch.testing.assert_close(run(ours, inputs)["hidden"], wanted, rtol=0, atol=1e-12)
        parts = symmetry_parts(ours)
        assert {"heads", "qk", "vo", "neurons", "key_bias", "value_bias"} <= set(parts)
        assert "basis" not in parts  # the stream is what it is given
        element = random_net_element(ours, torch.Generator().manual_seed(1))
        apply_element(ours, element, tmp_path / "b")
        other = encoder(kind, seed=1)
        with Checkpoint(tmp_path / "b", options=options(kind)) as theirs:
            moved = {
                name.removeprefix("transformer_encoder."): theirs.files.read(name)
                for name in theirs.files
            }
            other.load_state_dict(moved)
            torch.testing.assert_close(other(inputs), wanted, rtol=0, atol=1e-11)
            assert same(ours, theirs, seed=0).answer.value == "equivalent"
            assert distance(fingerprint(ours), fingerprint(theirs)).largest < 1e-4
            name = "transformer_encoder.layers.1.linear2.weight"
            rewrite(theirs, [(name, theirs.files.read(name) * 1.01)], tmp_path / "c")
        with Checkpoint(tmp_path / "c", options=options(kind)) as third:
            assert not same(ours, third, seed=0, search=False).answer.same_function


def test_what_a_state_dict_does_not_say_is_asked_for(tmp_path: Path) -> None:
    folder = written(encoder("torch-encoder"), tmp_path / "a")
    with pytest.raises(CheckpointError, match="say --set model_type"):
        Checkpoint(folder)
    with pytest.raises(CheckpointError, match="nhead is not known"):
        Checkpoint(folder, options={"model_type": "torch-encoder"})


@pytest.mark.parametrize("prefix", ["", "transformer_encoder."])
def test_a_norm_at_the_end_is_the_other_kind(prefix: str, tmp_path: Path) -> None:
    folder = written(encoder("torch-encoder-norm-first"), tmp_path / "a", prefix)
    with pytest.raises(CheckpointError, match=r"norm\.\w+' belongs to a kind"):
        Checkpoint(folder, options=options("torch-encoder"))
    other = written(encoder("torch-encoder"), tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"norm.weight"):
        Checkpoint(other, options=options("torch-encoder-norm-first"))


def test_settings_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    folder = written(encoder("torch-encoder"), tmp_path / "a")
    for wrong, words in (
        ({"norm_first": True}, "only False is supported"),
        ({"dim_head": 3}, "has no such setting"),
    ):
        with pytest.raises(CheckpointError, match=words):
            Checkpoint(folder, options=options("torch-encoder") | wrong)


#: Of timm what `transformers` calls it.
_NAMES = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "head": "classifier",
}
_INSIDE = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def as_timm(state: dict[str, torch.Tensor], blocks: int) -> dict[str, torch.Tensor]:
    """The tensors of a ViT of `transformers` under timm's names."""
    names = dict(_NAMES)
    for i in range(blocks):
        names |= {f"blocks.{i}.{a}": f"vit.encoder.layer.{i}.{b}" for a, b in _INSIDE.items()}
    found = {}
    for ours, theirs in names.items():
        for ending in ("", ".weight", ".bias"):
            if theirs + ending in state:
                found[ours + ending] = state[theirs + ending].contiguous()
    for i in range(blocks):
        attention = f"vit.encoder.layer.{i}.attention.attention."
        for ending in ("weight", "bias"):
            parts = [state[f"{attention}{name}.{ending}"] for name in ("query", "key", "value")]
            found[f"blocks.{i}.attn.qkv.{ending}"] = torch.cat(parts)
    return found


def test_a_vit_of_timm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6}
    config = transformers.ViTConfig(
        **sizes, intermediate_size=40, image_size=12, patch_size=4, num_labels=5,
        layer_norm_eps=1e-6,
    )  # fmt: skip
    net = transformers.ViTForImageClassification(config).double().eval()
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.3 * torch.randn_like(value) + (value.dim() == 1) * (value == 1))
    net.save_pretrained(tmp_path / "hf")
    (tmp_path / "a").mkdir()
    tensors = as_timm(load_file(tmp_path / "hf" / "model.safetensors"), 2)
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    said = {"model_type": "timm-vit", "num_heads": 6, "img_size": 12, "patch_size": 4}
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    with Checkpoint(tmp_path / "a", options=said) as ours, torch.no_grad():
        wanted = net(images).logits
        torch.testing.assert_close(run(ours, images)["head"], wanted, rtol=0, atol=1e-11)
        element = random_net_element(ours, torch.Generator().manual_seed(1))
        apply_element(ours, element, tmp_path / "b")
        with Checkpoint(tmp_path / "b", options=said) as theirs:
            found = run(theirs, images)["head"]
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
            assert same(ours, theirs, seed=0).answer.value == "equivalent"
    for wrong, words in (
        ({"img_size": 16}, "has 10 places; an image of 16 has 17"),
        ({"model_args": {"num_heads": 3}}, "only None is supported"),
    ):
        with pytest.raises(CheckpointError, match=words):
            Checkpoint(tmp_path / "a", options=said | wrong)
    with Checkpoint(tmp_path / "a", options=said) as ours:
        flat = {name: ours.files.read(name) for name in ours.files}
    (tmp_path / "flat").mkdir()
    save_file(flat | {"pos_embed": torch.zeros(24)}, tmp_path / "flat" / "model.safetensors")
    with pytest.raises(CheckpointError, match="3 axes were expected"):
        Checkpoint(tmp_path / "flat", options=said)
