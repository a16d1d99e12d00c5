"""Attention of a decoder that looks at what an encoder made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.axes import Axis, free, linear, permuted
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.part import STREAM, WITH_BIAS_ROW

#: The stream of the encoder, with a row for a bias.
_OTHER_STREAM = "w"


@dataclass(frozen=True)
class CrossAttention(Attention):
    """Attention whose keys and values read the stream of another network, `w["memory"]`.

    It has names of its own for all that it has, since it stands beside the attention of a block
    that reads its own stream.
    """

    readers = ("Qc", "Kc", "Vc")
    writers = ("Oc", "bOc")
    elsewhere = ("Kc", "Vc")
    query: ClassVar[str] = "Qc"
    key: ClassVar[str] = "Kc"
    value: ClassVar[str] = "Vc"
    output_weight: ClassVar[str] = "Oc"
    constant: ClassVar[str] = "bOc"
    compared: ClassVar[str] = "p"
    carried: ClassVar[str] = "q"

    @property
    def outer(self) -> str:
        """The axis of its heads."""
        return "o"

    @property
    def source(self) -> str:
        """The stream of the other network."""
        return _OTHER_STREAM

    @property
    def axes(self) -> Mapping[str, Axis]:
        """Both streams, heads, what queries and keys share, and what values and outputs share."""
        return {
            STREAM: free("D"),
            WITH_BIAS_ROW: free("D + 1"),
            _OTHER_STREAM: free("D + 1"),
            self.outer: permuted("heads"),
            self.compared: linear("D_k", per=self.outer),
            self.carried: linear("D_v", per=self.outer),
        }

    @property
    def products(self) -> Mapping[str, str]:
        """Q Kᵀ and V O, summed over heads."""
        text = {name: f"{name} {axes}" for name, axes in self.tensors.items()}
        return {
            "QKc": f"{text['Qc']}, {text['Kc']} -> {WITH_BIAS_ROW} {_OTHER_STREAM}",
            "VOc": f"{text['Vc']}, {text['Oc']} -> {_OTHER_STREAM} {STREAM}",
        }

    def given(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
    ) -> Float[Tensor, "n *s u x"]:
        """What the other network gives, after its last norm."""
        return w["memory"]
