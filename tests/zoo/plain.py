"""One zoo net as plain torch modules and torch.optim: what a group must agree with."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.space import sine_positions
from transformer_nfn.zoo.nets import NetShape, views
from transformer_nfn.zoo.runs import Hyperparameters

EPS = 1e-5


class PlainBlock(nn.Module):
    def __init__(self, shape: NetShape) -> None:
        super().__init__()
        D, bias = shape.D, shape.block == "residual"
        self.residual, self.heads = bias, shape.heads
        self.q, self.k, self.v = (nn.Linear(D, D, bias=bias) for _ in range(3))
        self.o = nn.Linear(D, D, bias=bias)
        self.a, self.b = nn.Linear(D, shape.D_A), nn.Linear(shape.D_A, D)

    def attention(self, x: Tensor, real: Tensor | None) -> Tensor:
        b, t, D = x.shape
        q, k, v = (
            layer(x).view(b, t, self.heads, D // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // self.heads)
        if real is not None:
            scores = scores.masked_fill(~real[:, None, None, :], -math.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, D))

    def forward(self, x: Tensor, real: Tensor | None, masks: tuple[Tensor, Tensor]) -> Tensor:
        y = self.attention(F.layer_norm(x, x.shape[-1:], eps=EPS), real) * masks[0]
        x = x + y if self.residual else y
        hidden = self.a(F.layer_norm(x, x.shape[-1:], eps=EPS))
        y = self.b(F.gelu(hidden) if self.residual else hidden.relu()) * masks[1]
        return x + y if self.residual else y


class PlainNet(nn.Module):
    def __init__(self, shape: NetShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Linear(shape.inputs, shape.D) if shape.inputs else None
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.blocks))
        self.first = nn.Linear(shape.D, shape.hidden)
        self.second = nn.Linear(shape.hidden, shape.classes)

    def forward(self, x: Tensor, lengths: Tensor | None, masks: Tensor) -> Tensor:
        """Masks are "layers b t x"."""
        t = x.shape[1]
        real = None if lengths is None else torch.arange(t) < lengths[:, None]
        x = x if self.embedding is None else self.embedding(x)
        x = x + sine_positions(t, self.shape.D).to(x)
        for number, block in enumerate(self.blocks):
            x = block(x, real, (masks[2 * number], masks[2 * number + 1]))
        x = F.layer_norm(x, x.shape[-1:], eps=EPS)
        pooled = x.mean(1) if real is None else (x * real[..., None]).sum(1) / lengths[:, None]
        return self.second(self.first(pooled).relu())

    def named(self) -> dict[str, Tensor]:
        """Parameters by the names of `NetShape.trained`; Linear weights are [out, in]."""
        named = {}
        if self.embedding is not None:
            named |= {"embedding": self.embedding.weight.T, "embedding_bias": self.embedding.bias}
        for number, block in enumerate(self.blocks):
            qkv = (block.q, block.k, block.v)
            named[f"QKV{number}"] = torch.cat([layer.weight.T for layer in qkv], dim=1)
            if block.residual:
                named[f"bQKV{number}"] = torch.cat([layer.bias for layer in qkv])
                named[f"bO{number}"] = block.o.bias
            named |= {f"O{number}": block.o.weight.T}
            named |= {f"A{number}": block.a.weight.T, f"bA{number}": block.a.bias}
            named |= {f"B{number}": block.b.weight.T, f"bB{number}": block.b.bias}
        named |= {"weight1": self.first.weight.T, "bias1": self.first.bias}
        return named | {"weight2": self.second.weight.T, "bias2": self.second.bias}

    @torch.no_grad()
    def load(self, row: Tensor) -> "PlainNet":
        """Take the weights of a flat row of the trainer."""
        w = {name: tensor[0] for name, tensor in views(row[None], self.shape.trained).items()}
        for number, block in enumerate(self.blocks):
            D = self.shape.D
            for place, layer in enumerate((block.q, block.k, block.v)):
                columns = slice(place * D, (place + 1) * D)
                layer.weight.copy_(w[f"QKV{number}"][:, columns].T)
                if block.residual:
                    layer.bias.copy_(w[f"bQKV{number}"][columns])
        named = self.named()
        for name, tensor in w.items():
            if not name.startswith(("QKV", "bQKV")):
                named[name].copy_(tensor)  # a view of the parameter
        return self

    def flat(self) -> Tensor:
        """The weights as a flat row of the trainer."""
        named = self.named()
        return torch.cat([named[name].flatten() for name in self.shape.trained]).detach()


def plain_optimizer(net: nn.Module, h: Hyperparameters) -> torch.optim.Optimizer:
    common = {"lr": h.lr, "weight_decay": h.l2}
    if h.optimizer == "adam":
        return torch.optim.Adam(net.parameters(), **common)
    if h.optimizer == "rmsprop":
        return torch.optim.RMSprop(net.parameters(), **common)
    return torch.optim.SGD(
        net.parameters(), momentum=0.9 if h.optimizer == "sgdm" else 0.0, **common
    )
