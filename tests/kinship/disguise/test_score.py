"""Networks in disguise: what a changed copy keeps after `reparam`, and what strangers reach."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import made
from tests.cli.run import tnfn
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import apply_element, canonical_block, random_net_element
from transformer_nfn.kinship import Disguise, in_disguise
from transformer_nfn.kinship.disguise.neurons import neurons

SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_inner": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300},
    **{
        family: {
            "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4,
            "num_hidden_layers": 3, "vocab_size": 300,
        }
        for family in ("bert", "llama")
    },
    "gpt2 relu": {
        "n_embd": 32, "n_inner": 64, "n_layer": 3, "n_head": 4, "vocab_size": 300,
        "activation_function": "relu",
    },
    "vit": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3},
}  # fmt: skip


def net(family: str, home: Path, seed: int = 0, **changes: Any) -> Path:
    return made.save(made.model(family.split()[0], seed, **{**SIZES[family], **changes}), home)


def noisy(folder: Path, out: Path, size: float = 0.3) -> Path:
    out.mkdir()
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: value + size * value.std().nan_to_num(0.0) * torch.randn(
            value.shape, generator=generator
        )
        for name, value in load_file(folder / "model.safetensors").items()
    }  # fmt: skip
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text((folder / "config.json").read_text())
    return out


def moved(folder: Path, out: Path) -> Path:
    with Checkpoint(folder) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(2))
        return apply_element(checkpoint, element, out)


def looked(one: Path, two: Path) -> Disguise:
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        return in_disguise(ours, theirs)


@pytest.mark.parametrize("family", SIZES)
def test_a_changed_copy_is_seen_in_disguise_and_a_stranger_is_not(
    family: str, tmp_path: Path
) -> None:
    base, stranger = net(family, tmp_path / "a"), net(family, tmp_path / "b", seed=1)
    hidden = moved(noisy(base, tmp_path / "noisy"), tmp_path / "hidden")
    found, other = looked(base, hidden), looked(base, stranger)
    assert found.score > 0.7
    assert [(one, two) for one, two, _ in found.blocks["network"]] == [(0, 0), (1, 1), (2, 2)]
    assert abs(other.score) < 0.15
    assert looked(hidden, base).score == pytest.approx(found.score, abs=0.05)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_neurons_of_a_moved_network_are_the_same_up_to_order_and_basis(
    family: str, tmp_path: Path
) -> None:
    base = net(family, tmp_path / "a")
    hidden = moved(base, tmp_path / "b")
    products = []
    for folder in (base, hidden):
        with Checkpoint(folder) as checkpoint:
            units = neurons(canonical_block(checkpoint, 1))
        # What a neuron reads times what it writes is the same in any basis.
        products.append((units[:, 0] * units[:, -1]).sum(dim=1).sort().values)
    assert torch.allclose(*products, atol=1e-5)


def test_blocks_that_were_left_out_are_found(tmp_path: Path) -> None:
    base = net("gpt2", tmp_path / "a")
    deep = made.load(base)
    deep.transformer.h = deep.transformer.h[1:]
    deep.config.n_layer = 2
    hidden = moved(made.save(deep, tmp_path / "b"), tmp_path / "c")
    for pair in ((base, hidden), (hidden, base)):
        found = looked(*pair)
        assert [(one, two) for one, two, _ in found.blocks["network"]] == [(0, 1), (1, 2)]
        assert found.score > 0.9


def test_what_cannot_be_compared_says_why(tmp_path: Path) -> None:
    one = net("gpt2", tmp_path / "a")
    found = looked(one, net("gpt2", tmp_path / "b", n_embd=16))
    assert (found.score, found.blocks) == (0.0, {})
    assert found.reason == "no table of words or patches of the same name and width"
    found = looked(net("bert", tmp_path / "c"), net("llama", tmp_path / "d"))
    assert found.blocks == {}
    assert found.reason


def test_the_command_says_it_beside_p(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = net("llama", tmp_path / "a")
    hidden = moved(base, tmp_path / "b")
    plain = tnfn(capsys, "kin", base, hidden)
    assert plain.code == 3
    assert plain.out.startswith("unrelated as far as can be seen")
    assert "--disguised looks past them" in plain.out
    found = tnfn(capsys, "kin", base, hidden, "--disguised")
    assert found.code == 3
    assert "in disguise: score 1.000; 0 is chance, 1 a copy (no p-value)" in found.out
    assert "0 with 0 1.00, 1 with 1 1.00, 2 with 2 1.00" in found.out
    facts = json.loads(tnfn(capsys, "kin", base, hidden, "--disguised", "--json").out)
    assert facts["disguised"]["score"] == pytest.approx(1, abs=1e-3)
    wrong = tnfn(capsys, "kin", base, hidden, "--disguised", "--units", tmp_path / "t.toml")
    assert wrong.code == 2
    assert "not --units" in wrong.err
    other = net("llama", tmp_path / "c", hidden_size=16)
    shown = tnfn(capsys, "kin", base, other, "--disguised").out
    assert "in disguise: not comparable, no table of words" in shown
