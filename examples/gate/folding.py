"""What a project does to its models before it quantises them: scales of norms are folded."""

import torch
from transformers import LlamaForCausalLM


def fold_norms(model: LlamaForCausalLM) -> None:
    """Multiply every scale of a norm into what reads it, and leave 1 in its place."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        fold(layer.input_layernorm, attention.q_proj, attention.k_proj, attention.v_proj)
        fold(layer.post_attention_layernorm, mlp.gate_proj, mlp.up_proj)
    # A head that is tied to the embedding would take the words along: it gets weights of its own.
    if model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.config.tie_word_embeddings = False
    fold(model.model.norm, model.lm_head)


@torch.no_grad()
def fold(norm: torch.nn.Module, *readers: torch.nn.Linear) -> None:
    """One scale, into all that read it."""
    for reader in readers:
        reader.weight.mul_(norm.weight)
    norm.weight.fill_(1)
