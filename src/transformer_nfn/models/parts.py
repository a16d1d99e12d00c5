"""What the models share: counting, MLPs from a seed, and reading a network part by part."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from pydantic import BaseModel
from torch import Tensor, nn

from transformer_nfn.layers import seeded_linear
from transformer_nfn.space import NetBatch, ShapeError


class WeightModel(nn.Module):
    """A model that gives a number for each network and can be built again from its config."""

    config: BaseModel

    @property
    def parameter_count(self) -> int:
        """How many numbers it learns."""
        return sum(parameter.numel() for parameter in self.parameters())

    def prepare(
        self, nets: Callable[[Tensor], NetBatch], accuracy: Float[Tensor, " n"], rate: float | int
    ) -> None:
        """What comes before the first epoch of a fit; for most models nothing.

        Args:
            nets: Gives networks to learn from, by their rows.
            accuracy: Of each of them.
            rate: Of the optimizer.
        """


def probe_sizes(net: NetBatch) -> dict[str, int]:
    """Numbers in a token that these networks read, and classes that they answer with.

    Raises:
        ShapeError: If they have no classifier.
    """
    if not net.classifier:
        raise ShapeError("these networks have no classifier")
    weight = net.embedding.get("weight")
    return {
        "inputs": net.blocks.spec.sizes["D"] if weight is None else weight.shape[1],
        "classes": net.classifier["bias2"].shape[1],
    }


def check_classes(answers: Float[Tensor, "n s o"], classes: int) -> None:
    """Refuse answers of networks that have other classes.

    Raises:
        ShapeError: If they have.
    """
    if answers.shape[2] != classes:
        raise ShapeError(
            f"the model reads answers of {classes} classes, these networks have {answers.shape[2]}"
        )


def seeded_generator(seed: int | None) -> torch.Generator | None:
    """A generator of one's own, or none: then torch's global one is drawn from."""
    return None if seed is None else torch.Generator().manual_seed(seed)


def relu_layers(widths: Sequence[int], generator: torch.Generator | None) -> nn.Sequential:
    """Linear-ReLU from each width to the next."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [seeded_linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*layers)


class PartsModel(WeightModel):
    """An MLP for each part of a network, read as a vector; a linear head on all of them.

    Args:
        widths: For each part the numbers it is read as, and the widths of its layers.
        generator: The source of initial parameters.
    """

    def __init__(
        self, widths: Mapping[str, Sequence[int]], generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.sizes = {part: layers[0] for part, layers in widths.items()}
        self.parts = nn.ModuleDict(
            {part: relu_layers(layers, generator) for part, layers in widths.items()}
        )
        self.head = seeded_linear(sum(layers[-1] for layers in widths.values()), 1, generator)

    @abstractmethod
    def vector(self, net: NetBatch, part: str) -> Float[Tensor, "n numbers"]:
        """What the model reads of ``"blocks"``, ``"embedding"`` or ``"classifier"``."""

    def inputs(self, net: NetBatch) -> Float[Tensor, "n f"]:
        """All that the model reads of a network, in one row; no parameter takes part in it.

        Raises:
            ShapeError: If the networks lack a part that the model reads, or it has another size.
        """
        vectors = []
        for part, wanted in self.sizes.items():
            vector = self.vector(net, part)
            if vector.shape[1] != wanted:
                raise ShapeError(
                    f"the model reads {wanted} numbers of the {part}, these networks give "
                    f"{vector.shape[1]}"
                )
            vectors.append(vector)
        return torch.cat(vectors, dim=1)

    def read(self, inputs: Float[Tensor, "n f"]) -> Float[Tensor, " n"]:
        """A logit for each row that `inputs` gave.

        Raises:
            ShapeError: If the rows have another length.
        """
        if inputs.shape[1] != sum(self.sizes.values()):
            raise ShapeError(
                f"the model reads rows of {sum(self.sizes.values())} numbers {self.sizes}, "
                f"got {inputs.shape[1]}"
            )
        vectors = torch.split(inputs, list(self.sizes.values()), dim=1)
        read = [mlp(vector) for mlp, vector in zip(self.parts.values(), vectors, strict=True)]
        out: Tensor = self.head(torch.cat(read, dim=1))
        return out.squeeze(1)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; the prediction is its sigmoid."""
        return self.read(self.inputs(net))


def own_weights(net: NetBatch) -> NetBatch:
    """The networks themselves, if they are networks and not features of some."""
    if net.blocks.channels != 1:
        raise ShapeError(f"{net.blocks.channels} channels are features, not a network; it has one")
    return net


def flat_size(net: NetBatch, part: str) -> int:
    """How many numbers ``"embedding"`` or ``"classifier"`` of one network has."""
    return net[:1].flat(part).shape[1]
