"""Experts: gated MLPs of which a router chooses some for each token."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.axes import Axis, free, linear, permuted
from transformer_nfn.space.functions import per_net, with_bias_row
from transformer_nfn.space.parts.activations import ACTIVATIONS
from transformer_nfn.space.parts.part import (
    FUNCTION_ONLY,
    STREAM,
    WITH_BIAS_ROW,
    Part,
    Unit,
    constant_unit,
)

#: Scores are nearer than this for a choice that is made gradually: far more than rounding moves
#: them by, in 16 bits too, and less than they usually are apart.
_GRADUAL = 0.25


@dataclass(frozen=True)
class Experts(Part):
    """Gated MLPs, weighted by a softmax of the router's scores, of which the largest count.

    The experts may be in any order if the router's columns are in the same. A vector that is added
    to all of the router's columns changes all scores alike, and a softmax does not see it.

    Attributes:
        activation: One of `ACTIVATIONS`.
        chosen: Experts for each token.
        renormalised: The weights of those chosen add up to 1.
        scales: Declare the nonzero scale of each neuron between its linear branch and what it
            writes.
        width: Where the scores of the last expert that is chosen and of the first that is not are
            nearer than this, both count in part; elsewhere the choice is sharp.
    """

    activation: str
    chosen: int = field(default=2, metadata=FUNCTION_ONLY)
    renormalised: bool = field(default=True, metadata=FUNCTION_ONLY)
    scales: bool = False
    width: float = field(default=0.0, metadata=FUNCTION_ONLY)

    readers = ("router", "gate", "up")
    writers = ("down",)

    @property
    def reads(self) -> str:
        """The stream, with a row for biases."""
        return WITH_BIAS_ROW

    @property
    def axes(self) -> Mapping[str, Axis]:
        """Experts, their neurons, and the scales of these."""
        found = {STREAM: free("D"), WITH_BIAS_ROW: free("D + 1")}
        found |= {"u": permuted("experts"), "a": permuted("D_A", per="u")}
        return found | ({"s": linear("1", per="u a")} if self.scales else {})

    @property
    def tensors(self) -> Mapping[str, str]:
        """The router, both branches of each expert, and what writes."""
        scale, dual = (" s", " s*") if self.scales else ("", "")
        return {
            "router": "z u",
            "gate": "u z a",
            "up": f"u z a{scale}",
            "down": f"u a{dual} x",
        }

    @property
    def shifted_axes(self) -> Mapping[str, int]:
        """The router's experts."""
        return {"router": -1}

    @property
    def units(self) -> Mapping[str, Unit]:
        """A column of the router; a neuron's gate, and its linear branch with what it writes."""
        return {
            "router": Unit(("router",), ("u",), lambda w: (w["router"].T.unsqueeze(-1),)),
            "gate": Unit(("gate",), ("u", "a"), lambda w: (w["gate"].movedim(1, 2).unsqueeze(-1),)),
            "up down": Unit(("up", "down"), ("u", "a"), self._both),
            "bgate": constant_unit(
                ("gate",), ("u", "a"), lambda w: (w["gate"][:, -1, :, None, None],)
            ),
            "bup down": constant_unit(("up", "down"), ("u", "a"), self._constants),
        }

    def _both(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        up, down = self._plain(w)
        return up.movedim(1, 2).unsqueeze(-1), down.unsqueeze(-1)  # u a z 1, u a x 1

    def _constants(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        up, down = self._both(w)
        return up[:, :, -1:], down

    @staticmethod
    def _plain(w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The linear branches "… u z a" and what writes "… u a x", without the axis of scales."""
        gate, down = w["gate"], w["down"]
        return w["up"].view(gate.shape), down.reshape(*gate.shape[:-2], gate.shape[-1], -1)

    def shares(self, scores: Float[Tensor, "*s u"]) -> Float[Tensor, "*s u"]:
        """How much of each expert there is, 0 of those that are not chosen."""
        shares = scores.softmax(dim=-1) * self._chosen(scores)
        return shares / shares.sum(dim=-1, keepdim=True) if self.renormalised else shares

    def _chosen(self, scores: Float[Tensor, "*s u"]) -> Float[Tensor, "*s u"]:
        """1 for the experts with the largest scores, 0 for others; between where it is close."""
        if self.chosen == scores.shape[-1]:
            return torch.ones_like(scores)
        if not self.width:
            which = scores.topk(self.chosen, dim=-1).indices
            return torch.zeros_like(scores).scatter(-1, which, 1.0)
        last = scores.topk(self.chosen + 1, dim=-1).values[..., -2:]
        middle = last.mean(dim=-1, keepdim=True)
        return ((scores - middle) / self.width + 0.5).clamp(0, 1)

    def choices(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
    ) -> Float[Tensor, "n *s t u"] | None:
        """The experts of each token."""
        scores = per_net(with_bias_row(x), w["router"])
        if self.chosen == scores.shape[-1]:
            return None
        return replace(self, width=0.0)._chosen(scores)

    def margins(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
    ) -> Float[Tensor, "n *s t"] | None:
        """Of the scores, as a softmax knows them."""
        scores = per_net(with_bias_row(x), w["router"])
        if self.chosen == scores.shape[-1]:
            return None
        last = scores.topk(self.chosen + 1, dim=-1).values[..., -2:]
        ahead = -last.diff(dim=-1).squeeze(-1) / scores.abs().amax(dim=-1).clamp_min(1)
        something = (x != 0).any(dim=-1)  # else all experts write the same: nothing
        return torch.where(something, ahead, torch.inf)

    def without_jumps(self) -> "Experts":
        """Experts that are almost as good count both."""
        return replace(self, width=_GRADUAL)

    def __call__(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], number: int = 0
    ) -> Float[Tensor, "n *s t x"]:
        """Σ_e share_e (f(X W^(gate,e)) ⊙ X W^(up,e)) W^(down,e)."""
        x = with_bias_row(x)
        shares = self.shares(per_net(x, w["router"]))
        up, down = self._plain(w)
        out = None
        for expert in range(w["router"].shape[-1]):
            gate = ACTIVATIONS[self.activation](per_net(x, w["gate"][:, expert]))
            written = per_net(gate * per_net(x, up[:, expert]), down[:, expert])
            written = written * shares[..., expert, None]
            out = written if out is None else out + written
        assert out is not None
        return out
