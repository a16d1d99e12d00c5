"""What llama.cpp calls Llama's relatives and their tensors."""

from dataclasses import replace

from transformer_nfn.checkpoints.gguf.table import Gguf

LLAMA_GGUF = Gguf(
    architecture="llama",
    tensors={
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
    | {
        f"blk.{{}}.{theirs}": f"model.layers.{{}}.{ours}"
        for theirs, ours in {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items()
    },
    settings={
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "rope_theta": "rope.freq_base",
    },
    paired={
        "blk.{}.attn_q": "attention.head_count",
        "blk.{}.attn_k": "attention.head_count_kv",
    },
)

QWEN2_GGUF = replace(LLAMA_GGUF, architecture="qwen2", paired={})

#: Those of queries and keys.
GGUF_NORMS = {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
QWEN3_GGUF = replace(QWEN2_GGUF, architecture="qwen3", tensors={**LLAMA_GGUF.tensors, **GGUF_NORMS})
