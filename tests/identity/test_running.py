"""Our float64 function against the one `transformers` runs."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.group import relative_error
from transformer_nfn.identity.running import check_runnable, run

CASES: list[tuple[str, str, dict[str, Any], str]] = [
    ("gpt2", "GPT2LMHeadModel", {}, "lm_head"),
    ("gpt2", "GPT2LMHeadModel", {"activation_function": "relu"}, "lm_head"),
    ("gpt2", "GPT2Model", {}, "hidden"),
    ("bert", "BertForMaskedLM", {}, "logits"),
    ("bert", "BertModel", {}, "hidden"),
    ("bert", "BertForSequenceClassification", {"num_labels": 3}, "classifier"),
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
    ("qwen2", "Qwen2ForCausalLM", {}, "lm_head"),
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
        1e-6 if family in ("llama", "qwen2") else 1e-12
    )


def test_unknown_functions_are_refused(tmp_path: Path) -> None:
    made.save(made.model("gpt2"), tmp_path)
    with (
        Checkpoint(tmp_path, options={"activation_function": "mystery"}) as checkpoint,
        pytest.raises(CheckpointError, match="activation 'mystery'"),
    ):
        check_runnable(checkpoint)
