import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm


@pytest.fixture
def exact_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """`transformers` computes RMSNorm in float32 whatever the dtype; here in the dtype itself."""

    def forward(self: LlamaRMSNorm, x: torch.Tensor) -> torch.Tensor:
        size = x.square().mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * (x * torch.rsqrt(size))

    for norm in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm):
        monkeypatch.setattr(norm, "forward", forward)
