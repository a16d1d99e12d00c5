"""What fuzzing found in certificates and verdicts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file
from torch import Tensor

from benchmarks.safety.hostile_files.material import make_base
from transformer_nfn.checkpoints import FAMILIES, Checkpoint, CheckpointError
from transformer_nfn.identity import (
    Answer,
    load_certificate,
    random_net_element,
    same,
    save_certificate,
)


def write(folder: Path, family: str, **changed: Tensor) -> Path:
    base = make_base(FAMILIES[family])
    folder.mkdir(exist_ok=True)
    save_file(base.tensors | changed, folder / "model.safetensors", base.metadata)
    for name, content in base.beside.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gauge.0.norm.0.scale", torch.ones(8)),  # of another dtype
        ("gauge.0.norm.0.shift", torch.ones(8, dtype=torch.int64)),
        ("block.0.k", torch.zeros(2, 4, 4, dtype=torch.float64)),  # without an inverse
        ("block.0.k", torch.full((2, 4, 4), torch.nan, dtype=torch.float64)),
        ("outside.scale", torch.ones(7, dtype=torch.float64)),
        ("unseen", torch.ones(3, dtype=torch.float64)),
    ],
)
def test_a_certificate_that_would_fail_when_it_acts(
    name: str, value: Tensor, tmp_path: Path
) -> None:
    path = tmp_path / "g.safetensors"
    with Checkpoint(write(tmp_path / "net", "gpt2")) as ours:
        element = random_net_element(ours, torch.Generator().manual_seed(0))
        save_certificate(element, ours, ours, path)
        load_certificate(path, ours)
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        save_file(load_file(path) | {name: value}, path, metadata)
        with pytest.raises(CheckpointError, match="not a sound certificate"):
            load_certificate(path, ours)


def test_finite_numbers_whose_products_are_not(tmp_path: Path) -> None:
    name = "transformer.h.0.attn.c_attn.weight"
    huge = torch.full((8, 24), 3e38).double() ** 4
    options = {"dtype": "float64"}  # as one tensor is
    with (
        Checkpoint(write(tmp_path / "a", "gpt2"), options=options) as ours,
        Checkpoint(write(tmp_path / "b", "gpt2", **{name: huge}), options=options) as theirs,
    ):
        verdict = same(ours, theirs)
    assert verdict.answer is Answer.UNDECIDED
    assert "too large" in verdict.reason
