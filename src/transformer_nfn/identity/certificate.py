"""Certificates: a `NetElement` as a safetensors file; docs/identity.md specifies it."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, TensorFiles
from transformer_nfn.group import GroupElement
from transformer_nfn.identity.canonical import Gauge
from transformer_nfn.identity.element import NetElement, Outside
from transformer_nfn.space import Kind

FORMAT = "tnfn-certificate"
VERSION = "1"


def save_certificate(
    element: NetElement, ours: Checkpoint, path: str | Path, *, target_norm: str | None = None
) -> None:
    """Write an element for a checkpoint.

    Args:
        element: What carries it to another.
        ours: The checkpoint it acts on.
        path: Where to.
        target_norm: The norm of the result; the checkpoint's own if None.
    """
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "family": ours.family.name,
        "block": ours.spec.block.name,
        "sizes": json.dumps(dict(ours.spec.sizes)),
        "blocks": str(ours.blocks),
        "norm": target_norm or ours.settings.norm,
    }
    tensors = {name: value.contiguous() for name, value in _tensors(element).items()}
    save_file(tensors, path, metadata)


def _tensors(element: NetElement) -> dict[str, Tensor]:
    found = {f"basis.{stream}": basis for stream, basis in element.bases.items()}
    for number, block in enumerate(element.blocks):
        found |= {f"block.{number}.{label}": part[0, 0] for label, part in block.parts.items()}
    for number, gauge in enumerate(element.gauges):
        if gauge is None:
            continue
        place = f"gauge.{number}"
        for half, (scale, shift) in enumerate(gauge.norms):
            found |= {f"{place}.norm.{half}.scale": scale, f"{place}.norm.{half}.shift": shift}
        found |= {f"{place}.ones.{name}": value for name, value in gauge.ones.items()}
        if gauge.key_bias is not None:
            found[f"{place}.key_bias"] = gauge.key_bias
        if gauge.value_bias is not None:
            found[f"{place}.value_bias"] = gauge.value_bias
    if element.outside is not None:
        scale, shift = element.outside.last_norm
        found |= {"outside.scale": scale, "outside.shift": shift}
        found |= {f"outside.ones.{name}": value for name, value in element.outside.ones.items()}
        found["outside.untied"] = torch.tensor(element.outside.untied)
    if element.unseen is not None:
        found["unseen"] = element.unseen
    if element.hidden is not None:
        found |= {"hidden.order": element.hidden[0], "hidden.scale": element.hidden[1]}
    # A file may not hold one storage twice.
    return {name: value.clone() for name, value in found.items()}


def load_certificate(path: str | Path, ours: Checkpoint) -> tuple[NetElement, str]:
    """Read an element for a checkpoint, and the norm of the result.

    Raises:
        CheckpointError: If it is no certificate, or one for another network.
    """
    with TensorFiles(path) as files:
        metadata = files.shards[0][1].metadata
        wanted = {
            "format": FORMAT,
            "version": VERSION,
            "family": ours.family.name,
            "block": ours.spec.block.name,
            "sizes": json.dumps(dict(ours.spec.sizes)),
            "blocks": str(ours.blocks),
        }
        for name, value in wanted.items():
            if metadata.get(name) != value:
                raise CheckpointError(
                    f"{path} is no certificate for {ours.path}: {name} is "
                    f"{str(metadata.get(name))[:80]!r}, not {value!r}"
                )
        tensors = {name: files.read(name) for name in files}
    norm = metadata.get("norm", ours.settings.norm)
    if norm not in ("layer", "rms"):
        raise CheckpointError(f"{path}: norm is 'layer' or 'rms', not {norm!r:.60}")
    try:
        _check_values(tensors)
        return _element(tensors, ours), norm
    except (KeyError, IndexError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"{path} is not a sound certificate: {str(error)[:200]}") from None


def _element(tensors: Mapping[str, Tensor], ours: Checkpoint) -> NetElement:
    blocks = []
    for number in range(ours.blocks):
        parts = _under(tensors, f"block.{number}.")
        blocks.append(
            GroupElement(ours.spec, {label: part[None, None] for label, part in parts.items()})
        )  # which checks the shapes
        for label, part in parts.items():
            _check_part(part, ours.spec.block.axes[label].kind, f"block.{number}.{label}")
    bases = {int(name): basis for name, basis in _under(tensors, "basis.").items()}
    for basis in bases.values():
        error = (basis @ basis.T - torch.eye(ours.D, dtype=torch.float64)).abs().max().item()
        if basis.shape != (ours.D, ours.D) or not error < 1e-6:
            raise ValueError("a basis is not orthogonal")
    gauges = tuple(
        _gauge(_under(tensors, f"gauge.{number}."), ours) for number in range(ours.blocks)
    )
    outer = _under(tensors, "outside.")
    outside = None
    if outer:
        ones = _under(outer, "ones.")
        for name, given in ones.items():
            _check_shape(given, _others(ours, name), f"outside.ones.{name}")
        for name in ("scale", "shift"):
            _check_shape(outer[name], (ours.D,), f"outside.{name}")
        outside = Outside((outer["scale"], outer["shift"]), ones, bool(outer["untied"].item()))
    hidden = None
    if "hidden.order" in tensors:
        order, scale = tensors["hidden.order"], tensors["hidden.scale"]
        _check_permutation(order, "hidden.order")
        names = ours.hidden_head
        neurons = ours.files.entry(names[1]).shape if names else (0,)
        for name, part in (("order", order), ("scale", scale)):
            _check_shape(part, neurons, f"hidden.{name}")
        if not (scale > 0).all():
            raise ValueError("hidden.scale is not positive")
        hidden = order, scale
    if "unseen" in tensors:
        _check_shape(tensors["unseen"], (ours.D,), "unseen")
    return NetElement(tuple(blocks), bases, gauges, outside, hidden, tensors.get("unseen"))


def _gauge(tensors: Mapping[str, Tensor], ours: Checkpoint) -> Gauge | None:
    if not tensors:
        return None
    first, second = (
        (tensors[f"norm.{half}.scale"], tensors[f"norm.{half}.shift"]) for half in (0, 1)
    )
    for value in (*first, *second):
        if value.shape != (ours.D,):
            raise ValueError(f"a norm has shape {tuple(value.shape)}, not ({ours.D},)")
    ones = _under(tensors, "ones.")
    biases = {"K": tensors.get("key_bias"), "V": tensors.get("value_bias")}
    for name, given in (*ones.items(), *biases.items()):
        axes = [i.label for i in ours.spec.block.tensors[name] if i.label not in ("x", "z")]
        shape = tuple(ours.spec.size(label) for label in axes)
        if given is not None and tuple(given.shape) != shape:
            raise ValueError(f"the gauge of {name} has shape {tuple(given.shape)}, not {shape}")
    return Gauge(
        (first, second),
        ones,
        tensors.get("key_bias"),
        tensors.get("value_bias"),
    )


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _check_permutation(part: Tensor, name: str) -> None:
    if not (part.sort(dim=-1).values == torch.arange(part.shape[-1])).all():
        raise ValueError(f"{name} is not a permutation")


def _check_values(tensors: Mapping[str, Tensor]) -> None:
    """Numbers as `save_certificate` writes them: others would fail in the middle of the action."""
    for name, value in tensors.items():
        if name == "outside.untied":
            fits = value.dtype == torch.bool and value.numel() == 1
        elif value.dtype == torch.int64:  # permutations
            fits = name == "hidden.order" or name.startswith("block.")
        else:
            fits = value.dtype == torch.float64 and bool(value.isfinite().all())
        if not fits:
            raise ValueError(f"{name[:80]} is not of finite float64")


def _check_part(part: Tensor, kind: Kind, name: str) -> None:
    """A permutation, or something that has an inverse."""
    if kind is Kind.PERMUTED:
        _check_permutation(part, name)
        return
    if not part.is_floating_point():
        raise ValueError(f"{name} is not of float64")
    if kind is Kind.LINEAR:
        singular = bool(torch.linalg.inv_ex(part).info.any())
    elif kind is Kind.ROTARY:
        singular = bool((part.norm(dim=-1) == 0).any())
    else:
        singular = not bool((part > 0).all())
    if singular:
        raise ValueError(f"{name} has no inverse, or is not positive")


def _check_shape(given: Tensor, wanted: tuple[int, ...], name: str) -> None:
    if tuple(given.shape) != wanted:
        raise ValueError(f"{name} has shape {tuple(given.shape)}, not {wanted}")


def _others(ours: Checkpoint, name: str) -> tuple[int, ...]:
    """The sizes of all axes but the stream's of a writer, a head or the classifier."""
    if name in ours.writers:
        axis = ours.writers[name].axes.split().index("x")
        shape = ours.files.entry(name).shape
        return (*shape[:axis], *shape[axis + 1 :])
    if name in ours.heads:
        return ours.files.entry(ours.heads[name].weight).shape[:1]
    if ours.hidden_head and name == ours.hidden_head[0]:
        return ours.files.entry(name).shape[1:]
    raise ValueError(f"there is no {name[:80]!r} outside the blocks")
