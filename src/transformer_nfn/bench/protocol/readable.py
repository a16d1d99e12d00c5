"""Which models can read networks of another zoo than the one they were trained on."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.zoo.dataset import NetShape

#: What must agree for a model to read other networks; where it is not named, all sizes.
NEEDS: Mapping[str, Literal["nothing", "tensors", "function"]] = MappingProxyType(
    {
        "hyperparameters": "nothing",
        "blockwise": "nothing",
        "statistics": "tensors",
        "probes": "function",
        "probegen": "function",
        "agreement": "function",
    }
)


def check_readable(model: str, trained: NetShape, tested: NetShape) -> None:
    """Refuse a model that cannot read the networks of another zoo, before it is fitted.

    Args:
        model: Its name.
        trained: The networks it is trained on.
        tested: Those of the other zoo.

    Raises:
        BenchError: If it cannot, saying what differs.
    """
    differs = _differences(model, trained, tested)
    if differs:
        raise BenchError(
            f"{model} cannot read the networks of the test zoo: {', '.join(differs)}. "
            f"{', '.join(name for name, need in NEEDS.items() if need == 'nothing')} read all"
        )


def is_readable(model: str, trained: NetShape, tested: NetShape) -> bool:
    """Whether a model can read the networks of another zoo."""
    return not _differences(model, trained, tested)


def _differences(model: str, trained: NetShape, tested: NetShape) -> list[str]:
    need = NEEDS.get(model, "sizes")
    if need == "nothing":
        return []
    if need == "tensors":
        # Statistics are of each tensor, whatever its size.
        names = [sorted(shape.stored) for shape in (trained, tested)]
        return [] if names[0] == names[1] else ["it has other tensors"]
    fields = set(NetShape.model_fields) - {"tokens"}
    if need == "function":
        fields = {"inputs", "tokens", "classes"} | (set() if trained.inputs else {"D"})
    return [
        f"{name} is {getattr(tested, name)} instead of {getattr(trained, name)}"
        for name in sorted(fields)
        if getattr(tested, name) != getattr(trained, name)
    ]
