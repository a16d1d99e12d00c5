"""What nets of a zoo answer to inputs: compiled code where it can be had, else torch."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from transformer_nfn.space import apply_net
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.tensors import TensorShape
from transformer_nfn.zoo.training.compiled import Compiled, find_library


def ask(
    shape: NetShape | TensorShape,
    stored: Float[Tensor, "n weights"],
    inputs: Float[Tensor, "s t p"],
) -> Float[Tensor, "n s o"]:
    """Logits of each net for the same sequences, with the gradient of what wants one.

    Compiled code has the gradient of the sequences, once; where that of weights is wanted too,
    torch answers. Where numbers overflow, torch says NaN and compiled code may not.

    Args:
        shape: Sizes of the nets.
        stored: Their weights as rows of files.
        inputs: Sequences of patches or word vectors.

    Raises:
        ShapeError: If the inputs do not fit.
    """
    net = shape.owned
    learned = stored.requires_grad and torch.is_grad_enabled()
    if not learned and inputs.shape[-2] == net.tokens and inputs.dtype == stored.dtype:
        library = find_library(net, stored.device, stored.dtype)
        if library is not None:
            nets = Compiled(net, net.to_trained(stored), library)
            answers: Tensor = _Answers.apply(inputs, nets)  # type: ignore[no-untyped-call]
            return answers
    return apply_net(net.net_batch(stored), inputs)


class _Answers(torch.autograd.Function):
    """Of compiled nets, whose weights are no variables."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, nets: Compiled) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.nets = nets
        return nets.logits(inputs, None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (inputs,) = ctx.saved_tensors
        return ctx.nets.pull(inputs, gradient), None
