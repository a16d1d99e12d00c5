"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT with other positions, and words from another head."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.encoders.bert import BERT
from transformer_nfn.checkpoints.families.encoders.bert import KEYS as BERT_KEYS
from transformer_nfn.checkpoints.family import Reader, WordPredictor
from transformer_nfn.checkpoints.settings.keys import Key
from transformer_nfn.space import Positions, TokenTypes, Words

_WORDS = "embeddings.word_embeddings.weight"

KEYS = replace(
    BERT_KEYS,
    # Positions are counted from the one after the padding token's number.
    matter=(*BERT_KEYS.matter, Key("pad_token_id", "flags", int, 1, least=0)),
    classes="Roberta",
    harmless=BERT_KEYS.harmless - {"pad_token_id"} | {"output_past", "adapters"},
)

PREDICTOR = WordPredictor(
    reads="lm_head.dense",
    norm="lm_head.layer_norm",
    decoder="lm_head.decoder",
    tied=_WORDS,
    bias="lm_head.bias",
    activation="gelu",
)

ROBERTA = replace(
    BERT,
    name="roberta",
    keys={
        "roberta": KEYS,
        "xlm-roberta": replace(KEYS, classes="XLMRoberta"),
        "camembert": replace(KEYS, classes="Camembert"),
    },
    prefixes=("roberta.", ""),
    embeddings=(
        Words(_WORDS),
        Positions("embeddings.position_embeddings.weight", padding=1),
        TokenTypes("embeddings.token_type_embeddings.weight"),
    ),
    readers=(
        Reader("pooler.dense", token=0),
        Reader(PREDICTOR.reads, own=True),
        Reader("classifier.dense", own=True, token=0),
        Reader("qa_outputs", own=True),
        Reader("classifier", own=True),
    ),
    predictor=PREDICTOR,
    labels=("classifier", "out_proj"),
    poolers={"pooler.dense": "tanh", "classifier.dense": "tanh"},
    pooled={"classifier": "pooler.dense", "classifier.out_proj": "classifier.dense"},
)
