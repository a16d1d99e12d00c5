"""What `transformers` reads of a config or a file otherwise than one would think, by family."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.material.families import (
    ARCHITECTURES,
    exact,
    inputs,
    load,
    make,
    outputs,
    quiet,
)
from benchmarks.same.families import function_error
from transformer_nfn.checkpoints import FAMILIES, Checkpoint, CheckpointError
from transformer_nfn.checkpoints.settings.keys import REQUIRED


def settings(folder: Path, **changes: Any) -> Any:
    """The settings of a file whose config has other keys; `...` takes one away."""
    file = folder / "config.json"
    before = file.read_text()
    config = {**json.loads(before), **changes}
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    try:
        with Checkpoint(folder) as checkpoint:
            return checkpoint.settings
    finally:
        file.write_text(before)


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make(request.param, tmp_path / "a")


of = pytest.mark.parametrize


@of("folder", ["smollm3"], indirect=True)
def test_the_window_of_smollm3_is_where_nothing_turns(folder: Path) -> None:
    given = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ...}
    assert settings(folder, **given).windows == (None, 4)
    assert settings(folder, **{**given, "use_sliding_window": False}).windows == ()


@of("folder", ["bloom"], indirect=True)
def test_bloom_of_several_machines_drops_biases(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="slow_but_exact"):
        settings(folder, slow_but_exact=True, pretraining_tp=2)


@of("folder", ["gpt_neox"], indirect=True)
def test_neox_reads_its_first_names_or_the_table(folder: Path) -> None:
    plain = settings(folder, rope_parameters=...)
    assert settings(folder, rope_parameters=..., rope_theta=100.0) == plain
    assert settings(folder, rope_parameters=..., partial_rotary_factor=1.0) == plain
    assert settings(folder, rope_parameters=..., rotary_emb_base=100).rope.theta == 100
    assert settings(folder, rope_parameters=..., rotary_pct=1.0).rope.part == 1


@of("folder", ["phi3"], indirect=True)
def test_defaults_of_phi3(folder: Path) -> None:
    assert settings(folder, rms_norm_eps=...).eps == 1e-5
    longrope = {"type": "longrope", "rope_theta": 1e4, "short_factor": [1.0], "long_factor": [1.0]}
    inside = {**longrope, "original_max_position_embeddings": 16}
    one = settings(folder, rope_parameters=inside, original_max_position_embeddings=...)
    two = settings(folder, rope_parameters=longrope, original_max_position_embeddings=16)
    assert dict(one.rope.options)["original_max_position_embeddings"] == 4096
    assert dict(two.rope.options)["original_max_position_embeddings"] == 16


@of("folder", ["gemma3_text"], indirect=True)
def test_rotary_tables_of_gemma3(folder: Path) -> None:
    flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    with pytest.raises(CheckpointError, match="no table for each"):
        settings(folder, rope_parameters=flat)
    with pytest.raises(CheckpointError, match="says no rope_type"):
        settings(folder, rope_parameters=..., rope_scaling={"type": "linear", "factor": 8.0})
    scaled = settings(
        folder, rope_parameters=..., rope_scaling={"rope_type": "linear", "factor": 8}
    )
    assert (scaled.rope.kind, scaled.rope.theta, scaled.local_rope.kind) == (
        "linear", 1e6, "default",
    )  # fmt: skip
    nested = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    nested["sliding_attention"] = {"rope_type": "default"}
    found = settings(folder, rope_parameters=nested, rope_local_base_freq=50.0)
    assert found.local_rope.theta == 50


@of("folder", ["gemma3_text"], indirect=True)
def test_the_pattern_of_windows_of_gemma3(folder: Path) -> None:
    assert settings(folder, layer_types=..., sliding_window_pattern=2).windows == (8, None)
    assert settings(folder, layer_types=..., _sliding_window_pattern=2).windows == (8, 8)
    assert settings(folder, attn_logit_softcapping=2.0) == settings(folder)


@of("folder", ["gemma2"], indirect=True)
def test_gemma2_has_a_window_in_every_other_block(folder: Path) -> None:
    assert settings(folder, layer_types=..., sliding_window_pattern=3).windows == (8, None)


@of(
    ("folder", "bias"),
    [
        ("stablelm", "model.layers.0.mlp.up_proj.bias"),
        ("falcon", "transformer.h.0.mlp.dense_h_to_4h.bias"),
        ("phi3", "model.layers.0.mlp.gate_up_proj.bias"),
        ("qwen3", "model.layers.0.mlp.gate_proj.bias"),
        ("gemma", "model.layers.0.mlp.gate_proj.bias"),
        ("cohere", "model.layers.0.mlp.gate_proj.bias"),
    ],
    indirect=["folder"],
)
def test_a_bias_that_the_model_does_not_have_is_refused(folder: Path, bias: str) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[bias] = torch.ones(len(tensors[bias.replace(".bias", ".weight")]), dtype=torch.float64)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match="no place for"):
        settings(folder)


def test_a_summary_of_the_stream_is_not_read(tmp_path: Path) -> None:
    sizes = ARCHITECTURES["electra"].sizes
    with quiet():
        config = transformers.ElectraConfig(**sizes)
        transformers.ElectraForMultipleChoice(config).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="not read"):
        settings(tmp_path)
    file = tmp_path / "model.safetensors"
    kept = {n: t for n, t in load_file(file).items() if not n.startswith("sequence")}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"ElectraForMultipleChoice.*not read"):
        settings(tmp_path)


@of("folder", ["roberta", "albert", "mpnet", "bert"], indirect=True)
def test_without_ties_the_bias_of_words_is_not_shared(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    words = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.predictor is not None
        decoder = checkpoint.predictor.decoder
    tensors[f"{decoder}.weight"] = tensors[words].clone()
    save_file(tensors, file, {"format": "pt"})
    assert settings(folder).tied
    with pytest.raises(CheckpointError, match=r"no .*decoder\.bias; a loader would make it up"):
        settings(folder, tie_word_embeddings=False)


@of("name", ["roberta", "mpnet"])
def test_a_pooler_that_nobody_reads_leaves_the_classifier_alone(name: str, tmp_path: Path) -> None:
    model = ARCHITECTURES[name].model.replace("MaskedLM", "SequenceClassification")
    folder = make(name, tmp_path / "a", model=model)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors[f"{name}.pooler.dense.weight"] = torch.randn(24, 24, dtype=torch.float64)
    tensors[f"{name}.pooler.dense.bias"] = torch.randn(24, dtype=torch.float64)
    save_file(tensors, file, {"format": "pt"})
    given = inputs(folder)
    assert function_error(folder, given, outputs(exact(load(folder)), given)) < 1e-9


@of("folder", ["granite"], indirect=True)
def test_a_multiplier_may_be_zero(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "residual_multiplier": 0.0}))
    given = inputs(folder)
    assert function_error(folder, given, outputs(exact(load(folder)), given)) < 1e-9


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_defaults_are_those_of_transformers(name: str) -> None:
    tables = {kind: keys for family in FAMILIES.values() for kind, keys in family.keys.items()}
    config = getattr(transformers, ARCHITECTURES[name].config)()
    compared = 0
    for key in tables[name].matter:
        if key.default is REQUIRED or (key.to == "groups" and key.default is None):
            continue  # without a number of groups there are as many as heads
        for spelling in (key.name, *key.also):
            if hasattr(config, spelling):
                theirs = getattr(config, spelling)
                assert key.same.get(theirs, theirs) == key.same.get(key.default, key.default), key
                compared += 1
    assert compared


@pytest.mark.parametrize("folder", ["gemma"], indirect=True)
def test_a_default_is_called_as_it_is_where_it_stands(folder: Path) -> None:
    assert settings(folder, hidden_act=..., hidden_activation=...) == settings(folder)
