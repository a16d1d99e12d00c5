from pathlib import Path

import pytest
import torch

from tests.strategies import generator
from tests.zoo.tasks.samples import WORDS, write_vectors
from transformer_nfn.zoo.tasks import DataError

pytest.importorskip("gensim")
from transformer_nfn.zoo.tasks.wordvectors import find_vectors, read_vectors, reduce

VECTORS = torch.randn(40, 7, generator=generator(0)) * torch.arange(1.0, 8)
USED = torch.arange(3, 33)


def test_coordinates_are_principal() -> None:
    used = reduce(VECTORS, USED, 4)[USED].double()
    torch.testing.assert_close(used.mean(0), torch.zeros(4).double(), atol=1e-6, rtol=0)
    covariance = used.T @ used / len(USED)
    variances = covariance.diagonal()
    torch.testing.assert_close(covariance, variances.diag(), atol=1e-6, rtol=0)
    assert variances.tolist() == sorted(variances.tolist(), reverse=True)
    torch.testing.assert_close(variances.mean(), torch.tensor(1.0).double(), rtol=1e-6, atol=0)


def test_all_coordinates_keep_all_distances() -> None:
    reduced = reduce(VECTORS, USED, 7)
    ratio = torch.pdist(reduced) / torch.pdist(VECTORS)
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio))


def test_a_sign_is_not_an_accident() -> None:
    """The axes are those of numpy's singular vectors, up to the sign."""
    chosen = (VECTORS[USED] - VECTORS[USED].mean(0)).double()
    _, values, axes = torch.linalg.svd(chosen)
    axes = axes[:4] * torch.stack([axis[axis.abs().argmax()].sign() for axis in axes[:4]])[:, None]
    scale = (values[:4] ** 2 / len(USED)).mean().sqrt()
    wanted = ((VECTORS - VECTORS[USED].mean(0)).double() @ axes.T / scale).float()
    torch.testing.assert_close(reduce(VECTORS, USED, 4), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("used", "width"), [(30, 8), (30, 0), (4, 4), (0, 1)])
def test_no_more_coordinates_than_there_are(used: int, width: int) -> None:
    with pytest.raises(DataError, match=f"{used} words .* width 7 cannot be reduced to .* {width}"):
        reduce(VECTORS, USED[:used], width)


def test_vectors_in_a_subspace_are_refused() -> None:
    flat = VECTORS.clone()
    flat[:, 5:] = 0
    assert reduce(flat, USED, 5).shape == (40, 5)
    with pytest.raises(DataError, match="span fewer than 6 axes"):
        reduce(flat, USED, 6)


def test_vectors_are_read(tmp_path: Path) -> None:
    written = write_vectors(tmp_path / "v.bin")
    rows, vectors = read_vectors(tmp_path / "v.bin")
    assert list(rows) == list(WORDS)
    assert torch.equal(vectors, written)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "first line is not 'words width'"),
        (b"\x80\x04\x95 pickle", "first line is not 'words width'"),
        (b"8 -5\n", "first line is not"),
        (b"0 5\n", "do not fit"),
        (b"4000000000 300\n" + bytes(200), "4000000000 vectors of width 300 .* fit in 215 bytes"),
        (b"2 1\nword " + bytes(10), "word2vec binary file, as gensim's"),
        (b"1 1\n\xff\xff " + bytes(4), "word2vec binary file, as gensim's"),
        (b"1 1\nword \x00\x00\xc0\x7f", "not finite"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "v.bin").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / "v.bin")


def test_there_is_exactly_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"exactly one \.bin file, .*save_word2vec.* it has \[\]"):
        find_vectors(tmp_path)
    write_vectors(tmp_path / "embeddings" / "a.bin")
    monkeypatch.setenv("TNFN_DATA", str(tmp_path))
    assert find_vectors(None) == find_vectors(tmp_path) == tmp_path / "embeddings" / "a.bin"
    write_vectors(tmp_path / "embeddings" / "b.bin")
    with pytest.raises(DataError, match=r"it has \['a.bin', 'b.bin'\]"):
        find_vectors(tmp_path)
    monkeypatch.delenv("TNFN_DATA")
    with pytest.raises(DataError, match=r"looked for embeddings/\*\.bin.* not downloaded"):
        find_vectors(None)
