"""Files that no family reads: copies by rows that are the same, whatever else is not."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.cli.run import tnfn
from transformer_nfn.checkpoints import TensorFiles
from transformer_nfn.kinship import Kin, Relation, kin_by_rows
from transformer_nfn.space import sine_positions

Tensors = dict[str, torch.Tensor]


def tensors(seed: int = 0) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "up": (48, 16), "down": (16, 48)}
    found = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return found | {"norm": torch.ones(16), "words": torch.randn(100, 16, generator=generator)}


def compared(one: Tensors, two: Tensors, home: Path) -> Kin:
    paths = home / "one.safetensors", home / "two.safetensors"
    for path, each in zip(paths, (one, two), strict=True):
        save_file({name: value.contiguous() for name, value in each.items()}, path)
    with TensorFiles(paths[0]) as ours, TensorFiles(paths[1]) as theirs:
        return kin_by_rows(ours, theirs)


def test_a_copy_with_other_names_transposed_and_fused(tmp_path: Path) -> None:
    one = tensors()
    two = {
        "in_proj": torch.cat([one["q"], one["k"], one["v"]]),
        "linear": one["up"].T,
        "out": one["down"],
        "ones": one["norm"],
        "table": torch.cat([one["words"], torch.randn(2, 16)]),  # a vocabulary of two more
    }
    found = compared(one, two, tmp_path)
    assert found.relation is Relation.COPY
    assert "100.0% of the first are in the second" in found.reason
    assert compared(two, one, tmp_path).relation is Relation.COPY


def test_a_copy_in_another_dtype(tmp_path: Path) -> None:
    one = {name: value.half() for name, value in tensors().items()}
    two = {f"new.{name}": value.float() for name, value in one.items()}
    assert compared(one, two, tmp_path).relation is Relation.COPY


def test_a_few_tensors_in_common(tmp_path: Path) -> None:
    two = tensors(1) | {"mine": tensors(0)["up"]}
    found = compared(tensors(0), two, tmp_path)
    assert found.relation is Relation.PARTS
    assert "1 of 6 tensors" in found.reason  # a norm of ones tells nothing


def test_strangers_and_what_everybody_has(tmp_path: Path) -> None:
    found = compared(tensors(0), tensors(1), tmp_path)
    assert found.relation is Relation.NOT_COMPARABLE
    assert "--units" in found.reason
    ones = {"norm": torch.ones(64), "zeros": torch.zeros(64, 64)}
    assert compared(ones, ones, tmp_path).relation is Relation.NOT_COMPARABLE


def test_what_is_stored_by_columns_in_both(tmp_path: Path) -> None:
    one = tensors()
    fused = {"c_attn": torch.cat([one["q"], one["k"], one["v"]]).T, "words": one["words"].T}
    apart = {name: one[name].T for name in "qkv"} | {
        "words": torch.cat([one["words"], one["up"]]).T
    }
    assert compared(fused, apart, tmp_path).relation is Relation.COPY
    long = {"a": torch.randn(400, 4), "b": torch.randn(400, 30)}
    turned = {name: value.T for name, value in long.items()}
    assert compared(long, turned, tmp_path).relation is Relation.COPY


@pytest.mark.parametrize(
    "shared",
    [
        {"rope.inv_freq": 10000.0 ** (-torch.arange(0, 64, 2) / 64)},
        {"pos": sine_positions(500, 64)},
        {"nan": torch.full((1000, 64), torch.nan)},
        {"signs": torch.tensor([0.0, 1.0]).repeat(1000, 32)},
        {"row": tensors()["words"][:1]},
    ],
)
def test_what_anybody_has_makes_no_copy(shared: Tensors, tmp_path: Path) -> None:
    for more in ({}, {"w": torch.zeros(99, 99, dtype=torch.int8)}):
        one, two = ({**shared, **more, **other} for other in ({}, tensors(1)))
        assert compared(one, two, tmp_path).relation is Relation.NOT_COMPARABLE


def test_most_of_a_file_that_was_not_looked_at_makes_no_copy(tmp_path: Path) -> None:
    one = {"words": tensors()["words"], "w": torch.randint(-99, 99, (400, 400), dtype=torch.int8)}
    two = {"words": tensors()["words"], "w": torch.randint(-99, 99, (400, 400), dtype=torch.int8)}
    assert compared(one, two, tmp_path).relation is Relation.PARTS


def test_digits_of_float64_count(tmp_path: Path) -> None:
    one = {name: value.double() + 1e-12 for name, value in tensors().items()}
    two = {name: value + 1e-12 for name, value in one.items()}
    assert compared(one, two, tmp_path).relation is Relation.NOT_COMPARABLE
    assert compared(one, dict(one), tmp_path).relation is Relation.COPY


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_says_how_it_compared(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared(tensors(), {f"x.{k}": v for k, v in tensors().items()}, tmp_path)
    more = ["--json"] if as_json else []
    files = [tmp_path / f"{name}.safetensors" for name in ("one", "two")]
    result = tnfn(capsys, "kin", *files, *more)
    assert result.code == 0
    if as_json:
        found = json.loads(result.out)
        assert (found["answer"], found["log10_p"]) == ("copy", None)
    else:
        assert result.out.startswith("copy\n  why  compared by rows")
        assert "for unrelated models" not in result.out
        assert "no family" in result.err
