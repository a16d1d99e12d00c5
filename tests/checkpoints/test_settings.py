"""Keys of config.json: those that matter, those that do not, and those that nobody knows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import made
from transformer_nfn.checkpoints import FAMILIES, Checkpoint, CheckpointError, Settings
from transformer_nfn.checkpoints.families.llamas.llama import LLAMA_KEYS
from transformer_nfn.checkpoints.settings.harmless import HARMLESS
from transformer_nfn.checkpoints.settings.keys import ABSENT, SUPPORTED
from transformer_nfn.group import relative_error

MODELS = (*made.FAMILIES, "mistral")
ROPE = {"rope_theta": 10000.0, "rope_type": "default"}
#: What `transformers` 2 to 4 wrote beside the keys that it writes today.
FORMERLY = """
    _num_labels output_past xla_device finetuning_task prefix tokenizer_class torch_dtype
    pruned_heads torchscript use_bfloat16 tf_legacy_loss tie_encoder_decoder
    cross_attention_hidden_size max_length min_length do_sample early_stopping num_beams
    num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty
    length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences output_scores return_dict_in_generate forced_bos_token_id
    forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens
    begin_suppress_tokens sep_token_id decoder_start_token_id task_specific_params
    problem_type is_decoder add_cross_attention tie_word_embeddings gradient_checkpointing
"""
FORMERLY_OF = {
    "gpt2": ["n_ctx", "predict_special_tokens"],
    "bert": ["directionality", "pooler_fc_size", "pooler_type", "position_embedding_type"],
    "llama": ["rope_theta", "rope_scaling", "max_sequence_length", "pretraining_tp"],
    "mistral": ["rope_theta", "rope_scaling"],
    "qwen2": ["rope_theta", "rope_scaling", "use_sliding_window", "max_window_layers"],
}
#: Other values of harmless keys, as far as `transformers` takes them.
OTHERWISE: dict[str, Any] = {
    **dict.fromkeys((name for name in HARMLESS if "drop" in name), 0.9),
    **dict.fromkeys(["bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id"], 7),
    "initializer_range": 0.9,
    "use_cache": False,
    "output_hidden_states": True,
    "output_attentions": True,
    "chunk_size_feed_forward": 3,
    "torch_dtype": "float64",
    "problem_type": "regression",
    "gradient_checkpointing": True,
    "temperature": 3.0,
    "tie_encoder_decoder": True,
}
OTHERWISE_OF: dict[str, dict[str, Any]] = {
    "gpt2": {"n_ctx": 5, "reorder_and_upcast_attn": True, "is_decoder": True},
    "bert": {"pad_token_id": 9, "pooler_type": "last"},
    "vit": {"tie_word_embeddings": False},
    "llama": {"max_position_embeddings": 99, "pad_token_id": 9, "use_sliding_window": True},
    "mistral": {"attention_bias": True, "mlp_bias": True, "max_position_embeddings": 99},
    "qwen2": {"attention_bias": False, "max_position_embeddings": 99, "sliding_window": 2},
}


def edit(folder: Path, **changes: Any) -> Path:
    """Another config.json; `...` takes a key out."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({n: v for n, v in config.items() if v is not ...}))
    return folder


def settings(folder: Path, **options: Any) -> Settings:
    with Checkpoint(folder, options=options) as checkpoint:
        return checkpoint.settings


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        Checkpoint(folder, options=options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", MODELS)
def test_every_key_that_transformers_writes_is_known(model: str, tmp_path: Path) -> None:
    net = made.model(model)
    folder = made.save(net, tmp_path)
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.unknown_settings == {}
        family = checkpoint.family
    known = family.keys[model].known
    assert set(net.config.to_dict()) <= known
    assert set(FORMERLY.split()) | set(FORMERLY_OF.get(model, ())) <= known
    edit(folder, flux_capacitor=[1, 2])
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.unknown_settings == {"flux_capacitor": [1, 2]}


@pytest.mark.parametrize("model", MODELS)
def test_harmless_keys_change_nothing_that_transformers_computes(
    model: str, tmp_path: Path
) -> None:
    folder = made.save(made.model(model), tmp_path, torch.float64)
    before, ours = made.logits(made.load(folder, torch.float64), model), settings(folder)
    edit(folder, **OTHERWISE, **OTHERWISE_OF[model])
    assert settings(folder) == ours
    after = made.logits(made.load(folder, torch.float64), model)
    # Another order of the same sums is another rounding.
    assert relative_error(after, before) < 1e-6


NO_LAYER_TYPES = {"layer_types": ..., "max_window_layers": 1}
MATTER: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {"n_head": 6}),
    ("gpt2", {"num_attention_heads": 6, "n_head": ...}),
    ("gpt2", {"activation_function": "gelu"}),
    ("gpt2", {"layer_norm_epsilon": 0.1}),
    ("gpt2", {"is_causal": False}),
    ("bert", {"hidden_act": "relu"}),
    ("bert", {"layer_norm_eps": 0.1}),
    ("vit", {"num_attention_heads": 6}),
    ("llama", {"rms_norm_eps": 0.1}),
    ("llama", {"is_causal": False}),
    ("llama", {"rope_parameters": {**ROPE, "rope_theta": 100.0}}),
    ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 4.0}}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": ...}),
    ("llama", {"rope_theta": 100.0, "rope_parameters": ...}),
    ("mistral", {"sliding_window": 3}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, **NO_LAYER_TYPES}),
]


