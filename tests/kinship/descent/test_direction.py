"""Which of two came first: what people do to networks, and what looks like it."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints import made
from tests.kinship.descent.test_kin import LLAMA, asked, changed, net, noisy, source
from transformer_nfn.kinship import Relation


def with_config(folder: Path, **changes: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_neurons_of_zeros_and_copies_were_put_there(tmp_path: Path) -> None:
    base = net(tmp_path / "a")

    def longer(tail: str) -> Path:
        def change(name: str, value: Tensor) -> Tensor:
            axis = -1 if ".mlp.c_fc" in name else 0 if name.endswith("mlp.c_proj.weight") else None
            if axis is None:
                return value
            more = value.narrow(axis, 0, 8)
            return torch.cat([value, more if tail == "copies" else 0 * more], dim=axis)

        return with_config(changed(base, tmp_path / tail, change), n_inner=136)

    for tail in ("zeros", "copies"):
        other = longer(tail)
        found = asked(other, base)
        assert source(found, Relation.DERIVED) == 1
        assert "has 8 hidden neurons of the MLP more, zeros or copies" in str(found.direction)
        assert source(asked(base, other), Relation.DERIVED) == 0


def test_few_groups_of_heads_say_nothing(tmp_path: Path) -> None:
    """Twice as many keys and values, each of them twice, as some loaders need."""
    base = made.save(made.model("llama", **{**LLAMA, "num_key_value_heads": 2}), tmp_path / "a")

    def doubled(name: str, value: Tensor) -> Tensor:
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            return value.view(2, -1, value.shape[1]).repeat_interleave(2, dim=0).flatten(0, 1)
        return value

    other = with_config(changed(base, tmp_path / "b", doubled), num_key_value_heads=4)
    for pair in ((other, base), (base, other)):
        assert source(asked(*pair), Relation.DERIVED) is None


def test_blocks_that_all_began_as_one_say_nothing(tmp_path: Path) -> None:
    """As those of torch's encoder do, which copies one layer."""
    base = net(tmp_path / "a", n_layer=4)
    tensors = load_file(base / "model.safetensors")
    for name in list(tensors):
        if ".h.0." in name:
            for number in (1, 2, 3):
                tensors[name.replace(".h.0.", f".h.{number}.")] = tensors[name].clone()
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    start = changed(base, tmp_path / "b", noisy(0.3))
    kept = changed(start, tmp_path / "c", lambda name, value: value)
    tensors = {
        name.replace(".h.2.", ".h.1."): value
        for name, value in load_file(kept / "model.safetensors").items()
        if ".h.1." not in name and ".h.3." not in name
    }
    save_file(tensors, kept / "model.safetensors", {"format": "pt"})
    with_config(kept, n_layer=2)
    for pair in ((kept, start), (start, kept)):
        assert source(asked(*pair), Relation.DERIVED) is None


def test_patches_of_fewer_colours_are_no_words(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        image_size=16, patch_size=4, num_channels=3,
    )  # fmt: skip
    base = made.save(transformers.ViTForImageClassification(config), tmp_path / "a")

    def grey(name: str, value: Tensor) -> Tensor:
        return value.sum(dim=1, keepdim=True) if "projection.weight" in name else value

    other = with_config(changed(base, tmp_path / "b", grey), num_channels=1)
    for pair in ((other, base), (base, other)):
        assert source(asked(*pair), Relation.DERIVED) is None
