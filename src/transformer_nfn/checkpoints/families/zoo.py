"""Nets of a zoo as `tnfn zoo export` writes them: the paper's blocks, or residual ones.

The paper's have ReLU, the residual ones GELU; the classifier behind both has ReLU.
"""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families.residual import declared
from transformer_nfn.checkpoints.family import Family, Matrix, Settings, Writer, setting

#: What a zoo's nets have instead of a name for it: every one of them has these.
_EPS = 1e-5


def _settings(config: Mapping[str, Any]) -> Settings:
    heads = setting(config, "heads", int)
    block = setting(config, "block", str)
    if block not in ("paper", "residual"):
        raise CheckpointError(f"a zoo's block is 'paper' or 'residual', not {block!r:.40}")
    return Settings(
        heads=heads,
        groups=heads,
        activation="relu" if block == "paper" else "gelu",
        eps=_EPS,
        norm="layer",
        causal=False,
        sizes=(("tokens", setting(config, "tokens", int)),),
    )


def _matrix(name: str, axes: str, bias: str | None = None) -> Matrix:
    return Matrix(name, (name,), axes, bias, bias)


def _family(name: str, probe: str, matrices: tuple[Matrix, ...], skip: bool) -> Family:
    return Family(
        name=name,
        model_types=(name,),
        prefixes=("",),
        probe=probe,
        block="blocks.{}.",
        declared=declared,
        matrices=matrices,
        norms=None,
        settings=_settings,
        skip=skip,
        writers=(Writer("embedding.weight", "t x"), Writer("embedding.bias", "x")),
        output_bias=skip,
    )


ZOO_RESIDUAL = _family(
    "zoo-residual",
    "blocks.0.bO",
    (
        _matrix("Q", "h z k"),
        _matrix("K", "h z k"),
        _matrix("V", "h z v"),
        _matrix("O", "h v x", "bO"),
        _matrix("A", "x a", "bA"),
        _matrix("B", "a x", "bB"),
    ),
    skip=True,
)
ZOO_PAPER = _family(
    "zoo-paper",
    "blocks.0.Q",
    (
        _matrix("Q", "h x k"),
        _matrix("K", "h x k"),
        _matrix("V", "h x v"),
        _matrix("O", "h v x"),
        _matrix("A", "x a", "bA"),
        _matrix("B", "a x", "bB"),
    ),
    skip=False,
)
