"""AntiBERTy, as its package stores it: BERT with three classifiers of its own beside the words."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.encoders.bert import BERT, KEYS

_OWN = ("cls.chain", "cls.graft", "cls.species")

ANTIBERTY = replace(
    BERT,
    name="antiberty",
    keys={"bert": replace(KEYS, classes=None)},
    pooled=BERT.pooled | dict.fromkeys(_OWN, "pooler.dense"),
)
