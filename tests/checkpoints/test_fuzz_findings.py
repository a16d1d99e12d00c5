"""What fuzzing found in checkpoints that were taken for whole."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.safety.hostile_files.material import make_base
from transformer_nfn.checkpoints import FAMILIES, Checkpoint, CheckpointError


@pytest.mark.parametrize("left", ["embedding.weight", "embedding.bias"])
def test_a_zoo_net_with_half_an_embedding(left: str, tmp_path: Path) -> None:
    base = make_base(FAMILIES["zoo-paper"])
    tensors = {n: t for n, t in base.tensors.items() if not n.startswith("embedding.") or n == left}
    save_file(tensors, tmp_path / "a.safetensors", base.metadata)
    with pytest.raises(CheckpointError, match="not the other half"):
        Checkpoint(tmp_path / "a.safetensors")


def test_a_zoo_net_without_an_embedding_is_sound(tmp_path: Path) -> None:
    base = make_base(FAMILIES["zoo-paper"])
    tensors = {n: t for n, t in base.tensors.items() if not n.startswith("embedding.")}
    save_file(tensors, tmp_path / "a.safetensors", base.metadata)
    with Checkpoint(tmp_path / "a.safetensors") as opened:
        assert not opened.writers


@pytest.mark.parametrize(
    ("family", "name"), [("llama", "model.embed_tokens.weight"), ("gpt2", "transformer.wpe.weight")]
)
def test_an_embedding_without_rows(family: str, name: str, tmp_path: Path) -> None:
    base = make_base(FAMILIES[family])
    tensors = base.tensors | {name: torch.zeros(0, 8)}
    save_file(tensors, tmp_path / "model.safetensors", base.metadata)
    (tmp_path / "config.json").write_bytes(base.beside["config.json"])
    with pytest.raises(CheckpointError, match="has no rows"):
        Checkpoint(tmp_path)