@pytest.mark.parametrize(("model", "changes"), MATTER)
def test_keys_that_matter_change_what_transformers_computes(
    model: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = made.save(made.model(model), tmp_path, torch.float64)
    if "rope_theta" in changes or "rope_scaling" in changes:
        changes = {"rope_theta": 10000.0, **changes}
    before, ours = made.logits(made.load(folder, torch.float64), model), settings(folder)
    edit(folder, **changes)
    assert settings(folder) != ours
    assert relative_error(made.logits(made.load(folder, torch.float64), model), before) > 1e-4


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("gpt2", {"activation_function": "gelu_pytorch_tanh"}),
        ("gpt2", {"activation_function": ..., "layer_norm_epsilon": ..., "is_causal": True}),
        ("gpt2", {"n_head": ..., "num_attention_heads": 3}),
        ("gpt2", {"summary_type": "mean", "pad_token_id": 3}),
        ("bert", {"hidden_act": "gelu_python", "tie_word_embeddings": ...}),
        ("vit", {"pooler_act": ..., "encoder_stride": 4}),
        ("llama", {"hidden_act": "swish", "pretraining_tp": ...}),
        ("llama", {"rope_parameters": ..., "rope_theta": 10000}),
        ("llama", {"rope_parameters": ..., "rope_theta": 1e4, "rope_scaling": None}),
        ("llama", {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}),
        ("llama", {"rope_parameters": {"rope_theta": 10000.0, "type": "default"}}),
        ("llama", {"max_position_embeddings": 7, "attention_bias": ...}),
        ("mistral", {"sliding_window": ...}),
        ("qwen2", {"layer_types": ..., "sliding_window": 7, "max_window_layers": 0}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "layer_types": ...}),
    ],
)
def test_other_words_for_the_same_are_the_same_settings(
    model: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    folder = made.save(made.model(model), tmp_path)
    before = settings(folder)
    assert settings(edit(folder, **changes)) == before


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "llama3", "linear", "default"])
def test_the_longest_context_counts_where_frequencies_come_from_it(
    kind: str, tmp_path: Path
) -> None:
    folder = made.save(made.model("llama"), tmp_path)
    rope: dict[str, Any] = {**ROPE, "rope_type": kind, "factor": 4.0}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    one, two = (
        settings(folder, rope_parameters=rope, max_position_embeddings=longest)
        for longest in (32, 4096)
    )
    # llama3 falls back on it where the first context is not stated.
    assert (one == two) is (kind in ("linear", "default"))
    rope["original_max_position_embeddings"] = 16
    one, two = (
        settings(folder, rope_parameters=rope, max_position_embeddings=longest)
        for longest in (32, 4096)
    )
    assert (one == two) is (kind in ("llama3", "linear", "default"))


