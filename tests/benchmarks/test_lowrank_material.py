from pathlib import Path

import pytest
import torch

from tests.checkpoints import made
from transformer_nfn.space import GROUPED, RESIDUAL, BlockSpec

material = pytest.importorskip("benchmarks.core.lowrank_sizes", reason="no benchmarks in an sdist")

BERT = BlockSpec(RESIDUAL, D=24, heads=3, D_k=8, D_v=8, D_A=40)
LLAMA = BlockSpec(GROUPED, D=24, groups=2, heads_per_group=3, D_k=4, D_v=4, D_A=40)


@pytest.mark.parametrize(("family", "spec"), [("bert", BERT), ("llama", LLAMA)])
def test_real_weights_are_those_of_the_file(family: str, spec: BlockSpec, tmp_path: Path) -> None:
    net = made.model(family)
    weights = material.read_weights(
        material.Case(spec, blocks=2, real=True), made.save(net, tmp_path)
    )
    assert weights.batch.spec == spec
    inside = [
        value
        for name, value in net.state_dict().items()
        if ("encoder.layer." in name or "model.layers." in name) and "norm" not in name.lower()
    ]
    assert material.count(weights.batch.tensors.values()) == material.count(inside)
    total = sum(tensor.double().sum().item() for tensor in weights.batch.tensors.values())
    assert weights.plain_read() == pytest.approx(total, rel=1e-3, abs=1e-3)
    for model in material.MODELS.values():
        assert torch.isfinite(model.make(spec, 2)(weights.batch)).all()


def test_a_block_with_biases_is_not_read_as_grouped(tmp_path: Path) -> None:
    folder = made.save(made.model("qwen2"), tmp_path)
    with pytest.raises(ValueError, match="the bias of Q is not 0"):
        material.read_weights(material.Case(LLAMA, blocks=2, real=True), folder)


def test_random_weights_come_back(tmp_path: Path) -> None:
    case = material.Case(LLAMA, blocks=2)
    material.write_random(case, tmp_path / "weights.safetensors")
    weights = material.read_weights(case, tmp_path / "weights.safetensors")
    assert (weights.batch.spec, weights.batch.blocks) == (LLAMA, 2)
    with pytest.raises(ValueError, match="has 2 blocks, the case has 3"):
        material.read_weights(
            material.Case(LLAMA, blocks=3, real=True), made.save(made.model("llama"), tmp_path)
        )
