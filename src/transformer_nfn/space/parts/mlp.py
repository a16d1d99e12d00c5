"""MLPs: neurons that read a token and write into it, plain ones and gated ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.axes import Axis, free, linear, permuted, scaled
from transformer_nfn.space.functions import per_net, with_bias_row
from transformer_nfn.space.parts.activations import ACTIVATIONS, HOMOGENEOUS
from transformer_nfn.space.parts.part import (
    FUNCTION_ONLY,
    STREAM,
    TINY,
    WITH_BIAS_ROW,
    Part,
    Unit,
    after_norm,
    along_stream,
    constant_unit,
    number_unit,
    row_unit,
)


@dataclass(frozen=True)
class Mlp(Part):
    """Linear, activation, Linear.

    Attributes:
        activation: One of `ACTIVATIONS`.
        input: What it reads: the stream, or an axis that the part before writes.
        scales: Declare the positive scale of each neuron where the activation has one. Layers know
            none.
        scaled: What it writes is scaled by nB, each coordinate by a number of its own.
    """

    activation: str
    input: str = STREAM
    scales: bool = False
    scaled: bool = False

    readers = ("A",)
    writers = ("B", "bB")

    @property
    def reads(self) -> str:
        """What was declared as its input."""
        return self.input

    @property
    def homogeneous(self) -> bool:
        """Whether each neuron has a positive scale of its own."""
        return self.activation in HOMOGENEOUS

    @property
    def _scale(self) -> bool:
        return self.scales and self.homogeneous

    @property
    def axes(self) -> Mapping[str, Axis]:
        """Neurons, and their scales."""
        found = {STREAM: free("D"), "a": permuted("D_A")}
        return found | ({"s": scaled("1", per="a")} if self._scale else {})

    @property
    def tensors(self) -> Mapping[str, str]:
        """A, B, and their biases."""
        gains = dict.fromkeys(self.gains, STREAM)
        if self._scale:
            return {"A": f"{self.input} a s", "B": "a s* x", **gains, "bA": "a s", "bB": "x"}
        return {"A": f"{self.input} a", "B": "a x", **gains, "bA": "a", "bB": "x"}

    @property
    def gains(self) -> tuple[str, ...]:
        """The scale of what it writes."""
        return ("nB",) if self.scaled else ()

    @property
    def units(self) -> Mapping[str, Unit]:
        """What a neuron reads and what it writes; where a scale may move, their product."""
        bias = {"bB": row_unit("bB")} | {name: number_unit(name) for name in self.gains}
        if self._scale:
            return {
                "A B": Unit(("A", "bA", "B"), ("a",), self._both),
                "bA B": constant_unit(("bA", "B"), ("a",), self._constants),
            } | bias
        return {
            "A": Unit(("A",), ("a",), lambda w: (w["A"].T.unsqueeze(-1),)),
            "bA": constant_unit(("bA",), ("a",), lambda w: (w["bA"][:, None, None],)),
            "B": Unit(("B",), ("a",), lambda w: (w["B"].unsqueeze(-1),)),
        } | bias

    def _both(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        reads = torch.cat([w["A"].movedim(0, 1), w["bA"].unsqueeze(-2)], dim=-2)
        return reads, w["B"].mT  # a x 1, a x 1

    def _constants(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        reads, writes = self._both(w)
        return reads[:, -1:], writes

    def with_unit_output(self, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """|B|² + |bB|² gets 1."""
        B, bias = w["B"], w["bB"]
        square = B.square().sum(dim=(-2, -1)) + bias.square().sum(-1) + TINY
        scale = square.rsqrt()
        return {**w, "B": B * scale[..., None, None], "bB": bias * scale[..., None]}

    def with_unit_scales(self, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each neuron's column and bias together get the size 1; what it writes takes the rest."""
        if not self.homogeneous:
            return dict(w)
        A, bias, B = unit_neurons(w["A"], w["bA"], w["B"])
        return {**w, "A": A, "bA": bias, "B": B}

    def __call__(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], number: int = 0
    ) -> Float[Tensor, "n *s t x"]:
        """f(X W^(A) + b^(A)) W^(B) + b^(B)."""
        neurons = w["bA"].shape[1]
        A, B = (
            w["A"].view(*w["A"].shape[:2], neurons),
            w["B"].view(len(w["B"]), neurons, w["B"].shape[-1]),
        )
        hidden = ACTIVATIONS[self.activation](per_net(x, A, w["bA"].view(-1, neurons)))
        out = per_net(hidden, B, w["bB"])
        return out * along_stream(w["nB"], out) if self.scaled else out


