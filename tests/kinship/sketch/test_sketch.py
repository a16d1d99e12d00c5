"""Sketches: what kin keep of them, what strangers have in common, and how pairs are found."""

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.material.families import make
from tests.checkpoints import made
from tests.kinship.disguise.test_score import SIZES, net, noisy
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import apply_element, random_net_element
from transformer_nfn.kinship import (
    Fingerprint,
    Index,
    Kinship,
    Sketch,
    SketchStack,
    fingerprint,
    group_copies,
    sketch,
)
from transformer_nfn.kinship.sketch.finding import FIRST
from transformer_nfn.kinship.sketch.making import BLOCKS, NUMBERED, unit_sums


def drawn(folder: Path) -> Sketch:
    with Checkpoint(folder) as checkpoint:
        found = sketch(checkpoint)
    assert found is not None
    return found


def kin(one: Sketch, two: Sketch) -> list[float]:
    """Their distance, if they are kin."""
    (found,) = (pairs for _, pairs in SketchStack.of([one, two]).pairs(np.arange(2)))
    return found.distance.tolist()


def edited(folder: Path, out: Path, config: dict[str, Any], edit: Any) -> Path:
    """A folder with other tensors and sizes."""
    model = made.load(folder)
    tensors = edit(model.state_dict())
    new = type(model)(type(model.config).from_dict({**model.config.to_dict(), **config}))
    new.load_state_dict(tensors)
    return made.save(new, out)


def test_the_expected_product_of_strangers_is_exactly_0() -> None:
    """Over all orders of the units of one of them, whatever the units are."""
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(1, 5, 12, generator=generator) + 3 for _ in range(2))
    theirs = unit_sums(two)[:NUMBERED].double()
    products = [
        (unit_sums(one[:, list(order)])[:NUMBERED].double() @ theirs).item()
        for order in permutations(range(5))
    ]
    assert np.mean(products) == pytest.approx(0, abs=1e-6 * np.abs(products).max())
    assert np.std(products) > 0.1


def test_the_order_of_neurons_does_not_count_in_the_other_sums() -> None:
    rows = torch.randn(1, 64, 40, generator=torch.Generator().manual_seed(0))
    one, two = unit_sums(rows), unit_sums(rows.flip(1))
    torch.testing.assert_close(one[NUMBERED:], two[NUMBERED:], rtol=0, atol=1e-4)
    assert (one - two)[:NUMBERED].norm() > one[:NUMBERED].norm()
    # Without the squares of coordinates: of coordinates that are not mixed nothing is left.
    assert unit_sums(torch.eye(8)[None] * 3)[NUMBERED:].abs().max() < unit_sums(rows).abs().max()


@pytest.mark.parametrize("family", SIZES)
def test_fine_tunes_and_quantised_copies_are_kin(family: str, tmp_path: Path) -> None:
    start = net(family, tmp_path / "a")
    other = drawn(noisy(start, tmp_path / "b", 0.5))
    (far,) = kin(drawn(start), other)
    assert far == pytest.approx(math.sqrt(2 - 2 / math.sqrt(1.25)), abs=0.15)
    coarse = made.save(made.load(start), tmp_path / "c", torch.bfloat16)
    assert kin(drawn(start), drawn(coarse))[0] < 0.02


@pytest.mark.parametrize("family", SIZES)
def test_strangers_are_not(family: str, tmp_path: Path) -> None:
    found = [drawn(net(family, tmp_path / f"{seed}", seed)) for seed in range(12)]
    stack = SketchStack.of(found)
    assert all(not len(pairs.first) for _, pairs in stack.pairs(np.arange(len(found))))
    deviations = torch.cat(
        [(unit @ unit.T)[*np.tril_indices(12, -1)] for unit in stack.deviations(slice(None))]
    )
    assert 0.7 < deviations.std() < 1.3
    assert abs(deviations.mean()) < 0.3


@pytest.mark.parametrize("kept", [[0, 2], [1], [0, 1, 2, 1, 2]])
def test_blocks_may_be_left_out_or_doubled(kept: list[int], tmp_path: Path) -> None:
    start = net("llama", tmp_path / "a")

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        rest = {name: value for name, value in tensors.items() if ".layers." not in name}
        for new, old in enumerate(kept):
            prefix = f"model.layers.{old}."
            rest |= {
                name.replace(prefix, f"model.layers.{new}."): value
                for name, value in tensors.items()
                if name.startswith(prefix)
            }
        return rest

    other = edited(start, tmp_path / "b", {"num_hidden_layers": len(kept)}, edit)
    assert kin(drawn(start), drawn(other)) == [pytest.approx(0, abs=1e-3)]