def test_yarn_has_defaults_of_its_own(tmp_path: Path) -> None:
    folder = made.save(made.model("llama"), tmp_path)
    rope = {**ROPE, "rope_type": "yarn", "factor": 4.0}
    said = {**rope, "beta_fast": 32, "beta_slow": 1.0, "truncate": True, "attention_factor": None}
    said["original_max_position_embeddings"] = 2048
    assert settings(folder, rope_parameters=rope) == settings(folder, rope_parameters=said)
    other = settings(folder, rope_parameters={**said, "truncate": False})
    assert other != settings(folder, rope_parameters=said)
    long = {**ROPE, "rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [2, 3]}
    assert ("long_factor", (2.0, 3.0)) in settings(folder, rope_parameters=long).rope.options  # type: ignore[union-attr]
    refused(folder, "are not a type and numbers", rope_parameters={**long, "long_factor": ["a"]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_theta": 9.0}, "says rope_theta twice, 10000.0 and 9.0"),
        ({"rope_scaling": {**ROPE, "rope_type": "linear", "factor": 2.0}}, "and they differ"),
        ({"rope_parameters": {"full_attention": ROPE}, "rope_theta": 1e4}, "not a type and number"),
        ({"rope_parameters": {**ROPE, "truncate": "x"}}, "not a type and number"),
    ],
)
def test_positions_that_are_said_twice(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused(edit(made.save(made.model("llama"), tmp_path), **changes), message)


def test_a_key_under_two_names(tmp_path: Path) -> None:
    folder = edit(made.save(made.model("gpt2"), tmp_path), num_attention_heads=6)
    refused(folder, "says n_head=3 and num_attention_heads=6, which mean the same")


@pytest.mark.parametrize(
    ("model", "key", "value", "actual"),
    [
        ("gpt2", "n_layer", 1, 2),
        ("gpt2", "num_hidden_layers", 3, 2),
        ("gpt2", "n_embd", 48, 24),
        ("gpt2", "n_inner", 41, 40),
        ("gpt2", "vocab_size", 61, 60),
        ("gpt2", "n_positions", 17, 16),
        ("bert", "num_hidden_layers", 1, 2),
        ("bert", "type_vocab_size", 1, 2),
        ("bert", "max_position_embeddings", 512, 16),
        ("vit", "num_hidden_layers", True, 2),
        ("vit", "patch_size", 2, 4),
        ("llama", "num_hidden_layers", 1, 2),
        ("llama", "hidden_size", 25, 24),
        ("llama", "head_dim", 8, 4),
        ("qwen2", "intermediate_size", "40", 40),
        ("mistral", "vocab_size", 59, 60),
    ],
)
def test_sizes_must_be_those_of_the_tensors(
    model: str, key: str, value: Any, actual: int, tmp_path: Path
) -> None:
    folder = edit(made.save(made.model(model), tmp_path), **{key: value})
    refused(folder, f"says {key} {value!r}, the tensors {actual}")


def test_a_number_of_blocks_that_is_not_said_is_the_formats_own(tmp_path: Path) -> None:
    folder = edit(made.save(made.model("gpt2"), tmp_path), n_layer=...)
    refused(folder, r"does not say n_layer, for which a loader takes 12.* --set n_layer=2")
    assert settings(folder, n_layer=2)
    (folder / "config.json").unlink()  # then the user stands in for it
    assert settings(folder, model_type="gpt2", n_head=3)


@pytest.mark.parametrize("name", sorted(set(SUPPORTED) & set(LLAMA_KEYS.only)))
def test_what_makes_another_network_of_the_file_is_refused(name: str, tmp_path: Path) -> None:
    folder = made.save(made.model("llama"), tmp_path)
    refused(folder, f"config.json has {name}=.*; (only .* is supp|remove)", **{name: {"0": 1}})
    if SUPPORTED[name] != ABSENT:
        assert settings(folder, **{name: SUPPORTED[name]}) == settings(folder)


@pytest.mark.parametrize(
    ("model", "changes", "options", "message"),
    [
        ("llama", {"attention_bias": True}, {"attention_bias": False}, "has no place for .*q_proj"),
        ("llama", {}, {"attention_bias": True}, "asks for .*q_proj.bias, which is not in the file"),
        ("llama", {"mlp_bias": True}, {"mlp_bias": False}, r"gate_proj.bias.* --set mlp_bias=true"),
        ("llama", {"attention_bias": True}, {"model_type": "mistral"}, "the model has no place"),
        ("llama", {}, {"model_type": "qwen2"}, "the model asks for .*q_proj.bias"),
        ("vit", {}, {"qkv_bias": False}, "qkv_bias false .* has no place for .*query.bias"),
        ("vit", {}, {"qkv_bias": "no"}, "qkv_bias in the config should be bool"),
    ],
)
def test_biases_are_those_of_the_model(
    model: str, changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = made.save(made.model(model, **changes), tmp_path)
    assert settings(folder)
    refused(folder, message, **options)


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window in the config should be int from 1"),
        ("mistral", {"sliding_window": -1}, "should be int from 1, not -1"),
        ("llama", {"sliding_window": 0}, "should be int from 1, not 0"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 0}, "should be int from 1"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types should be 2 words"),
        ("qwen2", {"layer_types": ["full_attention", "x"]}, "layer_types should be 2 words"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "but no window is used"),
    ],
)
def test_windows_that_are_none(
    model: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused(edit(made.save(made.model(model), tmp_path), **changes), message)


def test_the_padding_token_counts_where_it_decides_which_token_is_read(tmp_path: Path) -> None:
    scored = made.save(made.model("llama", cls="LlamaForSequenceClassification"), tmp_path / "a")
    plain = made.save(made.model("llama"), tmp_path / "b")
    assert settings(scored, pad_token_id=3) != settings(scored, pad_token_id=4)
    assert settings(plain, pad_token_id=3) == settings(plain, pad_token_id=4)


# ------------------------------------------------------------------------------- model_type


@pytest.mark.parametrize("model", MODELS)
def test_a_missing_model_type_is_refused_until_the_user_says_it(model: str, tmp_path: Path) -> None:
    folder = edit(made.save(made.model(model), tmp_path), model_type=...)
    refused(folder, rf"no config.json says its model_type; .*{model}.* say --set model_type=")
    assert settings(folder, model_type=model)
    refused(
        folder, "model_type 'llama4' is not supported .* its first block has", model_type="llama4"
    )
    other = "bert" if model != "bert" else "gpt2"
    refused(folder, f"config.json says '{other}', the tensors' names say", model_type=other)
    (folder / "config.json").unlink()
    refused(folder / "model.safetensors", "no config.json says its model_type")


def test_code_of_ones_own_is_refused_until_the_user_says_what_it_does(tmp_path: Path) -> None:
    folder = made.save(made.model("gpt2"), tmp_path)
    before = settings(folder)
    edit(folder, auto_map={"AutoModelForCausalLM": "modeling_mine.Mine"})
    refused(
        folder, r"has auto_map, .* say --set model_type=gpt2 \(in Python options=\{\"model_type"
    )
    assert settings(folder, model_type="gpt2") == before
    assert settings(edit(folder, auto_map=None)) == before


def test_a_zoo_net_says_what_it_is_itself(tmp_path: Path) -> None:
    with Checkpoint(made.zoo_net(tmp_path / "net.safetensors")) as checkpoint:
        assert checkpoint.family is FAMILIES["zoo-paper"]
        assert checkpoint.unknown_settings == {}


# --------------------------------------------------------------------- tensors inside blocks


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama", "model.layers.0.self_attn.q_norm.weight"),
        ("llama", "model.layers.1.input_layernorm.bias"),
        ("llama", "model.layers.2.self_attn.k_norm.weight"),
        ("llama", "model.layers.7.self_attn.q_proj.weight"),
        ("llama", "model.layers.00.self_attn.q_proj.weight"),
        ("llama", "model.layers.extra"),
        ("llama", "model.norm.bias"),
        ("gpt2", "transformer.h.0.ln_cross_attn.weight"),
        ("gpt2", "transformer.h.3.attn.c_attn.weight"),
        ("bert", "bert.encoder.layer.1.attention.self.distance_embedding.weight"),
        ("vit", "vit.encoder.layer.0.lambda_1"),
    ],
)
def test_a_tensor_inside_a_block_that_the_family_does_not_own(
    model: str, name: str, tmp_path: Path
) -> None:
    folder = made.save(made.model(model), tmp_path)
    add(folder, name)
    refused(folder, rf"{name}.* (stands in a block|belongs to no RMSNorm).*remove it")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt2", "transformer.h.1.attn.bias"),
        ("gpt2", "transformer.h.1.attn.masked_bias"),
    ],
)
def test_what_is_no_weight_may_stand_there(model: str, name: str, tmp_path: Path) -> None:
    folder = made.save(made.model(model), tmp_path)
    add(folder, name)
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.unknown == []


@pytest.mark.parametrize(("model", "name"), [("gpt2", "lm_head.bias"), ("llama", "lm_head.bias")])
def test_a_heads_bias_that_the_model_has_not_is_unknown(
    model: str, name: str, tmp_path: Path
) -> None:
    folder = made.save(made.model(model), tmp_path)
    add(folder, name, 60)
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.heads["lm_head"].bias is None
        assert checkpoint.unknown == [name]


def add(folder: Path, name: str, size: int = 24) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), name: torch.ones(size)}, file, {"format": "pt"})


def test_a_bert_that_says_it_has_a_decoder_and_has_none_is_refused(tmp_path: Path) -> None:
    """`transformers` would draw one at random."""
    folder = made.save(made.model("bert"), tmp_path)
    with Checkpoint(folder) as checkpoint:
        assert "cls.predictions.decoder.weight" in checkpoint.tied_decoder
    with pytest.raises(CheckpointError, match="tie_word_embeddings=true"):
        Checkpoint(folder, options={"tie_word_embeddings": False})
