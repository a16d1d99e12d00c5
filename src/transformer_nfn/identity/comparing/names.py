"""What a unit is called in the file that a person has in front of them."""

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.residuals import Residual


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
    names = []
    for matrix in checkpoint.family.matrices:
        for tensor in residual.kind.split():
            if tensor in matrix.tensors:
                names.append(place + matrix.weight)
            elif tensor == matrix.bias_tensor:
                names.append(place + (matrix.bias or matrix.weight))
    which = _which(checkpoint, residual)
    return " and ".join(dict.fromkeys(names)) + (f", {which}" if which else "")


def _which(checkpoint: Checkpoint, residual: Residual) -> str:
    if residual.kind in ("bO", "bB", "bdown"):
        return ""
    heads = residual.kind in ("Q K", "V O")
    if residual.leans:
        return "in one direction"
    if residual.unit is None:
        return "all heads together" if heads else "all neurons together"
    if not heads:
        return f"neuron {residual.unit}"
    pairs = 1
    if residual.kind == "Q K" and checkpoint.settings.rope is not None:
        pairs = checkpoint.spec.sizes["D_k"] // 2
    return f"head {residual.unit // pairs}"