def test_neurons_may_be_cut_away(tmp_path: Path) -> None:
    start = net("llama", tmp_path / "a", intermediate_size=160, num_hidden_layers=4)
    left = torch.randperm(160, generator=torch.Generator().manual_seed(0))[:120].sort().values

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {
            name: value[:, left] if "down" in name else value[left]
            if "gate" in name or "up_proj" in name else value
            for name, value in tensors.items()
        }  # fmt: skip

    other = edited(start, tmp_path / "b", {"intermediate_size": 120}, edit)
    assert kin(drawn(start), drawn(other))


def test_a_vocabulary_may_be_extended(tmp_path: Path) -> None:
    model = made.model("llama", 0, **SIZES["llama"])
    start = made.save(model, tmp_path / "a")
    model.resize_token_embeddings(450)
    one, two = drawn(start), drawn(made.save(model, tmp_path / "b"))
    assert np.array_equal(one.blocks, two.blocks)
    assert kin(one, two)


def test_an_encoder_and_its_decoder_have_one_sketch(tmp_path: Path) -> None:
    folder = make("t5", tmp_path / "a")
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.encoder is not None
        both = checkpoint.encoder.blocks + checkpoint.blocks
    assert len(drawn(folder).blocks) == both


def test_it_is_small_and_comes_back_from_its_bytes(tmp_path: Path) -> None:
    one = drawn(net("gpt2", tmp_path / "a", n_layer=40))
    content = one.to_bytes()
    assert len(one.blocks) == BLOCKS
    assert len(content) <= 16_000
    again = Sketch.from_bytes(one.kind, content)
    assert np.array_equal(again.network, one.network)
    assert np.array_equal(again.blocks, one.blocks)
    short = content[: 1 + len(one.network)]
    for wrong in (content[:-1], short, b"", content + content[-384:], b"\xff" + content[1:]):
        with pytest.raises(ValueError, match="bytes"):
            Sketch.from_bytes(one.kind, wrong)


def random_sketches(count: int, seed: int = 0) -> list[Sketch]:
    """Strangers, and relatives of some of them: in all blocks, in some, in a shallower network."""
    rng = np.random.default_rng(seed)
    found: list[Sketch] = []
    for number in range(count):
        depth = int(rng.integers(2, 7))
        blocks = rng.normal(size=(depth, 384))
        if number and rng.random() < 0.5:
            of = found[rng.integers(number)].blocks / 24
            depth = int(rng.integers(1, len(of) + 1))
            some = np.sort(rng.choice(len(of), depth, replace=False))
            blocks = of[some] + rng.uniform(0.1, 1.5) * rng.normal(size=(depth, 384))
        network = np.concatenate([blocks.sum(axis=0) / depth**0.5, rng.normal(size=64)])
        numbers = [
            (24 * part).round().clip(-127, 127).astype(np.int8) for part in (network, blocks)
        ]
        found.append(Sketch("a A 512", *numbers, 128))
    return found


def test_all_pairs_are_found_in_any_order_and_with_some_known() -> None:
    sketches = random_sketches(700)  # more than one tile
    stack = SketchStack.of(sketches)
    rng = np.random.default_rng(1)

    def found(order: np.ndarray, start: int = 0) -> set[tuple[int, int]]:
        pairs = [pairs for _, pairs in stack.pairs(order, start)]
        return {
            tuple(sorted((int(a), int(b))))  # type: ignore[misc]
            for some in pairs
            for a, b in zip(some.first, some.second, strict=True)
        }

    every = found(np.arange(700))
    assert len(every) > 200
    assert found(rng.permutation(700)) == every
    assert found(np.arange(700), 400) == {pair for pair in every if pair[1] >= 400}
    for number in (0, 5, 699):
        near = stack.kin_of(sketches[number])
        others = {int(n) for n in near.second} - {number}
        assert others == {a + b - number for a, b in every if number in (a, b)}


def test_the_first_look_passes_on_few_strangers() -> None:
    rng = np.random.default_rng(0)

    def numbers(*size: int) -> np.ndarray:
        found: np.ndarray = (24 * rng.normal(size=size)).round().astype(np.int8)
        return found

    some = [Sketch("a A 512", numbers(448), numbers(2, 384), 128) for _ in range(600)]
    units = SketchStack.of(some).deviations(slice(None))
    passed = torch.stack([unit @ unit.T for unit in units]).amax(dim=0) >= FIRST
    assert passed.tril(-1).sum() <= 0.001 * 600 * 599 / 2


