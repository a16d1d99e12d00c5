"""Tiny networks of every architecture that is read, made by `transformers`; nothing left at 0 or 1.

`transformers` computes some steps in float32 whatever the dtype. `exact` replaces these, so that
float64 means something; `PATCHED` lists them.
"""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.cohere import modeling_cohere as cohere
from transformers.models.modernbert import modeling_modernbert as modernbert

from tests.checkpoints import made
from transformer_nfn.identity.running.inputs import NetInputs, SourceAndTarget

#: What `exact` replaces.
PATCHED = (
    "RMSNorm, and the LayerNorms that are no torch module (Cohere): float32 in all of them",
    "rotary positions: cos and sin, and their frequencies where these are the default ones",
    "the scale of Gemma's words, which is a float32 buffer",
    "softmax, where it is asked for in float32 (BLOOM, and all attention that is not fused)",
    "Cohere's and ModernBERT's queries and keys, which turn in float32",
    "the softmax of routers (Mixtral, Qwen3-MoE)",
)

_BASE = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 40,
    "vocab_size": 60,
}
_GROUPS = {"num_key_value_heads": 2}
_WORDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_DECODER = {**_BASE, **_GROUPS, **_WORDS}
_IMAGES = {**{key: size for key, size in _BASE.items() if key != "vocab_size"}, "image_size": 12,
           "patch_size": 4}  # fmt: skip
_PLACES = {"max_position_embeddings": 80}


