"""Nets of a zoo as `tnfn zoo export` writes them: the paper's blocks, or residual ones.

The paper's have ReLU, the residual ones GELU; the classifier behind both has ReLU.
"""

from transformer_nfn.checkpoints.families.residual import block_without_skips, plain_block
from transformer_nfn.checkpoints.family import Family, Matrix
from transformer_nfn.checkpoints.settings.keys import Key, Keys
from transformer_nfn.space import FixedPositions, Projection

#: What a zoo's nets have instead of a name for it: every one of them has these.
_EPS = 1e-5


def _keys(block: str, activation: str) -> Keys:
    """A net says what it is in its own metadata."""
    return Keys(
        fixed={
            "norm": "layer",
            "causal": False,
            "eps": _EPS,
            "activation": activation,
            "groups": None,
        },
        matter=(Key("heads", "heads", int), Key("tokens", "sizes.tokens", int)),
        supported={"block": block},
        sizes={
            "D": "D",
            "D_A": "D_A",
            "blocks": "blocks",
            "hidden": ("classifier.bias1", 0),
            "classes": ("classifier.bias2", 0),
            "inputs": ("embedding.weight", 0),
        },
    )


def _matrix(name: str, axes: str, bias: str | None = None) -> Matrix:
    return Matrix(name, (name,), axes, bias, bias)


def _family(name: str, probe: str, matrices: tuple[Matrix, ...], keys: Keys, skip: bool) -> Family:
    return Family(
        name=name,
        keys={name: keys},
        prefixes=("",),
        probes=(probe,),
        block="blocks.{}.",
        block_of=plain_block if skip else block_without_skips,
        matrices=matrices,
        norms=None,
        embeddings=(Projection("embedding.weight", "embedding.bias"), FixedPositions()),
        output_bias=skip,
        hidden_head=(
            "classifier.weight1",
            "classifier.bias1",
            "classifier.weight2",
            "classifier.bias2",
        ),
        in_metadata="net",
        split_axes=True,
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
    _keys("residual", "gelu"),
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
    _keys("paper", "relu"),
    skip=False,
)
