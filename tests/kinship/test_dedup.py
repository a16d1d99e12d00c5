import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.checkpoints import made
from tests.kinship.test_distances import made_up, near
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import apply_element, random_net_element
from transformer_nfn.kinship import dedup, find_checkpoints, group_copies
from transformer_nfn.kinship.duplicates import linked


def disguise(start: Path, out: Path, seed: int = 0) -> Path:
    with Checkpoint(start) as checkpoint:
        generator = torch.Generator().manual_seed(seed)
        element = random_net_element(checkpoint, generator, condition=50.0)
        return apply_element(checkpoint, element, out)


def tune(start: Path, out: Path, share: float = 0.01, seed: int = 0) -> Path:
    """Noise on every weight."""
    generator = torch.Generator().manual_seed(seed)
    with Checkpoint(start) as checkpoint:
        changes = []
        for name in checkpoint.files:
            value = checkpoint.files.read(name)
            size = value.square().mean().sqrt() * share
            changes.append((name, value + size * torch.randn(value.shape, generator=generator)))
        return rewrite(checkpoint, changes, out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two GPT-2s, one of them three times in disguise and once tuned; a Llama; a broken file."""
    home = tmp_path_factory.mktemp("nets")
    first = made.save(made.model("gpt2"), home / "first")
    disguise(first, home / "deep" / "disguised")
    disguise(first, home / "again", seed=1)
    disguise(tune(first, home / "tuned"), home / "tuned-and-hidden", seed=2)
    made.save(made.model("gpt2", seed=1), home / "other")
    made.save(made.model("llama"), home / "llama", max_shard_size="15KB")
    (home / "broken").mkdir()
    (home / "broken" / "model.safetensors").write_bytes(b"not a checkpoint")
    return home


def names(home: Path, paths: Iterable[str | Path]) -> set[str]:
    return {str(Path(path).parent.relative_to(home)) for path in paths}


def test_copies_in_disguise_are_grouped(folder: Path) -> None:
    found = dedup(folder)
    paths = found.index.paths
    groups = {frozenset(names(folder, (paths[i] for i in group))) for group in found.groups}
    assert groups == {
        frozenset({"first", "again", "deep/disguised"}),
        frozenset({"tuned", "tuned-and-hidden"}),
        frozenset({"other"}),
        frozenset({"llama"}),
    }
    lineages = {
        frozenset(names(folder, (paths[link.file] for group in lineage for link in group)))
        for lineage in found.lineages
    }
    assert len(lineages) == 3
    assert max(lineages, key=len) == {
        "first",
        "again",
        "deep/disguised",
        "tuned",
        "tuned-and-hidden",
    }
    assert names(folder, found.broken) == {"broken"}
    assert "too few" in next(iter(found.broken.values())) or "no safetensors" in str(found.broken)


def test_the_table_names_the_nearest_of_what_came_before(folder: Path) -> None:
    rows = dedup(folder).table()
    numbers = [(row.lineage, row.network) for row in rows]
    assert numbers == sorted(numbers)
    assert numbers[0] == (1, 1)
    assert sorted(row.relation or "" for row in rows) == [
        "", "", "", "copy", "copy", "copy", "related",
    ]  # fmt: skip
    seen: set[str] = set()
    for row in rows:
        assert row.to is None or row.to in seen
        assert (row.to is None) == (row.distance is None) == (row.relation is None)
        seen.add(row.path)


def test_the_matrix_is_symmetric_and_empty_between_shapes(folder: Path) -> None:
    found = dedup(folder)
    matrix = torch.from_numpy(found.matrix(found.order))
    assert torch.equal(matrix.isnan(), matrix.isnan().T)
    assert torch.allclose(matrix.nan_to_num(), matrix.nan_to_num().T)
    assert matrix.diagonal().nan_to_num(nan=1).max() == 0
    assert matrix.isnan().sum() == 2 * 6  # one Llama, six GPT-2s


def test_files_are_found_once_and_links_out_are_not_followed(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    made.save(made.model("gpt2"), home / "b")
    made.save(made.model("llama"), home / "a", max_shard_size="15KB")
    made.save(made.model("bert"), outside)
    (home / "in").mkdir()
    os.symlink(home / "b" / "model.safetensors", home / "in" / "model.safetensors")
    os.symlink(outside / "model.safetensors", home / "in" / "out.safetensors")
    os.symlink(outside, home / "folder")
    shutil.copy(outside / "model.safetensors", home / ".model.safetensors.1f.part")
    shutil.copy(outside / "model.safetensors", home / ".hidden.safetensors")
    found = [str(path.relative_to(home)) for path in find_checkpoints(home)]
    assert found == ["a/model.safetensors.index.json", "b/model.safetensors"]


def test_no_files_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no \.safetensors"):
        find_checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match="not a folder"):
        find_checkpoints(tmp_path / "none")


def test_many_are_grouped_within_their_shapes() -> None:
    prints = []
    for number in range(60):
        one = made_up(number % 20, shape=f"s{number % 2}")
        prints.append(near(one, 1e-6, seed=number))
    found = group_copies(prints)
    assert sorted(map(len, found.groups)) == [3] * 20
    assert all(len({i % 20 for i in group}) == 1 for group in found.groups)
    assert sorted(found.order) == list(range(60))


def test_linked_joins_chains() -> None:
    assert linked(6, [(0, 5), (5, 2), (3, 4)]) == [[0, 2, 5], [1], [3, 4]]
    assert linked(0, []) == []
