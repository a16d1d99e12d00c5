"""Run in CI: `pytest examples/gate`. The model is tiny, of the architecture of the real one."""

import copy

import pytest
import torch
from folding import fold, fold_norms
from transformers import LlamaConfig, LlamaForCausalLM

from transformer_nfn.testing import assert_kin, assert_same_function, assert_within


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=80,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():  # scales that are not 1, or nothing would be folded
        for name, value in model.named_parameters():
            if "norm" in name:
                value.uniform_(0.5, 2)
    return model


def test_folding_changes_nothing(model: LlamaForCausalLM) -> None:
    folded = copy.deepcopy(model)
    fold_norms(folded)
    assert not torch.equal(folded.lm_head.weight, model.lm_head.weight)
    assert_same_function(model, folded)


def test_a_tied_head_would_be_noticed(model: LlamaForCausalLM) -> None:
    folded = copy.deepcopy(model)
    fold(folded.model.norm, folded.lm_head)  # and so into the words
    with pytest.raises(AssertionError, match="not the same function"):
        assert_same_function(model, folded)


def test_rounding_stays_small(model: LlamaForCausalLM) -> None:
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    assert_within(model, rounded, tolerance=0.05)
    assert_kin(rounded, model)
