"""What a family of checkpoints is: tables of the names on disk and what each tensor does.

A family is data. `Matrix` says where the tensors of a block are, `Writer` what else writes into the
residual stream, `Reader` what else reads from it; all other tensors do not touch the stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.space import Block


@dataclass(frozen=True)
class Matrix:
    """One tensor of a block on disk, and its bias.

    Attributes:
        weight: Its name after the block's.
        tensors: The declared tensors in it; three for GPT-2's fused c_attn.
        axes: Its axes on disk, in order, one letter each as declared; `f` runs over `tensors`.
            A Linear is [out, in], ``"h k x"`` for queries; GPT-2's Conv1D is [in, out].
        bias: The bias' name on disk; it may be absent.
        bias_tensor: The declared tensor the bias is. None: the last input row of `tensors`.
    """

    weight: str
    tensors: tuple[str, ...]
    axes: str
    bias: str | None = None
    bias_tensor: str | None = None


def linear(name: str, tensors: str, axes: str, bias_tensor: str | None = None) -> Matrix:
    """A layer with the usual `.weight` and `.bias`."""
    return Matrix(f"{name}.weight", tuple(tensors.split()), axes, f"{name}.bias", bias_tensor)


@dataclass(frozen=True)
class Writer:
    """A tensor outside the blocks whose axis `x` is the residual stream it writes into."""

    name: str
    axes: str


@dataclass(frozen=True)
class Reader:
    """A layer outside the blocks that reads the stream after the last norm: Linear, [out, in].

    Attributes:
        name: Its weight is `name.weight`, its bias, if there is one, `name.bias`.
        own: The name stands without the family's prefix, as heads do.
        tied: The embedding it shares its weight with where the file has none of its own.
    """

    name: str
    own: bool = False
    tied: str | None = None


@dataclass(frozen=True)
class Rope:
    """Rotary positions: base, and how long contexts change its frequencies."""

    theta: float
    kind: str = "default"
    options: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Settings:
    """What the tensors' shapes do not say; from config.json or options, never guessed.

    Attributes:
        heads: Attention heads.
        groups: Key and value heads.
        activation: Of the MLP.
        eps: Of all norms.
        norm: LayerNorm or RMSNorm.
        causal: Whether a token sees only those before it.
        tied: Whether a head without a tensor is the embedding.
        rope: Rotary positions, if any.
        sizes: Further sizes that only the function needs (image, patch, tokens).
        flags: Further settings that change the function; two files must agree in them.
    """

    heads: int
    groups: int
    activation: str
    eps: float
    norm: Literal["layer", "rms"]
    causal: bool
    tied: bool = False
    rope: Rope | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    flags: tuple[tuple[str, Any], ...] = ()

    def size(self, name: str) -> int:
        """One of `sizes`."""
        return dict(self.sizes)[name]


@dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Attributes:
        name: What it is called.
        model_types: What config.json calls it.
        prefixes: What may stand before all names but those of heads.
        probe: A name, after a prefix, that only this family has.
        block: The name of block i, ``"h.{}."``.
        declared: The block's declaration for a given activation.
        matrices: The tensors of a block.
        norms: The norms of a block: before (or, post-norm, after) attention and MLP.
        first_norm: The norm of the embeddings, post-norm only.
        last_norm: The norm before the readers, pre-norm only.
        post_norm: Norms stand after the sum with the residual stream.
        skip: There are skip connections; not in the paper's nets.
        writers: Everything else that writes into the stream.
        readers: Everything else that reads from it.
        ignored: Endings of names that are no weights.
        output_bias: The attention has an output bias, or a place for one.
        settings: Reads config.json.
        head: Whether the file has an output of its own, or gives its hidden states.
    """

    name: str
    model_types: tuple[str, ...]
    prefixes: tuple[str, ...]
    probe: str
    block: str
    declared: Callable[[str], Block]
    matrices: tuple[Matrix, ...]
    norms: tuple[str, str] | None
    settings: Callable[[Mapping[str, Any]], Settings]
    first_norm: str | None = None
    last_norm: str | None = None
    post_norm: bool = False
    skip: bool = True
    writers: tuple[Writer, ...] = ()
    readers: tuple[Reader, ...] = ()
    ignored: tuple[str, ...] = field(default=())
    output_bias: bool = True


_MISSING = object()


def setting(config: Mapping[str, Any], name: str, kind: type, default: Any = _MISSING) -> Any:
    """A value of config.json, checked.

    Args:
        config: What was read.
        name: The key.
        kind: int, float, str or bool.
        default: What the format says where the key is absent; without one it is required.
    """
    value = config.get(name, _MISSING)
    if value is _MISSING and default is not _MISSING:
        return default
    if value is _MISSING:
        raise CheckpointError(
            f"{name} is not known: it stands in no tensor; give the folder's config.json with "
            f"--config, or --set {name}=…"
        )
    if kind is float and type(value) is int:
        value = as_float(value, name)
    # bool is an int to isinstance; here it is not.
    fits = type(value) is kind and (not isinstance(value, int) or 0 <= value < 2**31)
    if not fits or (kind is int and not value):
        raise CheckpointError(f"{name} in the config should be {kind.__name__}, not {value!r:.60}")
    return value


def as_float(value: int | float, name: str) -> float:
    """A number of the config as a float; there are integers that are larger than any."""
    try:
        return float(value)
    except OverflowError:
        raise CheckpointError(f"{name} in the config is too large for a float") from None


def refuse(config: Mapping[str, Any], **expected: Any) -> None:
    """Stop at settings that make another function of the same tensors than the one we know."""
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise CheckpointError(
                f"config.json has {name}={config[name]!r:.60}; only {value!r} is supported"
            )
