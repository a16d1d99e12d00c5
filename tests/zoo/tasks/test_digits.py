from pathlib import Path

import pytest
import torch

from transformer_nfn.zoo.tasks import load_task, patches

pytest.importorskip("sklearn")


def test_sizes() -> None:
    task = load_task("digits")
    parts = (task.train, task.validation, task.test)
    assert [len(part) for part in parts] == [1097, 300, 400]
    assert (task.name, task.classes, task.patch) == ("digits", 10, 2)
    assert (task.tokens, task.width) == (16, 4)
    for part in parts:
        assert part.pixels is not None
        assert torch.equal(patches(part.pixels, 2), part.inputs)
        assert (part.pixels.min(), part.pixels.max()) == (-1, 1)
        assert part.labels.bincount().min() > 20


def test_another_patch() -> None:
    task = load_task("digits", patch=4)
    assert (task.tokens, task.width, task.patch) == (4, 16, 4)


def test_every_image_is_in_one_part() -> None:
    from sklearn.datasets import load_digits

    task = load_task("digits")
    dealt = torch.cat([p.pixels for p in (task.train, task.validation, task.test)])  # type: ignore[misc]
    images = torch.from_numpy(load_digits().images).float() / 8 - 1
    assert torch.equal(_sorted(dealt), _sorted(images))
    labels = torch.cat([p.labels for p in (task.train, task.validation, task.test)])
    with_label = torch.cat([dealt.flatten(1), labels.unsqueeze(1)], 1)
    known = torch.cat([images.flatten(1), torch.from_numpy(load_digits().target).unsqueeze(1)], 1)
    assert torch.equal(_sorted(with_label), _sorted(known))


def _sorted(images: torch.Tensor) -> torch.Tensor:
    return torch.tensor(sorted(images.flatten(1).tolist()))


def test_the_split_is_the_same_for_everybody() -> None:
    task = load_task("digits")
    assert task.train.labels[:10].tolist() == [2, 7, 4, 7, 6, 3, 1, 8, 7, 7]
    assert task.test.labels[:10].tolist() == [3, 2, 2, 2, 9, 3, 4, 6, 9, 6]


def test_scikit_learn_is_asked_where_its_file_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    known = load_task("digits")
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    again = load_task("digits")
    assert again.digest == known.digest
