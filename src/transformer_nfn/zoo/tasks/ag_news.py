"""AG News: which of four sections an article is from, read as a sequence of word vectors."""

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from transformer_nfn.zoo.tasks.errors import DataError
from transformer_nfn.zoo.tasks.files import HubFiles, find
from transformer_nfn.zoo.tasks.parquet import read_columns
from transformer_nfn.zoo.tasks.part import Part, Task, digest_of, permutation
from transformer_nfn.zoo.tasks.wordvectors import find_vectors, read_vectors, reduce

#: The seed of the choice of the validation articles; another seed is another task.
SEED = 20240919
VALIDATION = 2_000
#: World, Sports, Business, Sci/Tech: 1..4 in the CSV files, 0..3 here and on the hub.
CLASSES = 4

CSV = ("train.csv", "test.csv")
HUB = HubFiles(
    "fancyzhx/ag_news",
    ("data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"),
)

#: More articles than this are no AG News.
_MOST = 1_000_000
_WORD = re.compile(r"[a-z0-9']+")

_Articles = tuple[list[int], list[str]]
_Ids = tuple[Int64[Tensor, "m t"], Int64[Tensor, " m"]]


def ag_news_task(
    data: Path | None = None, *, vectors: Path | None = None, tokens: int = 32, width: int = 32
) -> Task:
    """AG News: 2,000 of the training articles to validate; the official 7,600 to test.

    A token is a word of title and description. Its vector has `width` principal coordinates of
    the word vectors, mean and axes taken over the distinct words that the training part shows;
    an unknown word is zero, as is the padding. An article without words is one unknown word.

    Args:
        data: The data folder, with the CSV files in ``ag_news/``; see `find`.
        vectors: The word vectors; None for the only ``.bin`` file in ``embeddings/`` of the data
            folder.
        tokens: How many words of an article are read.
        width: How many coordinates a word has.

    Raises:
        DataError: If files are missing or damaged.
    """
    if tokens < 1:
        raise DataError(f"tokens is 1 or more, got {tokens}")
    vectors = vectors or find_vectors(data)  # first: without them a download would be in vain
    files = find(data, "ag_news", CSV, HUB)
    names, read = (HUB.names, _from_parquet) if HUB.names[0] in files else (CSV, _from_csv)
    train, test = (read(files[name]) for name in names)
    if len(train[0]) <= VALIDATION:
        raise DataError(
            f"{files[names[0]]} has {len(train[0])} articles, expected more than the "
            f"{VALIDATION} for validation"
        )
    rows, table = read_vectors(vectors)
    ids, lengths = _look_up(train[1], rows, tokens)
    labels = torch.tensor(train[0])
    order = permutation(len(labels), SEED)
    chosen, rest = order[:VALIDATION], order[VALIDATION:]

    used = torch.unique(ids[rest])
    known = used[used < len(rows)]
    coordinates = reduce(table, known, width)
    coordinates = torch.cat([coordinates, coordinates.new_zeros(1, width)])
    test_ids, test_labels = _look_up(test[1], rows, tokens), torch.tensor(test[0])
    # Of words and their vectors: principal axes differ in the last digit from machine to machine.
    seen = (ids, lengths, labels, *test_ids, test_labels, table[known])
    return Task(
        "ag_news",
        CLASSES,
        train=_part(coordinates, (ids[rest], lengths[rest]), labels[rest]),
        validation=_part(coordinates, (ids[chosen], lengths[chosen]), labels[chosen]),
        test=_part(coordinates, test_ids, test_labels),
        patch=None,
        digest=digest_of((*seen, torch.tensor(width))),
        about=f"AG News (Zhang, Zhao and LeCun 2015, for research only): {len(train[0]):,} of its "
        f"120,000 training articles and {len(test[0]):,} of its 7,600 test articles; words are "
        f"{table.shape[1]}-dimensional vectors of {vectors.name} in {width} principal coordinates",
    )


def _part(coordinates: Float32[Tensor, "words p"], ids: _Ids, labels: Int64[Tensor, " m"]) -> Part:
    tokens, lengths = ids
    return Part(torch.embedding(coordinates, tokens), labels, lengths)


def _look_up(texts: Sequence[str], rows: Mapping[str, int], tokens: int) -> _Ids:
    """The row of each word; for unknown words and padding the row behind the last."""
    unknown, ids, lengths = len(rows), [], []
    for text in texts:
        words = _WORD.findall(text.lower())[:tokens]
        lengths.append(max(1, len(words)))
        ids += [rows.get(word, unknown) for word in words]
        ids += [unknown] * (tokens - len(words))
    return torch.tensor(ids).reshape(-1, tokens), torch.tensor(lengths)


def _from_csv(path: Path) -> _Articles:
    labels, texts = [], []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            for row in reader:
                if len(row) != 3 or row[0] not in {"1", "2", "3", "4"}:
                    raise DataError(
                        f"{path}, line {reader.line_num}: expected class 1..{CLASSES}, title, "
                        f"description, got {len(row)} columns, the first {''.join(row[:1])[:20]!r}"
                    )
                labels.append(int(row[0]) - 1)
                texts.append(f"{row[1]} {row[2]}")
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, after line {reader.line_num}: no CSV: {error}") from error
    if not labels:
        raise DataError(f"{path} is empty")
    return labels, texts


def _from_parquet(path: Path) -> _Articles:
    columns = read_columns(path, {"text": pa.string(), "label": pa.int64()}, _MOST)
    wrong = [label for label in columns["label"] if not 0 <= label < CLASSES]
    if wrong:
        raise DataError(f"{path} has a label {wrong[0]}, expected 0..{CLASSES - 1}")
    return columns["label"], columns["text"]
