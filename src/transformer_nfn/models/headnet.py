"""A model that reads a network as a graph of its heads and neurons."""

from collections.abc import Callable
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers import Messages, NodeEncoder, Standardised, pooled, seeded_linear
from transformer_nfn.models.headnetconfig import HeadNetConfig, NormPlace
from transformer_nfn.models.netgraph import by_block, net_graph
from transformer_nfn.models.parts import WeightModel, seeded_generator
from transformer_nfn.space import NetBatch, ShapeError

#: How many networks are turned into graphs at once, and how many say what numbers are usual.
_CHUNK = 64
_USUAL = 1024


class HeadNet(WeightModel):
    """Heads and neurons are nodes, what one reads of the other are edges; messages, then a reader.

    It is ours, not the paper's. All it reads are products along axes that a symmetry moves on both
    sides, of a network in a canonical form. So neither the paper's group nor what is beyond it
    changes its output (LayerNorm's ε = 0), and it does know which Q Kᵀ belongs to which V O.

    Examples:
        >>> import torch
        >>> from transformer_nfn.models import HeadNet, HeadNetConfig
        >>> from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch
        >>> spec = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
        >>> blocks = WeightBatch.random(
        ...     spec, networks=3, blocks=2, generator=torch.Generator().manual_seed(0)
        ... )
        >>> net = NetBatch(blocks)
        >>> HeadNet(HeadNetConfig.of(net))(net).shape
        torch.Size([3])

    Args:
        config: Its shape.
    """

    config: HeadNetConfig
    steps: Tensor  # how many times it was trained, for dropout and noise

    def __init__(self, config: HeadNetConfig) -> None:
        super().__init__()
        self.config = config
        generator = seeded_generator(config.seed)
        numbers = {part: shape[-1] for part, shape in config.shapes.items()}
        width = config.width
        self.standardised = nn.ModuleDict(
            {
                part: Standardised(*shape[:1] * by_block(part), shape[-1])
                for part, shape in config.shapes.items()
            }
        )
        self.encoders = nn.ModuleDict(
            {
                place.key: NodeEncoder(numbers[place.part], width, generator)
                for place in config.nodes()
            }
        )
        self.rounds = nn.ModuleList(
            nn.ModuleDict(
                {
                    place.key: Messages(numbers[place.part], width, generator)
                    for place, _, _ in config.edges()
                }
            )
            for _ in range(config.rounds)
        )
        self.whole = seeded_linear(numbers["whole"], width, generator)
        read = width * (1 + 3 * len(self.encoders))
        self.norm = nn.LayerNorm(read)
        self.first = seeded_linear(read, config.hidden, generator)
        self.second = seeded_linear(config.hidden, 1, generator)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def inputs(self, net: NetBatch) -> Float[Tensor, "n f"]:
        """The graph of each network in one row; no parameter takes part in it.

        Raises:
            ShapeError: If the networks have other sizes.
        """
        graph = net_graph(net, self.config.positions)
        found = {part: tuple(numbers.shape[1:]) for part, numbers in graph.items()}
        if found != self.config.shapes:
            raise ShapeError(f"the model reads graphs of {self.config.shapes}, got {found}")
        row = torch.cat([graph[part].flatten(1) for part in self.config.shapes], dim=1)
        return row.to(self.norm.weight.dtype)

    def read(self, inputs: Float[Tensor, "n f"]) -> Float[Tensor, " n"]:
        """A logit for each row that `inputs` gave.

        Raises:
            ShapeError: If the rows have another length.
        """
        chance = self._chance() if self.training else None
        numbers = {
            part: _noisy(self.standardised[part](some), self.config.noise, chance)
            for part, some in self._parts(inputs).items()
        }

        def of(place: NormPlace) -> Tensor:
            some = numbers[place.part]
            return some[:, place.block] if by_block(place.part) else some

        states = {place: self.encoders[place.key](of(place)) for place in self.config.nodes()}
        for messages in self.rounds:
            assert isinstance(messages, nn.ModuleDict)
            for place, senders, receivers in self.config.edges():
                states[senders], states[receivers] = messages[place.key](
                    states[senders], states[receivers], of(place)
                )
        whole = self.whole(numbers["whole"]).relu()
        vector = self.norm(torch.cat([*map(pooled, states.values()), whole], dim=-1))
        hidden = self.first(_dropped(vector, self.config.dropout, chance)).relu()
        out: Tensor = self.second(_dropped(hidden, self.config.dropout, chance))
        return out.squeeze(1)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; the prediction is its sigmoid."""
        return self.read(self.inputs(net))

    @torch.no_grad()
    def prepare(
        self, nets: Callable[[Tensor], NetBatch], accuracy: Float[Tensor, " n"], rate: float | int
    ) -> None:
        """Learn what numbers are usual from the networks of a fit.

        Args:
            nets: Gives networks to learn from, by their rows.
            accuracy: Of each of them.
            rate: Of the optimizer.
        """
        count = len(accuracy)
        some = torch.linspace(0, count - 1, min(count, _USUAL)).long()
        rows = torch.cat([self.inputs(nets(part)) for part in torch.split(some, _CHUNK)])
        for part, numbers in self._parts(rows).items():
            module = self.standardised[part]
            assert isinstance(module, Standardised)
            module.learn(numbers)

    def _parts(self, inputs: Float[Tensor, "n f"]) -> dict[str, Tensor]:
        shapes = self.config.shapes
        sizes = [prod(shape) for shape in shapes.values()]
        if inputs.shape[1] != sum(sizes):
            raise ShapeError(f"the model reads rows of {sum(sizes)} numbers, got {inputs.shape[1]}")
        some = torch.split(inputs, sizes, dim=1)
        return {
            part: numbers.reshape(len(inputs), *shapes[part])
            for part, numbers in zip(shapes, some, strict=True)
        }

    def _chance(self) -> torch.Generator:
        """Of one step: from seed and step alone, so that a resumed fit draws the same."""
        self.steps += 1
        seed = (self.config.seed or 0) + 1_000_003 * int(self.steps)
        return torch.Generator().manual_seed(seed)


def _noisy(numbers: Tensor, deviation: float, chance: torch.Generator | None) -> Tensor:
    if chance is None or deviation == 0:
        return numbers
    return numbers + deviation * torch.randn(numbers.shape, generator=chance).to(numbers)


def _dropped(numbers: Tensor, share: float, chance: torch.Generator | None) -> Tensor:
    if chance is None or share == 0:
        return numbers
    kept = torch.rand(numbers.shape, generator=chance).to(numbers) >= share
    return numbers * kept / (1 - share)
