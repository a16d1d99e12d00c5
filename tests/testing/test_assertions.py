"""The assertions hold where they should, and say what is wrong where they do not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.material.families import make
from benchmarks.material.gguf_files import source, write
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import Answer, apply_element, random_net_element
from transformer_nfn.testing import assert_kin, assert_same_function, assert_within, opened


@pytest.fixture(scope="module")
def net() -> Any:
    return made.model("llama")


def moved(folder: Path, out: Path) -> Path:
    with Checkpoint(folder) as checkpoint:
        generator = torch.Generator().manual_seed(0)
        return apply_element(checkpoint, random_net_element(checkpoint, generator), out)


def changed(net: Any, name: str, value: Tensor) -> dict[str, Tensor]:
    return {**net.state_dict(), name: value}


def test_paths_models_and_tensors_are_the_same(net: Any, tmp_path: Path) -> None:
    folder = made.save(net, tmp_path / "net")
    other = moved(folder, tmp_path / "moved")
    assert assert_same_function(net, folder).answer is Answer.SAME_BYTES
    assert assert_same_function(net, str(other)).answer is Answer.EQUIVALENT
    tensors = net.state_dict()
    assert assert_same_function(tensors, other, config_first=net.config).answer.same_function
    assert_same_function(tensors, net, config_first=net.config.to_dict())
    assert_same_function(tensors, net, config_first=folder / "config.json")
    with opened(folder) as checkpoint:
        assert_same_function(checkpoint, net)


def test_a_difference_is_named(net: Any) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    value = net.state_dict()[name].clone()
    value[3] += 0.5
    with pytest.raises(AssertionError) as error:
        assert_same_function(net, changed(net, name, value), config_second=net.config, seed=1)
    said = str(error.value)
    assert said.startswith("not the same function: different")
    assert "layers.1" in said
    assert "seed=1" in said


def test_what_is_no_model(net: Any) -> None:
    with pytest.raises(TypeError, match="give config="):
        assert_same_function(net.state_dict(), net)
    with pytest.raises(TypeError, match="a dict of tensors"):
        assert_same_function(3, net)  # type: ignore[arg-type]


def test_kin(net: Any) -> None:
    noisy = {n: t + 0.1 * t.std() * torch.randn(t.shape) for n, t in net.state_dict().items()}
    assert assert_kin(noisy, net, config_first=net.config).log_p < -20
    with pytest.raises(AssertionError, match="not kin: unrelated"):
        assert_kin(made.model("llama", seed=1), net)


def test_within(tmp_path: Path) -> None:
    folder = source("llama", tmp_path / "net", initializer_range=0.02)
    fine, coarse = (write(folder, tmp_path / f"{of}.gguf", of) for of in ("Q8_0", "Q4_0"))
    found = assert_within(folder, fine, 0.2, seed=0)
    assert set(found.outputs) == {"lm_head"}
    assert 0 < found.largest < 0.2
    assert assert_within(folder, folder, 0.0).largest == 0
    with pytest.raises(AssertionError, match="lm_head of the two differs by") as error:
        assert_within(folder, coarse, found.largest, seed=0)
    assert "seed=0" in str(error.value)
    with pytest.raises(AssertionError, match="not the same function"):
        assert_same_function(folder, fine)


def test_not_a_number_is_not_within(net: Any) -> None:
    name = "model.norm.weight"
    value = torch.full_like(net.state_dict()[name], torch.nan)
    with pytest.raises(AssertionError):
        assert_within(net, changed(net, name, value), 10.0, config_second=net.config)


def test_within_sees_nan_wherever_it_is(tmp_path: Path) -> None:
    folder = make("bert", tmp_path / "a", dtype=torch.float32, model="BertModel")
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("pooler.dense.bias"))
    tensors[name] = torch.full_like(tensors[name], torch.nan)
    with pytest.raises(AssertionError, match="nan"):
        assert_within(folder, tensors, 0.01, config_second=folder / "config.json", seed=0)
