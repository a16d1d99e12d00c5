"""ELECTRA: BERT that tells replaced words, or fills them in."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.encoders.bert import BERT, KEYS
from transformer_nfn.checkpoints.family import Reader, WordPredictor

_TOLD = "discriminator_predictions.dense"

_KEYS = replace(
    KEYS,
    classes="Electra",
    refused=("ForMultipleChoice",),
    # Where words have another size than the stream, a projection stands between the two.
    sizes={**KEYS.sizes, "embedding_size": "D"},
    harmless=KEYS.harmless
    | {"summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj"},
)

PREDICTOR = WordPredictor(
    reads="generator_predictions.dense",
    norm="generator_predictions.LayerNorm",
    decoder="generator_lm_head",
    tied="embeddings.word_embeddings.weight",
    bias="generator_lm_head.bias",
    activation="gelu",
)

ELECTRA = replace(
    BERT,
    name="electra",
    keys={"electra": _KEYS},
    prefixes=("electra.", ""),
    readers=(
        Reader(PREDICTOR.reads, own=True),
        Reader(_TOLD, own=True),
        Reader("classifier.dense", own=True, token=0),
        Reader("qa_outputs", own=True),
        Reader("classifier", own=True),
    ),
    predictor=PREDICTOR,
    labels=("classifier", "out_proj"),
    poolers={"classifier.dense": "gelu", _TOLD: None},
    pooled={
        "classifier.out_proj": "classifier.dense",
        "discriminator_predictions.dense_prediction": _TOLD,
    },
    # A summary of the stream that chooses among several texts, which is none of our readers.
    refused=("sequence_summary.",),
)
