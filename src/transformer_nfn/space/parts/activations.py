"""What a neuron makes of its sum."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

#: By the names of config.json; where it has several for one function, by one of them.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    # A constant rounded at its tenth digit.
    "gelu_fast": lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x))),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}
#: f(s x) = s f(x) for positive s: a neuron may read s times as much and write 1/s of it.
HOMOGENEOUS = frozenset(["relu"])