def test_families_hold_kin_of_other_depths_and_heavy_fine_tunes(tmp_path: Path) -> None:
    start = net("llama", tmp_path / "a")
    noisy(start, tmp_path / "b", 0.7)  # too much for fingerprints

    def edit(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: value for name, value in tensors.items() if ".layers.2." not in name}

    edited(start, tmp_path / "c", {"num_hidden_layers": 2}, edit)
    net("llama", tmp_path / "d", 1)
    prints = [fingerprint(tmp_path / name) for name in "abcd"]
    index = Index.of(prints)
    assert index.pairs() == []
    found = group_copies(index)
    assert found.counts() == {
        "files": 4,
        "networks": 4,
        "lineages": 2,
        "copies": 0,
        "related": 2,
        "unsupported": 0,
    }
    names = [index.paths[near.file][-1] for near in index.nearest(prints[0], 3)]
    assert names == ["a", "c", "b"]
    kinds = [near.kinship for near in index.nearest(prints[0], 4)]
    assert kinds == [Kinship.COPY, Kinship.KIN, Kinship.KIN, Kinship.STRANGER]
    # What is known is not compared again, and the forest is the same.
    forest = Index.of(prints[:2]).forest()
    assert sorted(index.forest(forest).edges) == sorted(index.forest().edges)


def test_only_the_first_neurons_are_read(tmp_path: Path) -> None:
    folder = net("llama", tmp_path / "a", intermediate_size=4096)
    with Checkpoint(folder) as checkpoint:
        checkpoint.files.largest_read = 4096 * 32  # a quarter of a matrix
        assert sketch(checkpoint) is not None
    folder = net("gpt2", tmp_path / "b", n_inner=4096)  # which has a column for each
    with Checkpoint(folder) as checkpoint:
        checkpoint.files.largest_read = 4096 * 32 * 4
        assert sketch(checkpoint) is not None


@pytest.mark.parametrize("first", [0, 1])
def test_it_does_not_matter_which_of_two_comes_first(first: int) -> None:
    """One block four times, and a network that has it once: one block of four is the same."""
    rng = np.random.default_rng(0)
    blocks = (24 * rng.normal(size=(4, 384))).round().astype(np.int8)
    both = [np.repeat(blocks[:1], 4, axis=0), blocks]
    sums = [np.pad(each.sum(axis=0, dtype=np.int16) // 2, (0, 64)).astype(np.int8) for each in both]
    sketches = [
        Sketch("a A 512", network, each, 128) for network, each in zip(sums, both, strict=True)
    ]
    one, two = sketches[first], sketches[1 - first]
    pairs = SketchStack.of([one]).kin_of(two)
    assert pairs.distance.tolist() == [pytest.approx(1.3, abs=0.15)]


def test_strangers_of_few_short_neurons_are_not_kin(tmp_path: Path) -> None:
    sizes = {"n_embd": 12, "n_inner": 16, "n_layer": 4}
    nets = (made.model("gpt2", seed, **sizes) for seed in range(16))
    found = [drawn(made.save(one, tmp_path / f"{number}")) for number, one in enumerate(nets)]
    pairs = SketchStack.of(found).pairs(np.arange(16))
    assert sum(len(some.first) for _, some in pairs) == 0


def test_files_with_one_fingerprint_and_two_sketches_are_two(tmp_path: Path) -> None:
    prints = [fingerprint(net("llama", tmp_path / f"{seed}", seed)) for seed in range(2)]
    same = [
        Fingerprint(f"{n}", "s", "float32", prints[0].parts, p.sketch) for n, p in enumerate(prints)
    ]
    assert len(set(Index.of(same).keys())) == 2
    assert group_copies(same).counts()["copies"] == 1


def test_a_copy_in_disguise_is_found_by_its_fingerprint(tmp_path: Path) -> None:
    start = net("llama", tmp_path / "a")
    with Checkpoint(start) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(0))
        moved = apply_element(checkpoint, element, tmp_path / "b")
    assert kin(drawn(start), drawn(moved)) == []
    found = group_copies([fingerprint(start), fingerprint(moved)])
    assert found.counts()["copies"] == 1


def test_a_fingerprint_in_json_keeps_its_sketch(tmp_path: Path) -> None:
    import json

    from transformer_nfn.checkpoints import CheckpointError

    one = fingerprint(net("gpt2", tmp_path / "a"))
    text = one.to_json()
    again = Fingerprint.from_json(json.dumps(text))
    assert again.sketch is not None
    assert one.sketch is not None
    assert again.sketch.to_bytes() == one.sketch.to_bytes()
    for wrong in (7, {}, {"kind": "k"}, {"kind": "k", "numbers": "!"}, {"kind": 1, "numbers": ""}):
        with pytest.raises(CheckpointError, match="sketch"):
            Fingerprint.from_json(json.dumps({**text, "sketch": wrong}))


def test_files_without_a_sketch_are_compared_all_the_same(tmp_path: Path) -> None:
    folder = net("gpt2", tmp_path / "a")
    prints = [fingerprint(folder, blocks="first"), fingerprint(folder, blocks="first")]
    assert prints[0].sketch is None
    assert group_copies(prints).counts()["copies"] == 1
