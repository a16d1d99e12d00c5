"""What the tensors' shapes do not say: settings of the function, in one form for all formats."""

from dataclasses import dataclass
from typing import Any, Literal

from transformer_nfn.space import Rope


@dataclass(frozen=True)
class Settings:
    """What the tensors' shapes do not say; from config.json or options, never guessed.

    Two configs that mean the same give equal settings, whatever their keys are called.

    Attributes:
        heads: Attention heads.
        groups: Key and value heads.
        activation: Of the MLP; one name for each function.
        eps: Of all norms.
        norm: LayerNorm or RMSNorm.
        causal: Whether a token sees only those before it.
        tied: Whether a head without a tensor is the embedding.
        rope: Rotary positions, if any.
        local_rope: Those of blocks with a window, where they are others.
        windows: For each block how many tokens back its attention reaches; empty if no block has
            a limit.
        turning: For each block whether rotary positions turn; empty if they do in all.
        depth: How often the one block of a file is run, where all depths share it.
        sizes: Further sizes that only the function needs (image, patch, tokens).
        flags: Further settings that change the function, where they are not the format's own; two
            files must agree in them.
    """

    heads: int
    groups: int
    activation: str
    eps: float
    norm: Literal["layer", "rms"]
    causal: bool
    tied: bool = False
    rope: Rope | None = None
    local_rope: Rope | None = None
    windows: tuple[int | None, ...] = ()
    turning: tuple[bool, ...] = ()
    depth: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    flags: tuple[tuple[str, Any], ...] = ()

    def size(self, name: str) -> int:
        """One of `sizes`."""
        return dict(self.sizes)[name]

    def flag(self, name: str, default: Any = None) -> Any:
        """One of `flags`; the default if there is none of this name."""
        return dict(self.flags).get(name, default)

    def window(self, block: int) -> int | None:
        """How many tokens back a block's attention reaches; None for all."""
        return self.windows[block] if self.windows else None
