"""The symmetry group of each family, as data: its parts, where they hold, how large they are."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import prod

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.elements.canonical import Rules
from transformer_nfn.space import Kind, StreamKind


@dataclass(frozen=True)
class Part:
    """One kind of symmetry.

    Attributes:
        name: What `--parts` calls it.
        what: What it does, in a line.
        dimension: Of its continuous part in a checkpoint; None where it does not hold there.
    """

    name: str
    what: str
    dimension: Callable[[Checkpoint], int | None]


def _groups(checkpoint: Checkpoint) -> int:
    return checkpoint.settings.groups


def _heads(checkpoint: Checkpoint) -> int | None:
    axes = checkpoint.spec.block.axes
    movable = any(axes[label].kind is Kind.PERMUTED for label in "hgmo" if label in axes)
    return 0 if movable else None


def _qk(checkpoint: Checkpoint) -> int:
    spec, axes = checkpoint.spec, checkpoint.spec.block.axes
    width, kind = spec.sizes["D_k"], axes["k"].kind
    if kind is Kind.SIGNED:  # the scales between the norms of queries and keys
        return checkpoint.blocks * prod(spec.size(label) for label in axes["i"].per)
    each = width * width if kind is Kind.LINEAR else width
    return checkpoint.blocks * len(spec.block.attentions) * _groups(checkpoint) * each


def _vo(checkpoint: Checkpoint) -> int:
    matrices = checkpoint.blocks * len(checkpoint.spec.block.attentions) * _groups(checkpoint)
    return matrices * checkpoint.spec.sizes["D_v"] ** 2


def _scales(checkpoint: Checkpoint) -> int | None:
    scaled = "s" in checkpoint.spec.block.axes
    if not scaled and not checkpoint.hidden_head:
        return None
    sizes = checkpoint.spec.sizes
    inside = scaled * checkpoint.blocks * sizes["D_A"] * sizes.get("experts", 1)
    return inside + checkpoint.hidden_neurons


def _router(checkpoint: Checkpoint) -> int | None:
    return checkpoint.blocks * checkpoint.D * len(checkpoint.spec.block.shifted) or None


def _experts(checkpoint: Checkpoint) -> int | None:
    return 0 if "u" in checkpoint.spec.block.axes else None


def _key_bias(checkpoint: Checkpoint) -> int | None:
    return _free_biases(checkpoint, Rules.of(checkpoint).keys, "D_k")


def _value_bias(checkpoint: Checkpoint) -> int | None:
    return _free_biases(checkpoint, Rules.of(checkpoint).values, "D_v")


def _free_biases(checkpoint: Checkpoint, names: Collection[str], size: str) -> int | None:
    stored = sum(checkpoint.has_bias(name) for name in names)
    return stored * checkpoint.blocks * _groups(checkpoint) * checkpoint.spec.sizes[size] or None


def shifts_are_free(checkpoint: Checkpoint) -> bool:
    """Whether all that reads a norm in the blocks has a bias that can take its shift."""
    names = [norm for norm in checkpoint.reading_norms(0) if norm is not None]
    shifts = all(f"{norm}.bias" in checkpoint.files for norm in names)
    return checkpoint.settings.norm == "layer" and shifts and checkpoint.has_bias("Q")


def _norms(checkpoint: Checkpoint) -> int | None:
    if checkpoint.post_norm:
        return None
    # Halves side by side may read one norm.
    names = {name for i in range(checkpoint.blocks) for name in checkpoint.reading_norms(i)}
    free = [name for name in names if name and not checkpoint.gives_stream(name)]
    inside = len(free) * checkpoint.D * (1 + shifts_are_free(checkpoint))
    if last_norm_is_free(checkpoint):
        inside += checkpoint.D * (1 + last_shift_is_free(checkpoint))
    return inside or None


def last_norm_is_free(checkpoint: Checkpoint) -> bool:
    """Whether the scale of the last norm can move into the heads that read it."""
    if checkpoint.last_norm is None or checkpoint.gives_hidden_states:
        return False
    tied = any(head.tied for head in checkpoint.heads.values())
    return bool(checkpoint.heads) and not tied


def last_shift_is_free(checkpoint: Checkpoint) -> bool:
    """Whether all heads have a bias that can take the shift of the last norm."""
    shift = f"{checkpoint.last_norm}.bias" in checkpoint.files
    layer = checkpoint.settings.norm == "layer" and shift
    return layer and all(head.bias for head in checkpoint.heads.values())


def _ones(checkpoint: Checkpoint) -> int | None:
    if checkpoint.settings.norm != "layer":
        return None
    spec, names = checkpoint.spec, checkpoint.spec.block.tensors
    widths = {"x": checkpoint.D, "z": checkpoint.D + 1}
    total = 0
    block, raw = spec.block, not checkpoint.centred_reads
    for name in names:
        if name in block.readers and raw:
            continue
        if name in block.writers and not checkpoint.centred_writes:
            continue
        if name not in (*block.readers, *block.writers):
            continue
        axes = [index.label for index in names[name] if index.label not in widths]
        total += prod(spec.size(label) for label in axes)
    if not checkpoint.family.output_bias:
        total -= 1  # no bO
    writers = sum(
        prod(checkpoint.files.entry(name).shape) // checkpoint.D
        for name in free_writers(checkpoint)
    )
    heads = sum(checkpoint.files.entry(h).shape[0] for h in free_heads(checkpoint))
    return checkpoint.blocks * total + writers + heads + checkpoint.hidden_neurons


def free_writers(checkpoint: Checkpoint) -> list[str]:
    """Writers outside the blocks that may change along the ones: all that are no head as well."""
    if not checkpoint.centred_reads:
        return []
    shared = {head.weight for head in checkpoint.heads.values() if head.tied}
    shared |= set(checkpoint.tied_decoder.values())
    return [name for name in checkpoint.writers if name not in shared]


def free_heads(checkpoint: Checkpoint) -> list[str]:
    """Weights of heads that may change along the ones, by a bias that takes the constant."""
    return [head.weight for head in checkpoint.heads.values() if head.bias and not head.tied]


def basis_streams(checkpoint: Checkpoint) -> list[int]:
    """Streams whose basis may change; fixed sine positions hold theirs."""
    if checkpoint.stream_kind is StreamKind.FIXED:
        return []
    if not checkpoint.family.fixed_positions:
        return [0]
    if checkpoint.skip:
        return []
    return list(range(1, 2 * checkpoint.blocks + 1))


def _basis(checkpoint: Checkpoint) -> int | None:
    found = basis_streams(checkpoint)
    if not found:
        return None
    if checkpoint.stream_kind is not StreamKind.ORTHOGONAL:
        return 0
    size = checkpoint.D - (checkpoint.settings.norm == "layer")
    return len(found) * size * (size - 1) // 2


#: What the parts are, in the order in which they are listed.
_PARTS = (
    Part("heads", "order of heads; under grouping of groups, and of heads inside them", _heads),
    Part(
        "qk",
        "queries against keys: GL for each head; under RoPE a complex number a pair; with norms "
        "of both a sign a pair, and a number a pair between the norms",
        _qk,
    ),
    Part("vo", "values against the output: GL for each head", _vo),
    Part("neurons", "order of hidden neurons", lambda _: 0),
    Part("experts", "order of experts, and of the router's columns", _experts),
    Part("router", "what all columns of a router share, which its softmax ignores", _router),
    Part("scales", "scale of a neuron: positive at ReLU, nonzero in a linear branch", _scales),
    Part("key_bias", "the key bias, which softmax ignores", _key_bias),
    Part("value_bias", "the value bias, against the output bias", _value_bias),
    Part("norms", "scale and shift of a norm, against what reads it", _norms),
    Part("ones", "what LayerNorm takes away: readers and writers along the ones", _ones),
    Part("basis", "basis of the stream: orthogonal; permutations and signs after norms", _basis),
)
PARTS = {part.name: part for part in _PARTS}


def symmetry_parts(checkpoint: Checkpoint) -> dict[str, int]:
    """The parts that hold for a checkpoint, each with its dimension."""
    found = {name: part.dimension(checkpoint) for name, part in PARTS.items()}
    return {name: dimension for name, dimension in found.items() if dimension is not None}
