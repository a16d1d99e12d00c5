"""Many adapters as batches of weights."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from transformer_nfn.adapters import LORA, Adapter, move_adapter, read_adapters
from transformer_nfn.checkpoints import CheckpointError

Shapes = dict[str, tuple[int, int]]
#: Two modules from 6 to 5 numbers, and one from 5 to 7; sizes are distinct, so that no transpose
#: can hide.
SHAPES: Shapes = {"b.v": (6, 5), "a.q": (6, 5), "a.fc": (5, 7)}


def write(
    folder: Path,
    rank: int,
    seed: int,
    *,
    shapes: Shapes = SHAPES,
    alpha: float = 6,
    dtype: torch.dtype = torch.float64,
    base: str = "net",
) -> Path:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (x, y) in shapes.items():
        for end, shape in (("lora_A", (rank, x)), ("lora_B", (y, rank))):
            matrix = torch.randn(shape, generator=generator, dtype=torch.float64)
            tensors[f"base_model.model.{name}.{end}.weight"] = matrix.to(dtype)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, rank in enumerate((2, 4, 1)):
        write(tmp_path / "many" / f"n{seed}", rank, seed)
    (tmp_path / "many" / "notes").mkdir()
    return tmp_path / "many"


def test_modules_of_one_shape_are_the_blocks_of_a_batch(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = read_adapters(folder, progress=lambda *done: seen.append(done))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert [path.name for path in found.paths] == ["n0", "n1", "n2"]
    assert len(found) == 3
    assert found.ranks == (2, 4, 1)
    prefix = "base_model.model."
    assert found.modules == ((prefix + "a.fc",), (prefix + "a.q", prefix + "b.v"))
    assert [(b.networks, b.channels, b.blocks) for b in found.batches] == [(3, 1, 1), (3, 1, 2)]
    assert all(batch.spec.block is LORA and batch.dtype is torch.float32 for batch in found.batches)


def test_products_are_the_updates_with_their_scale(folder: Path) -> None:
    found = read_adapters(folder, dtype=torch.float64)
    for number, path in enumerate(found.paths):
        with Adapter(path) as adapter:
            for batch, names in zip(found.batches, found.modules, strict=True):
                for block, name in enumerate(names):
                    down, up = adapter.module(name)
                    update = batch.product("AB")[number, 0, block]
                    torch.testing.assert_close(update.T, 6 / adapter.rank * up @ down)


def test_zeros_beyond_the_rank_of_an_adapter(folder: Path) -> None:
    found = read_adapters(folder)
    for batch in found.batches:
        for number, rank in enumerate(found.ranks):
            A, B = batch["A"][number, 0], batch["B"][number, 0]
            assert not A[..., rank:].any()
            assert not B[:, rank:].any()
            assert A[..., :rank].all()
            assert B[:, :rank].all()


def test_opened_adapters_stay_open_and_may_be_mixed_with_folders(folder: Path) -> None:
    with Adapter(folder / "n1") as adapter:
        found = read_adapters([adapter, folder / "n0"])
        assert adapter.module(adapter.modules[0]).down.shape[0] == 4
    whole = read_adapters(folder).select([1, 0])
    assert found.paths == whole.paths
    assert found.ranks == whole.ranks == (4, 2)
    for one, two in zip(found.batches, whole.batches, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one.tensors)


def test_a_moved_adapter_has_the_same_products(folder: Path, tmp_path: Path) -> None:
    with Adapter(folder / "n1") as adapter:
        other = move_adapter(adapter, tmp_path / "moved", torch.Generator().manual_seed(0))
    found = read_adapters([folder / "n1", other], dtype=torch.float64)
    for batch in found.batches:
        assert not torch.allclose(batch["A"][0], batch["A"][1])
        torch.testing.assert_close(batch.product("AB")[0], batch.product("AB")[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    found = read_adapters([write(tmp_path / "a", 2, 0, dtype=dtype)])
    assert all(batch.dtype is torch.float32 for batch in found.batches)


def test_a_rank_to_pad_to(folder: Path) -> None:
    found = read_adapters(folder, rank=6)
    assert all(batch.spec.sizes["rank"] == 6 for batch in found.batches)
    with pytest.raises(CheckpointError, match=r"n1 has r = 4.*ask for rank=4"):
        read_adapters(folder, rank=3)


@pytest.mark.parametrize(
    ("shapes", "base", "words"),
    [
        (SHAPES | {"b.fc": (5, 7)}, "net", r"only .*odd has '.*b\.fc'.*collection of their own"),
        ({"a.q": (6, 5)}, "net", r"only .*n0 has '.*a\.fc' \(2 such modules\)"),
        (SHAPES | {"a.q": (5, 6)}, "net", r"'.*a\.q' goes from 5 to 6 numbers, and from 6 to 5 in"),
        (SHAPES, "other", r"base_model_name_or_path is 'other', and 'net' in .*read them apart"),
    ],
)
def test_adapters_that_do_not_belong_together(
    shapes: Shapes, base: str, words: str, folder: Path
) -> None:
    write(folder / "odd", 2, 9, shapes=shapes, base=base)
    with pytest.raises(CheckpointError, match=words):
        read_adapters(folder)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="give the folder that holds the folders"):
        read_adapters(tmp_path)
    with pytest.raises(CheckpointError, match="at least one adapter"):
        read_adapters([])


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    path = write(tmp_path / "a", 2, 0, dtype=torch.float16)
    with Adapter(path) as adapter:
        module = adapter.module(adapter.modules[0])
        tensors = {
            n: t for name in adapter.modules for n, t in adapter.stored(name, module).items()
        }
    first = next(iter(tensors))
    tensors = {n: t.clone() for n, t in tensors.items()}
    tensors[first][0, 0] = torch.inf
    save_file(tensors, path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="not finite; leave this adapter out"):
        read_adapters([path])