@dataclass(frozen=True)
class Architecture:
    """A class of `transformers` and the sizes of a tiny network of it."""

    config: str
    model: str
    sizes: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 24, "n_layer": 2, "n_head": 3, "vocab_size": 60, "n_positions": 80, **_WORDS},
    ),
    "llama": Architecture(
        "LlamaConfig",
        "LlamaForCausalLM",
        {
            **_DECODER,
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            },
        },
    ),
    "mistral": Architecture(
        "MistralConfig", "MistralForCausalLM", {**_DECODER, "sliding_window": 8}
    ),
    "qwen2": Architecture("Qwen2Config", "Qwen2ForCausalLM", _DECODER),
    "bert": Architecture("BertConfig", "BertForMaskedLM", {**_BASE, **_PLACES}),
    "roberta": Architecture("RobertaConfig", "RobertaForMaskedLM", {**_BASE, **_PLACES}),
    "xlm-roberta": Architecture(
        "XLMRobertaConfig", "XLMRobertaForSequenceClassification", {**_BASE, **_PLACES}
    ),
    "camembert": Architecture(
        "CamembertConfig", "CamembertForTokenClassification", {**_BASE, **_PLACES}
    ),
    "electra": Architecture(
        "ElectraConfig", "ElectraForMaskedLM", {**_BASE, **_PLACES, "embedding_size": 24}
    ),
    "distilbert": Architecture(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"dim": 24, "n_layers": 2, "n_heads": 6, "hidden_dim": 40, "vocab_size": 60, **_PLACES},
    ),
    "albert": Architecture(
        "AlbertConfig", "AlbertForMaskedLM", {**_BASE, **_PLACES, "embedding_size": 16}
    ),
    "mpnet": Architecture("MPNetConfig", "MPNetForMaskedLM", {**_BASE, **_PLACES}),
    "modernbert": Architecture(
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**_BASE, **_WORDS, "num_attention_heads": 3, "local_attention": 8, "sep_token_id": 2,
         "cls_token_id": 1},
    ),
    "opt": Architecture(
        "OPTConfig",
        "OPTForCausalLM",
        {**_BASE, "ffn_dim": 40, "word_embed_proj_dim": 24, **_PLACES, **_WORDS},
    ),
    "phi3": Architecture("Phi3Config", "Phi3ForCausalLM", _DECODER),
    "gemma": Architecture("GemmaConfig", "GemmaForCausalLM", {**_DECODER, "head_dim": 8}),
    "gemma2": Architecture(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {**_DECODER, "head_dim": 8, "sliding_window": 8, "attn_logit_softcapping": 2.0,
         "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0},
    ),
    "gemma3_text": Architecture(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**_DECODER, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 6,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "granite": Architecture(
        "GraniteConfig",
        "GraniteForCausalLM",
        {
            **_DECODER,
            "logits_scaling": 3.0, "embedding_multiplier": 2.0,
            "attention_multiplier": 0.4, "residual_multiplier": 0.7,
        },
    ),
    "smollm3": Architecture(
        "SmolLM3Config", "SmolLM3ForCausalLM", {**_DECODER, "no_rope_layers": [1, 0]}
    ),
    "gpt_neox": Architecture(
        "GPTNeoXConfig", "GPTNeoXForCausalLM", {**_BASE, **_WORDS, "num_attention_heads": 3}
    ),
    "phi": Architecture("PhiConfig", "PhiForCausalLM", _DECODER),
    "stablelm": Architecture(
        "StableLmConfig",
        "StableLmForCausalLM",
        {**_BASE, **_WORDS, "num_attention_heads": 3, "num_key_value_heads": 1},
    ),
    "falcon": Architecture(
        "FalconConfig",
        "FalconForCausalLM",
        {key: size for key, size in {**_BASE, **_WORDS}.items() if key != "intermediate_size"},
    ),
    "cohere": Architecture("CohereConfig", "CohereForCausalLM", _DECODER),
    "mixtral": Architecture(
        "MixtralConfig", "MixtralForCausalLM", {**_DECODER, "num_local_experts": 5}
    ),
    "qwen3_moe": Architecture(
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {**_DECODER, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 6,
         "num_experts_per_tok": 3},
    ),
    "olmo2": Architecture("Olmo2Config", "Olmo2ForCausalLM", _DECODER),
    "qwen3": Architecture("Qwen3Config", "Qwen3ForCausalLM", {**_DECODER, "head_dim": 8}),
    "t5": Architecture(
        "T5Config",
        "T5ForConditionalGeneration",
        {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3,
         "num_heads": 4, "vocab_size": 60, "decoder_start_token_id": 0},
    ),
    "whisper": Architecture(
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {"d_model": 24, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 32,
         "vocab_size": 60, "num_mel_bins": 5, "max_source_positions": 12,
         "max_target_positions": 80, "decoder_start_token_id": 1, **_WORDS},
    ),
    "bloom": Architecture(
        "BloomConfig",
        "BloomForCausalLM",
        {"hidden_size": 24, "n_layer": 2, "n_head": 3, "vocab_size": 60, **_WORDS},
    ),
    "dinov2": Architecture(
        "Dinov2Config",
        "Dinov2Model",
        {k: size for k, size in _IMAGES.items() if k != "intermediate_size"},
    ),
    "clip_vision_model": Architecture("CLIPVisionConfig", "CLIPVisionModel", _IMAGES),
    "siglip_vision_model": Architecture("SiglipVisionConfig", "SiglipVisionModel", _IMAGES),
    "vit": Architecture(
        "ViTConfig",
        "ViTForImageClassification",
        _IMAGES,
    ),
    "deit": Architecture(
        "DeiTConfig",
        "DeiTForImageClassification",
        _IMAGES,
    ),
}  # fmt: skip


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def make(
    name: str,
    folder: Path,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    model: str | None = None,
    **changes: Any,
) -> Path:
    """A network with random weights, norms and biases, written by `transformers`.

    Args:
        name: Its model_type.
        folder: Where to.
        dtype: In which it is stored.
        seed: Of its weights.
        model: Another class that has the same config.
        changes: Of its config.
    """
    architecture = ARCHITECTURES[name]
    torch.manual_seed(seed)
    with quiet():
        config = getattr(transformers, architecture.config)(**{**architecture.sizes, **changes})
        net = getattr(transformers, model or architecture.model)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter_name, value in net.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(noise * 0.3 if value.dim() > 1 else value + 0.3 * noise)
            if value.dim() == 1 and parameter_name.endswith("bias"):
                value.copy_(noise * 0.3)
        with quiet():
            net.to(dtype).save_pretrained(folder)
    return folder


def load(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    """Read it as `transformers` does."""
    return made.load(folder, dtype)


def exact(net: Any) -> Any:
    """The network with the steps of `PATCHED` in its own dtype."""
    nn.functional.softmax = _softmax
    for models in (cohere, modernbert):
        models.apply_rotary_pos_emb = _turned_in_own_dtype(models.rotate_half)
    for module in net.modules():
        kind = type(module).__name__
        if kind.endswith(("RMSNorm", "T5LayerNorm")):
            module.forward = _rms_norm(module, offset=float(kind.startswith("Gemma")))
        elif kind.endswith("LayerNorm") and hasattr(module, "variance_epsilon"):
            module.forward = _layer_norm(module)
        elif kind.endswith("RotaryEmbedding") and hasattr(module, "inv_freq"):
            module.forward = _rotary(module)
        elif kind.endswith("RotaryEmbedding"):
            module.forward = _rotary_by_layer(module)
        elif kind.endswith("TopKRouter"):
            module.forward = _router(module)
        elif hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=torch.float64)
    return net


def _rms_norm(module: nn.Module, offset: float) -> Any:
    eps = getattr(module, "variance_epsilon", None) or module.eps

    def forward(x: Tensor) -> Tensor:
        return (module.weight + offset) * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))

    return forward


