import gzip
from pathlib import Path

import pytest
import torch

from tests.zoo.tasks.samples import (
    digits,
    idx,
    png,
    real_data,
    write_hub_mnist,
    write_mnist,
    write_parquet,
)
from transformer_nfn.zoo.tasks import DataError, Task, load_task, patches
from transformer_nfn.zoo.tasks import mnist as module


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three images are enough for validation."""
    monkeypatch.setattr(module, "VALIDATION", 3)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub is a folder of this machine."""
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def download(repo_id: str, filename: str, *, repo_type: str) -> str:
        assert (repo_id, repo_type) == ("ylecun/mnist", "dataset")
        return str(tmp_path / filename)

    monkeypatch.delenv("TNFN_DATA", raising=False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return tmp_path


def pixels(task: Task, part: str) -> torch.Tensor:
    found = getattr(task, part).pixels
    assert isinstance(found, torch.Tensor)
    return found


@pytest.mark.usefixtures("few")
def test_small_files_of_the_same_layout(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    task = load_task("mnist", data=tmp_path)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [10, 3, 11]
    assert (task.tokens, task.width, task.patch, task.classes) == (49, 16, 4, 10)
    images, labels = digits(11, 1)
    torch.testing.assert_close(pixels(task, "test"), images.float() / 127.5 - 1)
    assert torch.equal(task.test.labels, labels.long())
    assert torch.equal(task.test.inputs, patches(pixels(task, "test"), 4))
    assert load_task("mnist", data=str(tmp_path), patch=7).tokens == 16


@pytest.mark.usefixtures("few")
def test_the_hub_has_the_same_task(hub: Path) -> None:
    write_hub_mnist(hub)
    write_mnist(hub / "local")
    there, here = load_task("mnist"), load_task("mnist", data=hub / "local")
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(there, part).labels, getattr(here, part).labels)
        assert torch.equal(pixels(there, part), pixels(here, part))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (png(torch.zeros(28, 28, dtype=torch.uint8)), 10, "has a label 10, expected 0..9"),
        (png(torch.zeros(28, 27, dtype=torch.uint8)), 1, r"row 1: image of \(27, 28\)"),
        (png(torch.zeros(28, 28, dtype=torch.uint8), "RGB"), 1, "row 1: .* mode RGB"),
        (png(torch.zeros(28, 28, dtype=torch.uint8))[:50], 1, "row 1: not a PNG"),
        (b"GIF89a", 1, "row 1: not a PNG"),
        (None, 1, "row 1: not a PNG"),
    ],
)
def test_other_files_of_the_hub_are_refused(
    hub: Path, image: bytes | None, label: int, message: str
) -> None:
    good = {"bytes": png(torch.zeros(28, 28, dtype=torch.uint8)), "path": None}
    bad = {"bytes": image, "path": None}
    write_parquet(hub / module.HUB.names[0], image=[good, bad], label=[0, label])
    with pytest.raises(DataError, match=message):
        load_task("mnist")


@pytest.mark.usefixtures("few")
def test_labels_out_of_range_and_of_other_images_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / "t10k-labels-idx1-ubyte"
    path.write_bytes(idx(torch.arange(11, dtype=torch.uint8)))
    with pytest.raises(DataError, match=r"t10k-labels.* has a label 10, expected 0\.\.9"):
        load_task("mnist", data=tmp_path)
    path.write_bytes(idx(torch.zeros(12, dtype=torch.uint8)))
    with pytest.raises(DataError, match=r"has 11 images, .*t10k-labels.* 12 labels"):
        load_task("mnist", data=tmp_path)


@pytest.mark.usefixtures("few")
def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\x00\x00\x08\x01" + bytes(12)))
    with pytest.raises(DataError, match=r"train-images.* starts with 00000801, expected 00000803"):
        load_task("mnist", data=tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"no file train-images-idx3-ubyte\.gz in .*TNFN_DATA"):
        load_task("mnist", data=tmp_path)


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    with pytest.raises(DataError, match="60,000 training images, got 13"):
        load_task("mnist", data=tmp_path)


@real_data
def test_the_real_files() -> None:
    task = load_task("mnist")
    parts = (task.train, task.validation, task.test)
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    assert (task.tokens, task.width) == (49, 16)
    assert task.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
    # The known counts of the 60,000: train and validation are all of them, each once.
    both = task.train.labels.bincount() + task.validation.labels.bincount()
    assert both.tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    train, validation = (
        {image.numpy().tobytes() for image in pixels(task, part)}
        for part in ("train", "validation")
    )
    assert len(train) == 55_000
    assert not train & validation
    # The first training image is a five, here or there.
    first = module._from_idx(*(_real(name) for name in module.TRAIN))
    assert first[1][:5].tolist() == [5, 0, 4, 1, 9]
    assert (first[0][0].float() / 255 * 2 - 1).numpy().tobytes() in train | validation

    again = load_task("mnist")
    for part, other in zip(parts, (again.train, again.validation, again.test), strict=True):
        assert torch.equal(part.inputs, other.inputs)
        assert torch.equal(part.labels, other.labels)
    assert task.train.labels[:10].tolist() == [4, 9, 8, 9, 1, 4, 1, 1, 3, 8]


def _real(name: str) -> Path:
    return module.find(None, "mnist", (name,), None)[name]
