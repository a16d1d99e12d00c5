"""ModernBERT: what its config says in several ways, and a norm that is the stream and is read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.material.families import exact, inputs, load, make, outputs
from benchmarks.same.families import function_error, relative
from tests.checkpoints.test_family_settings import settings
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity import ElementError, apply_element, random_net_element, same

ROPE = {"rope_type": "default"}
WITHOUT = {"rope_parameters": ..., "layer_types": ...}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make("modernbert", tmp_path / "a")


def changed(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "config",
    [
        {"global_rope_theta": 500.0, "local_rope_theta": 50.0, "global_attn_every_n_layers": 2},
        {"layer_types": ["sliding_attention", "full_attention"], "local_attention": 5},
        {"global_attn_every_n_layers": 1},
        {"rope_parameters": {"full_attention": {**ROPE, "rope_theta": 70.0}}},
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "global_rope_theta": 100.0},
    ],
)
def test_every_way_to_say_windows_and_positions(folder: Path, config: dict[str, Any]) -> None:
    file = folder / "config.json"
    stated = {**json.loads(file.read_text()), **WITHOUT, **config}
    file.write_text(json.dumps({k: v for k, v in stated.items() if v is not ...}))
    given = inputs(folder)
    net, limit = load(folder), 1e-5
    if "rope_scaling" not in config:  # scaled angles are not among what is made exact
        net, limit = exact(net), 1e-9
    assert function_error(folder, given, outputs(net, given)) < limit


def test_windows_reach_to_both_sides_of_a_token(folder: Path) -> None:
    assert settings(folder, **WITHOUT).windows == (None, 4)
    assert settings(folder, **WITHOUT, local_attention=7).windows == (None, 3)
    assert settings(folder, **WITHOUT, global_attn_every_n_layers=1).windows == ()
    with pytest.raises(CheckpointError, match="local_attention"):
        settings(folder, local_attention=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("norm_bias", True), ("classifier_activation", "relu"), ("decoder_bias", False)],
)
def test_other_kinds_of_it_are_refused(folder: Path, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=key):
        settings(folder, **{key: value})


@pytest.mark.parametrize("task", ["SequenceClassification", "QuestionAnswering"])
def test_classifiers_behind_its_head_are_refused(folder: Path, task: str) -> None:
    with pytest.raises(CheckpointError, match="not read"):
        settings(folder, architectures=[f"ModernBertFor{task}"])


@pytest.mark.parametrize(
    "name", ["model.layers.0.attn_norm.weight", "model.layers.1.mlp_norm.bias"]
)
def test_a_norm_that_it_has_not_is_refused(folder: Path, name: str) -> None:
    changed(folder, {name: torch.ones(24, dtype=torch.float64)})
    with pytest.raises(CheckpointError, match=name.split(".")[-2]):
        Checkpoint(folder)


def test_the_norm_of_the_embeddings_is_held_though_a_block_reads_it(folder: Path) -> None:
    """Readers can take over the scale of any other norm; this one is the stream as well."""
    given = inputs(folder)
    before = outputs(exact(load(folder)), given)
    half = torch.linspace(0.5, 2.0, 24, dtype=torch.float64)
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.reading_norms(0)[0] == "model.embeddings.norm"
        element = random_net_element(checkpoint, torch.Generator().manual_seed(0), parts=["norms"])
        for number in range(2):
            gauge = element.gauges[number]
            assert gauge is not None
            held = [
                torch.equal(scale, checkpoint.norm(name)[0])
                for (scale, _), name in zip(
                    gauge.norms, checkpoint.reading_norms(number), strict=True
                )
            ]
            assert held == [number == 0, False]
        gauge = element.gauges[0]
        assert gauge is not None
        scale, shift = gauge.norms[0]
        forged = (gauge.__class__((((scale * half), shift), gauge.norms[1]), gauge.ones,
                                  gauge.biases, gauge.shared),
                  *element.gauges[1:])  # fmt: skip
        with pytest.raises(ElementError, match=r"gauge\.0\.norm\.0\.scale has no choice"):
            apply_element(
                checkpoint,
                element.__class__(**{**vars(element), "gauges": forged}),
                folder.parent / "no",
            )
    tensors = load_file(folder / "model.safetensors")
    first, readers = "model.embeddings.norm.weight", "model.layers.0.attn.Wqkv.weight"
    moved = {first: tensors[first] * half, readers: tensors[readers] / half}
    other = make("modernbert", folder.parent / "other")
    changed(other, moved)
    assert relative(outputs(exact(load(other)), given), before) > 1e-2
    with Checkpoint(folder) as a, Checkpoint(other) as b:
        assert not same(a, b, seed=0, search=False).answer.same_function