def _router(module: nn.Module) -> Any:
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = nn.functional.linear(x.reshape(-1, module.hidden_dim), module.weight)
        largest, which = scores.softmax(dim=-1).topk(module.top_k, dim=-1)
        if getattr(module, "norm_topk_prob", True):
            largest = largest / largest.sum(dim=-1, keepdim=True)
        return scores, largest, which

    return forward


_SOFTMAX = nn.functional.softmax


def _softmax(x: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    return _SOFTMAX(x, dim=dim, dtype=None if x.dtype == torch.float64 else dtype)


def _turned_in_own_dtype(rotated: Any) -> Any:
    def turned(
        q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1
    ) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        one, two = (x * cos + rotated(x) * sin for x in (q, k))
        return one, two

    return turned


def _layer_norm(module: nn.Module) -> Any:
    def forward(x: Tensor) -> Tensor:
        return module.weight * nn.functional.layer_norm(
            x, x.shape[-1:], eps=module.variance_epsilon
        )

    return forward


def _rotary_by_layer(module: nn.Module) -> Any:
    def forward(x: Tensor, position_ids: Tensor, layer_type: str) -> tuple[Tensor, Tensor]:
        pairs = len(getattr(module, f"{layer_type}_inv_freq"))
        theta = module.config.rope_parameters[layer_type]["rope_theta"]
        angles = theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
        phase = position_ids[..., None].double() * angles
        phase = torch.cat([phase, phase], dim=-1)
        return phase.cos().to(x.dtype), phase.sin().to(x.dtype)

    return forward


def _rotary(module: nn.Module) -> Any:
    plain, angles = module.forward, module.inv_freq.double()
    if module.rope_type == "default":
        theta, pairs = module.config.rope_parameters["rope_theta"], len(angles)
        angles = theta ** -(torch.arange(pairs, dtype=torch.float64) / pairs)

    def forward(x: Tensor, position_ids: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        cos, _ = plain(x, position_ids, **more)
        phase = position_ids[..., None].double() * angles
        repeated = torch.cat([phase, phase], dim=-1)
        if kinds_interleave(module):
            repeated = phase.repeat_interleave(2, dim=-1)
        assert repeated.shape == cos.shape
        return repeated.cos().to(x.dtype), repeated.sin().to(x.dtype)

    return forward


def kinds_interleave(module: nn.Module) -> bool:
    return type(module).__name__.startswith("Cohere")


def inputs(folder: Path, *, count: int = 3, length: int = 40, seed: int = 0) -> dict[str, Tensor]:
    """What the network is called with."""
    config = transformers.AutoConfig.from_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    if hasattr(config, "image_size"):
        size = (count, 3, config.image_size, config.image_size)
        return {"pixel_values": torch.randn(size, generator=generator, dtype=torch.float64)}
    names = ("input_ids", "decoder_input_ids") if config.is_encoder_decoder else ("input_ids",)
    size = (count, length)
    if hasattr(config, "num_mel_bins"):
        frames = (count, config.num_mel_bins, 2 * config.max_source_positions)
        words = torch.randint(0, config.vocab_size, size, generator=generator)
        sound = torch.randn(frames, generator=generator, dtype=torch.float64)
        return {"input_features": sound, "decoder_input_ids": words}
    return {name: torch.randint(0, config.vocab_size, size, generator=generator) for name in names}


def as_one(given: dict[str, Tensor]) -> NetInputs:
    """The same inputs as our own `run` takes them."""
    first, *others = given.values()
    return SourceAndTarget(first, *others) if others else first


@torch.no_grad()
def outputs(net: Any, given: dict[str, Tensor]) -> Tensor:
    """Logits, or hidden states where there is no head."""
    dtype = next(net.parameters()).dtype
    given = {n: v.to(dtype) if v.is_floating_point() else v for n, v in given.items()}
    with quiet():
        out = net(**given)
    found = out.logits if "logits" in out else out.last_hidden_state
    return found.double()


def as_float32(folder: Path, out: Path) -> Path:
    """The same network with all numbers in float32."""
    with quiet():
        load(folder, torch.float32).save_pretrained(out)
    return out
