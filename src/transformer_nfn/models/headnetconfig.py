"""The shape of a `HeadNet`: that of the graphs it reads, and its widths."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator

from transformer_nfn.models.netgraph import by_block, net_graph
from transformer_nfn.space import NetBatch

Size = Annotated[int, Field(ge=1)]
Shapes = dict[str, tuple[Size, ...]]

#: The parts of a graph that come together, and how many axes each has.
_TOGETHER: tuple[dict[str, int], ...] = (
    {"heads": 3, "neurons": 3, "heads_to_neurons": 4, "whole": 1},
    {"neurons_to_heads": 4},
    {"inputs": 2, "inputs_to_heads": 3},
    {"neurons_to_hidden": 3, "hidden": 2, "hidden_to_classes": 3, "classes": 2},
)


class NormPlace(NamedTuple):
    """A set of nodes or edges: a part of the graph, and the block where it has blocks."""

    part: str
    block: int = 0

    @property
    def key(self) -> str:
        """Its name among the modules."""
        return f"{self.part}_{self.block}"


class Edges(NamedTuple):
    """A set of edges, and the nodes on both sides."""

    place: NormPlace
    senders: NormPlace
    receivers: NormPlace


class HeadNetConfig(BaseModel):
    """The shape of a `HeadNet`.

    Attributes:
        shapes: Of each part of a network's graph, see `net_graph`.
        positions: How many of the fixed positions it reads.
        width: Of the state of a node.
        rounds: How many times messages pass along the network.
        hidden: Width of the MLP on the pooled states.
        dropout: Of what that MLP reads, in training.
        noise: Deviation of noise on all standardised numbers, in training.
        seed: Of the initial parameters, dropout and noise; None draws the first from torch's global
            generator, and the others as 0 does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    shapes: Shapes
    positions: int = Field(default=0, ge=0)
    width: int = Field(default=16, ge=1)
    rounds: int = Field(default=1, ge=0, le=8)
    hidden: int = Field(default=64, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    noise: float = Field(default=0.0, ge=0)
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, *, positions: int = 0, **settings: Any) -> "HeadNetConfig":
        """A config for networks like these."""
        graph = net_graph(net[:1], positions)
        shapes = {part: tuple(numbers.shape[1:]) for part, numbers in graph.items()}
        return HeadNetConfig(shapes=shapes, positions=positions, **settings)

    @field_validator("shapes")
    @classmethod
    def _is_a_graph(cls, shapes: Shapes) -> Shapes:
        axes = {part: len(shape) for part, shape in shapes.items()}
        wanted = {
            part: count
            for number, parts in enumerate(_TOGETHER)
            if number == 0 or axes.keys() & parts
            for part, count in parts.items()
        }
        if axes != wanted:
            raise ValueError(f"a graph has parts with so many axes: {wanted}, got {axes}")
        between = shapes["neurons_to_heads"][0] if "neurons_to_heads" in shapes else 0
        blocks = [shapes[part][0] for part in ("heads", "neurons", "heads_to_neurons")]
        if blocks != [between + 1] * 3:
            raise ValueError(f"parts are of {blocks} blocks, with {between} steps between them")
        return shapes

    @property
    def blocks(self) -> int:
        """How many blocks the networks have."""
        return self.shapes["heads"][0]

    def nodes(self) -> Iterator[NormPlace]:
        """All sets of nodes."""
        for part, shape in self.shapes.items():
            if "_to_" not in part and part != "whole":
                for block in range(shape[0] if by_block(part) else 1):
                    yield NormPlace(part, block)

    def edges(self) -> Iterator[Edges]:
        """All sets of edges, in the order of the network."""
        if "inputs" in self.shapes:
            yield Edges(NormPlace("inputs_to_heads"), NormPlace("inputs"), NormPlace("heads"))
        for block in range(self.blocks):
            heads, neurons = NormPlace("heads", block), NormPlace("neurons", block)
            yield Edges(NormPlace("heads_to_neurons", block), heads, neurons)
            if block + 1 < self.blocks:
                after = NormPlace("heads", block + 1)
                yield Edges(NormPlace("neurons_to_heads", block), neurons, after)
        if "hidden" in self.shapes:
            last = NormPlace("neurons", self.blocks - 1)
            yield Edges(NormPlace("neurons_to_hidden"), last, NormPlace("hidden"))
            yield Edges(NormPlace("hidden_to_classes"), NormPlace("hidden"), NormPlace("classes"))