def unit_neurons(
    reads: Float[Tensor, "*n x a"], bias: Float[Tensor, "*n a"], writes: Float[Tensor, "*n a y"]
) -> tuple[Tensor, Tensor, Tensor]:
    """ReLU neurons that read with a column and bias of size 1; what they write takes the rest."""
    square = reads.square().sum(dim=-2) + bias.square() + TINY
    return (
        reads * square.rsqrt().unsqueeze(-2),
        bias * square.rsqrt(),
        writes * square.sqrt().unsqueeze(-1),
    )


@dataclass(frozen=True)
class GatedMlp(Part):
    """Two branches that are multiplied, one of them through the activation.

    Attributes:
        activation: One of `ACTIVATIONS`.
        bias_row: The biases of both branches are the last row of what they read, and there is one
            where it writes.
        scales: Declare the nonzero scale of each neuron between its linear branch and what it
            writes. Layers know none.
        after: What it writes goes through an RMSNorm with a scale ndown before it is added.
        norm_eps: Of that norm.
    """

    activation: str
    bias_row: bool = False
    scales: bool = False
    after: bool = False
    norm_eps: float = field(default=0.0, metadata=FUNCTION_ONLY)

    readers = ("gate", "up")
    writers = ("down", "bdown")

    @property
    def reads(self) -> str:
        """The stream, with a bias row or without."""
        return WITH_BIAS_ROW if self.bias_row else STREAM

    @property
    def axes(self) -> Mapping[str, Axis]:
        """Neurons, and the scales of their linear branch."""
        found = {STREAM: free("D")}
        if self.bias_row:
            found[WITH_BIAS_ROW] = free("D + 1")
        found["a"] = permuted("D_A")
        return found | ({"s": linear("1", per="a")} if self.scales else {})

    @property
    def tensors(self) -> Mapping[str, str]:
        """The branches, and what writes."""
        scale, dual = (" s", " s*") if self.scales else ("", "")
        found = {"gate": f"{self.reads} a", "up": f"{self.reads} a{scale}", "down": f"a{dual} x"}
        found |= dict.fromkeys(self.gains, STREAM)
        return found | ({"bdown": "x"} if self.bias_row else {})

    @property
    def gains(self) -> tuple[str, ...]:
        """The scale of the norm of what it writes."""
        return ("ndown",) if self.after else ()

    @property
    def units(self) -> Mapping[str, Unit]:
        """What a neuron's gate reads, and the product of its linear branch and what it writes."""
        found = {
            "gate": Unit(("gate",), ("a",), lambda w: (w["gate"].T.unsqueeze(-1),)),
            "up down": Unit(("up", "down"), ("a",), self._both),
        }
        if self.bias_row:  # all that a token of zeros sees
            found["bgate"] = constant_unit(
                ("gate",), ("a",), lambda w: (w["gate"][-1][:, None, None],)
            )
            found["bup down"] = constant_unit(("up", "down"), ("a",), self._constants)
        found |= {name: number_unit(name) for name in self.gains}
        return found | ({"bdown": row_unit("bdown")} if self.bias_row else {})

    def _both(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        up = w["up"].view(*w["up"].shape[:2], 1).movedim(0, 1)  # a z 1
        return up, w["down"].view(up.shape[0], 1, -1).mT  # a x 1

    def _constants(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        up, down = self._both(w)
        return up[:, -1:], down

    def __call__(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], number: int = 0
    ) -> Float[Tensor, "n *s t x"]:
        """(f(X W^(gate)) ⊙ X W^(up)) W^(down), and the bias."""
        x = with_bias_row(x) if self.bias_row else x
        neurons = w["gate"].shape[-1]
        gate = per_net(x, w["gate"])
        up = per_net(x, w["up"].view(*w["up"].shape[:2], neurons))
        down = w["down"].view(len(w["down"]), neurons, -1)
        out = per_net(ACTIVATIONS[self.activation](gate) * up, down, w.get("bdown"))
        return after_norm(out, w["ndown"], self.norm_eps) if self.after else out
