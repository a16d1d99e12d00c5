"""What a unit is called in the file that a person has in front of them."""

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.residuals import Residual
from transformer_nfn.space import Unit


def unit_name(checkpoint: Checkpoint, place: str, residual: Residual) -> str:
    """The tensors on disk that a residual is of, and which head, neuron or row of them.

    Args:
        checkpoint: The file.
        place: The name of a tensor, or what stands before the names of a block.
        residual: What is off.
    """
    if residual.kind == place:
        if residual.leans:
            return f"{place}, in one direction"
        return place if residual.unit is None else f"{place}, row {residual.unit}"
    unit = checkpoint.spec.block.units.get(residual.kind)
    names = []
    for matrix in checkpoint.family.matrices:
        for tensor in unit.tensors if unit else residual.kind.split():
            if tensor in matrix.tensors:
                names.append(place + matrix.weight.replace("{}", "*"))
            elif tensor == matrix.bias_tensor:
                names.append(place + (matrix.bias or matrix.weight))
    which = "in one direction" if residual.leans else _which(checkpoint, residual, unit)
    return " and ".join(dict.fromkeys(names)) + (f", {which}" if which else "")


def _which(checkpoint: Checkpoint, residual: Residual, unit: Unit | None) -> str:
    if unit is None or not unit.labels:
        return ""
    kinds = {"a": "neuron", "j": "pair", "x": "coordinate", "u": "expert"}
    what = kinds.get(unit.labels[-1], "head")
    if residual.unit is None:
        return f"all {what}s together"
    pairs = checkpoint.spec.size("k") // 2 if unit.pairs else 1
    return f"{what} {residual.unit // pairs}"
