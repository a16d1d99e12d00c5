import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.zoo.tasks.samples import (
    ARTICLES,
    WORDS,
    real_data,
    write_ag_news,
    write_csv,
    write_parquet,
    write_vectors,
)
from transformer_nfn.zoo.tasks import DataError, Part, load_task

pytest.importorskip("gensim")
from transformer_nfn.zoo.tasks import ag_news as module
from transformer_nfn.zoo.tasks.ag_news import ag_news_task
from transformer_nfn.zoo.tasks.part import permutation
from transformer_nfn.zoo.tasks.wordvectors import find_vectors, read_vectors, reduce


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two articles are enough for validation."""
    monkeypatch.setattr(module, "VALIDATION", 2)


def tokens(article: tuple[int, str, str], count: int) -> list[str]:
    return re.findall(r"[a-z0-9']+", f"{article[1]} {article[2]}".lower())[:count]


def check(part: Part, articles: list[tuple[int, str, str]], coordinates: Tensor) -> None:
    assert part.lengths is not None
    for row, article in enumerate(articles):
        words = tokens(article, part.inputs.shape[1])
        assert part.labels[row] == article[0] - 1
        assert part.lengths[row] == max(1, len(words))
        for place, token in enumerate(part.inputs[row]):
            word = words[place] if place < len(words) else ""
            known = coordinates[WORDS.index(word)] if word in WORDS else torch.zeros(3)
            assert torch.equal(token, known)


@pytest.mark.usefixtures("few")
def test_small_files_of_the_same_layout(tmp_path: Path) -> None:
    vectors = write_ag_news(tmp_path)
    task = ag_news_task(tmp_path, tokens=6, width=3)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [5, 2, 4]
    assert (task.name, task.classes, task.patch) == ("ag_news", 4, None)
    assert (task.tokens, task.width) == (6, 3)

    dealt = [ARTICLES[i] for i in permutation(len(ARTICLES), module.SEED)]
    shown = {word for article in dealt[2:] for word in tokens(article, 6)}
    used = torch.tensor([row for row, word in enumerate(WORDS) if word in shown])
    assert 3 < len(used) < len(WORDS)
    coordinates = reduce(vectors, used, 3)
    check(task.validation, dealt[:2], coordinates)
    check(task.train, dealt[2:], coordinates)
    check(task.test, ARTICLES[:4], coordinates)


@pytest.mark.usefixtures("few")
def test_the_hub_has_the_same_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.delenv("TNFN_DATA", raising=False)
    asked = []

    def download(repo_id: str, filename: str, *, repo_type: str) -> str:
        asked.append((repo_id, filename, repo_type))
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    for name, articles in zip(module.HUB.names, (ARTICLES, ARTICLES[:4]), strict=True):
        texts = [f"{title} {text}" for _, title, text in articles]
        labels = [label - 1 for label, _, _ in articles]
        write_parquet(tmp_path / name, text=texts, label=labels)
    write_ag_news(tmp_path)
    here = ag_news_task(tmp_path, tokens=6, width=3)
    there = ag_news_task(vectors=find_vectors(tmp_path), tokens=6, width=3)
    for part in ("train", "validation", "test"):
        for field in ("inputs", "labels", "lengths"):
            assert torch.equal(
                getattr(getattr(here, part), field), getattr(getattr(there, part), field)
            )
    assert asked == [("fancyzhx/ag_news", name, "dataset") for name in module.HUB.names]

    asked.clear()
    with pytest.raises(DataError, match=r"looked for embeddings/\*\.bin"):
        load_task("ag_news")
    assert not asked  # nothing is downloaded in vain

    write_parquet(tmp_path / module.HUB.names[1], text=["war"], label=[4])
    with pytest.raises(DataError, match=r"has a label 4, expected 0\.\.3"):
        ag_news_task(vectors=find_vectors(tmp_path), width=3)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'"5","title","text"', r"test\.csv, line 3: expected class 1\.\.4, .* the first '5'"),
        (b'"0","title","text"', "line 3: .* the first '0'"),
        (b'"class","title","text"', "line 3: .* the first 'class'"),
        (b'"1","title"', "line 3: .* got 2 columns"),
        (b'"1","title","text","more"', "line 3: .* got 4 columns"),
        (b"", "line 3: .* got 0 columns"),
        (b'"1","ti"tle","text"', "no CSV"),
        (b'"1","title","text', "no CSV"),
        (b'"1","title","\xff"', "no CSV"),
        (b'"1","title","' + b"a" * 200_000 + b'"', "no CSV: field larger"),
    ],
)
def test_other_lines_are_refused(tmp_path: Path, line: bytes, message: str) -> None:
    write_ag_news(tmp_path)
    path = tmp_path / "ag_news" / "test.csv"
    path.write_bytes(b'"1","a title","of two\nlines"\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        ag_news_task(tmp_path, width=3)


@pytest.mark.usefixtures("few")
def test_missing_and_empty_files_are_told(tmp_path: Path) -> None:
    write_vectors(tmp_path / "embeddings" / "v.bin")
    with pytest.raises(DataError, match=r"no file train\.csv in .*ag_news: .*TNFN_DATA or --data"):
        load_task("ag_news", data=tmp_path)
    write_csv(tmp_path / "ag_news" / "train.csv", ARTICLES)
    write_csv(tmp_path / "ag_news" / "test.csv", [])
    with pytest.raises(DataError, match=r"test\.csv is empty"):
        load_task("ag_news", data=tmp_path)
    write_csv(tmp_path / "ag_news" / "test.csv", ARTICLES[:1])
    write_csv(tmp_path / "ag_news" / "train.csv", ARTICLES[:2])
    with pytest.raises(DataError, match="has 2 articles, expected more than the 2"):
        load_task("ag_news", data=tmp_path)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="tokens is 1 or more, got 0"):
        ag_news_task(tmp_path, tokens=0)
    with pytest.raises(DataError, match="has no patches, got patch 2"):
        load_task("ag_news", patch=2)


@real_data
def test_the_real_files() -> None:
    task = load_task("ag_news")
    parts = (task.train, task.validation, task.test)
    assert (task.tokens, task.width, len(task.validation)) == (32, 32, 2_000)
    assert task.test.labels.bincount().tolist() == [1_900] * 4
    for part in parts:
        share = part.labels.bincount() / len(part)
        assert (share - 0.25).abs().max() < 0.03
        assert part.lengths is not None
        padding = torch.arange(32) >= part.lengths[:, None]
        assert padding.any()
        assert not part.inputs[padding].any()
        assert 1 <= part.lengths.min() <= part.lengths.max() == 32
        # Of the words, nearly all are known.
        assert part.inputs[~padding].any(-1).float().mean() > 0.95
    # No article is in both; a few are reprints that begin with the same 32 words.
    _, texts = module._from_csv(module.find(None, "ag_news", module.CSV, None)["train.csv"])
    assert len(set(texts)) == len(texts) == len(task.train) + len(task.validation)
    assert len(set(_rows(task.train)) & set(_rows(task.validation))) < len(task.validation) / 200

    again = load_task("ag_news")
    for part, other in zip(parts, (again.train, again.validation, again.test), strict=True):
        assert torch.equal(part.inputs, other.inputs)
        assert torch.equal(part.labels, other.labels)


def _rows(part: Part) -> list[bytes]:
    return [row.numpy().tobytes() for row in part.inputs]


@real_data
def test_a_real_word_has_its_principal_coordinates() -> None:
    """The first word of the official test set is "fears"; computed here by another way."""
    task = load_task("ag_news")
    files = module.find(None, "ag_news", module.CSV, None)
    labels, texts = module._from_csv(files["train.csv"])
    shown = {
        word
        for i in permutation(len(labels), module.SEED)[module.VALIDATION :].tolist()
        for word in re.findall(r"[a-z0-9']+", texts[i].lower())[:32]
    }
    rows, vectors = read_vectors(find_vectors(None))
    chosen = vectors[[row for word, row in rows.items() if word in shown]].double()
    _, values, axes = torch.linalg.svd(chosen - chosen.mean(0), full_matrices=False)
    axes = axes[:32]
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    scale = (values[:32] ** 2 / len(chosen)).mean().sqrt()
    fears = (vectors[rows["fears"]].double() - chosen.mean(0)) @ axes.T / scale
    assert module._from_csv(files["test.csv"])[1][0].startswith("Fears for T N pension")
    torch.testing.assert_close(task.test.inputs[0, 0].double(), fears, rtol=1e-5, atol=1e-6)
