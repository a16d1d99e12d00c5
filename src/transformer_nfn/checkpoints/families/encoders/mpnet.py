"""MPNet: RoBERTa without token types, with biases for the distance of tokens."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.encoders.roberta import KEYS as ROBERTA_KEYS
from transformer_nfn.checkpoints.families.encoders.roberta import ROBERTA
from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import linear
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, NormPlace

_TABLE = "encoder.relative_attention_bias.weight"


def _block(settings: Settings) -> Block:
    return plain_block(settings, NormPlace.AFTER_SUM, relative=True)


KEYS = replace(
    ROBERTA_KEYS,
    classes="MPNet",
    # Padding is the word 1 whatever the config says.
    matter=tuple(key for key in ROBERTA_KEYS.matter if key.name != "pad_token_id"),
    supported={"relative_attention_num_buckets": 32},
    sizes={
        **{key: of for key, of in ROBERTA_KEYS.sizes.items() if key != "type_vocab_size"},
        "relative_attention_num_buckets": (_TABLE, 0),
    },
    harmless=ROBERTA_KEYS.harmless | {"pad_token_id"},
)

MPNET = replace(
    ROBERTA,
    name="mpnet",
    keys={"mpnet": KEYS},
    prefixes=("mpnet.", ""),
    probes=("encoder.layer.0.attention.attn.q.weight", _TABLE),
    block_of=_block,
    matrices=(
        linear("attention.attn.q", "Q", "h k x"),
        linear("attention.attn.k", "K", "h k x"),
        linear("attention.attn.v", "V", "h v x"),
        linear("attention.attn.o", "O", "x h v", "bO"),
        linear("intermediate.dense", "A", "a x", "bA"),
        linear("output.dense", "B", "x a", "bB"),
    ),
    norms=("attention.LayerNorm", "output.LayerNorm"),
    embeddings=ROBERTA.embeddings[:2],
    shared={"relative": _TABLE},
)
