"""Our float64 function against the one `transformers` runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.group import relative_error
from transformer_nfn.identity.running import inputs
from transformer_nfn.identity.running.confirmation import _most_different
from transformer_nfn.identity.running.function import check_runnable, run
from transformer_nfn.identity.running.inputs import pool_size, widest

#: Of 9 tokens the last ones do not see the first.
QWEN2_WINDOW = {"use_sliding_window": True, "sliding_window": 3}
CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("gpt2", "GPT2LMHeadModel", {}, "lm_head"),
    ("gpt2", "GPT2LMHeadModel", {"activation_function": "relu"}, "lm_head"),
    ("gpt2", "GPT2Model", {}, "hidden"),
    ("bert", "BertForMaskedLM", {}, "logits"),
    ("bert", "BertModel", {}, "hidden"),
    ("bert", "BertForSequenceClassification", {"num_labels": 3}, "classifier"),
    ("bert", "BertForTokenClassification", {"num_labels": 3}, "classifier"),
    ("bert", "BertForNextSentencePrediction", {}, "cls.seq_relationship"),
    ("gpt2", "GPT2LMHeadModel", {"is_causal": False}, "lm_head"),
    ("gpt2", "GPT2ForTokenClassification", {"num_labels": 3}, "classifier"),
    ("vit", "ViTForImageClassification", {}, "classifier"),
    ("vit", "ViTForImageClassification", {"qkv_bias": False}, "classifier"),
    ("llama", "LlamaForCausalLM", {}, "lm_head"),
    ("llama", "LlamaForCausalLM", {"num_key_value_heads": 6, "attention_bias": True}, "lm_head"),
    (
        "llama",
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8,
            }
        },
        "lm_head",
    ),
    ("llama", "LlamaForTokenClassification", {"num_labels": 3}, "score"),
    ("llama", "LlamaForCausalLM", {"is_causal": False}, "lm_head"),
    ("qwen2", "Qwen2ForCausalLM", {}, "lm_head"),
    ("qwen2", "Qwen2ForCausalLM", {**QWEN2_WINDOW, "max_window_layers": 1}, "lm_head"),
    (
        "qwen2",
        "Qwen2ForCausalLM",
        {**QWEN2_WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
        "lm_head",
    ),
    ("mistral", "MistralForCausalLM", {"sliding_window": 3}, "lm_head"),
    ("mistral", "MistralForCausalLM", {"sliding_window": None}, "lm_head"),
    ("mistral", "MistralForCausalLM", {"sliding_window": 3, "is_causal": False}, "lm_head"),
]


@pytest.mark.parametrize(("family", "cls", "changes", "head"), CASES)
def test_it_is_the_function_of_transformers(
    family: str, cls: str, changes: dict[str, Any], head: str, tmp_path: Path, exact_norms: None
) -> None:
    net = made.model(family, cls=cls, **changes)
    made.save(net, tmp_path, torch.float64)
    wanted = made.logits(made.load(tmp_path, torch.float64), family)
    (inputs,) = made.inputs(family).values()
    with Checkpoint(tmp_path) as checkpoint:
        given = run(checkpoint, inputs)[head]
    # RoPE's angles are float32 in transformers.
    assert relative_error(given.reshape(wanted.shape), wanted) < (
        1e-6 if family in ("llama", "qwen2", "mistral") else 1e-12
    )


def test_unknown_functions_are_refused(tmp_path: Path) -> None:
    made.save(made.model("gpt2"), tmp_path)
    with (
        Checkpoint(tmp_path, options={"activation_function": "mystery"}) as checkpoint,
        pytest.raises(CheckpointError, match="activation 'mystery'"),
    ):
        check_runnable(checkpoint)


def test_a_window_of_another_size_is_another_function(tmp_path: Path) -> None:
    folder = made.save(made.model("mistral", sliding_window=3), tmp_path)
    (inputs,) = made.inputs("mistral").values()
    outputs = []
    for window in (3, 4):
        with Checkpoint(folder, options={"sliding_window": window}) as checkpoint:
            outputs.append(run(checkpoint, inputs)["lm_head"])
    assert torch.equal(outputs[0][:, :3], outputs[1][:, :3])
    assert relative_error(outputs[0][:, 3:], outputs[1][:, 3:]) > 0.01


@torch.no_grad()
@pytest.mark.parametrize("cls", ["BertModel", "BertForPreTraining"])
def test_all_outputs_of_bert_and_its_token_types(cls: str, tmp_path: Path) -> None:
    made.save(made.model("bert", cls=cls, type_vocab_size=3), tmp_path, torch.float64)
    (ids,) = made.inputs("bert").values()
    types = torch.arange(ids.numel()).view(ids.shape) % 3
    theirs = made.load(tmp_path, torch.float64)(input_ids=ids, token_type_ids=types)
    names = {
        "BertModel": {"hidden": "last_hidden_state", "pooler.dense": "pooler_output"},
        "BertForPreTraining": {
            "logits": "prediction_logits",
            "cls.seq_relationship": "seq_relationship_logits",
        },
    }[cls]
    with Checkpoint(tmp_path) as checkpoint:
        given = run(checkpoint, torch.stack([ids, types], dim=1))
        plain = run(checkpoint, ids)
    assert set(given) == set(names)
    for ours, name in names.items():
        assert relative_error(given[ours], theirs[name]) < 1e-12
    first = next(iter(names))
    assert relative_error(plain[first], given[first]) > 0.01


@torch.no_grad()
@pytest.mark.parametrize("act", ["tanh", "gelu_fast"])
def test_the_pooler_of_vit(act: str, tmp_path: Path) -> None:
    net = made.model("vit", cls="ViTModel", pooler_act=act, pooler_output_size=7)
    made.save(net, tmp_path, torch.float64)
    (images,) = made.inputs("vit").values()
    theirs = made.load(tmp_path, torch.float64)(pixel_values=images.double())
    with Checkpoint(tmp_path) as checkpoint:
        given = run(checkpoint, images)
    assert set(given) == {"hidden", "pooler.dense"}
    assert relative_error(given["hidden"], theirs.last_hidden_state) < 1e-12
    assert relative_error(given["pooler.dense"], theirs.pooler_output) < 1e-9


def test_rotary_positions_without_their_numbers(tmp_path: Path) -> None:
    made.save(made.model("llama"), tmp_path)
    rope = {"rope_theta": 10000.0, "rope_type": "linear"}
    with (
        Checkpoint(tmp_path, options={"rope_parameters": rope}) as checkpoint,
        pytest.raises(CheckpointError, match="of kind linear need a number factor"),
    ):
        check_runnable(checkpoint)


def test_inputs_that_differ_most_are_found_among_many(tmp_path: Path) -> None:
    """One word of 200 is another: few inputs have it, and all that are chosen do."""
    net = made.model("gpt2", vocab_size=200)
    ours = made.save(net, tmp_path / "a")
    with torch.no_grad():
        net.transformer.wte.weight[121] *= 1.01
    theirs = made.save(net, tmp_path / "b")
    with Checkpoint(ours) as a, Checkpoint(theirs) as b:
        chosen = _most_different((a, b), seed=7)
    assert len(chosen) == 8
    assert (chosen == 121).any(dim=1).all()


def test_a_pool_is_as_large_as_there_is_time_and_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpoint(made.save(made.model("gpt2"), tmp_path)) as checkpoint:
        assert pool_size(checkpoint, 24, 256) == 256
        words = widest(checkpoint)
        monkeypatch.setattr(inputs, "NUMBERS", 24 * words * 50)
        assert pool_size(checkpoint, 24, 256) == 50
        size = sum(torch.Size(entry.shape).numel() for entry in checkpoint.files.entries.values())
        monkeypatch.setattr(inputs, "_COST", size * 24 * 7)
        assert pool_size(checkpoint, 24, 256) == 7
        monkeypatch.setattr(inputs, "_COST", 1)
        assert pool_size(checkpoint, 24, 256) == 2
