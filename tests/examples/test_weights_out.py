"""docs/guides/weights-out.md: its steps are equivariant, and the page shows its figures."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from transformer_nfn.group import random_element, relative_error
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "weights_out"
SPEC = BlockSpec(PAPER, D=6, heads=2, D_k=3, D_v=4, D_A=5)
NETWORKS, BLOCKS, TOKENS, CLASSES = 3, 2, 4, 7


def module(name: str) -> ModuleType:
    found = spec_from_file_location(f"weights_out_{name}", FOLDER / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    made = module_from_spec(found)
    found.loader.exec_module(made)
    return made


steps = module("steps")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def nets(generator: torch.Generator) -> NetBatch:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(NETWORKS, *shape, generator=generator, dtype=torch.float64)

    blocks = WeightBatch.random(
        SPEC, networks=NETWORKS, blocks=BLOCKS, generator=generator, dtype=torch.float64
    )
    classifier = {"weight1": normal(6, 8), "bias1": normal(8)}
    classifier |= {"weight2": normal(8, CLASSES), "bias2": normal(CLASSES)}
    return NetBatch(blocks, {"weight": normal(2, 6), "bias": normal(6)}, classifier)


@pytest.fixture
def images(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(NETWORKS, 9, TOKENS, 2, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(CLASSES, (NETWORKS, 9), generator=generator)


def moved_error(step, direction, nets, images, generator: torch.Generator) -> float:  # type: ignore[no-untyped-def]
    """How far step(gU) is from g step(U), the gradient computed anew at gU."""
    g = random_element(SPEC, networks=NETWORKS, blocks=BLOCKS, generator=generator)
    there = steps.with_blocks(nets, g(nets.blocks))
    with torch.no_grad():
        new = step(nets.blocks, direction(nets, *images))
        new_there = step(there.blocks, direction(there, *images))
    return relative_error(new_there, g(new))


def sizes(direction, nets, images):  # type: ignore[no-untyped-def]
    return nets.blocks.rms(), direction(nets, *images).rms()


def loud(step: torch.nn.Module) -> torch.nn.Module:
    """So that what the learned part adds is seen beside the weights."""
    with torch.no_grad():
        for number in step.scale.numbers.values():
            number.fill_(100.0)
    return step.double()


def test_the_layers_are_equivariant(nets, images, generator) -> None:  # type: ignore[no-untyped-def]
    rms = sizes(steps.raised_gradient, nets, images)
    step = loud(steps.Equivariant(SPEC, BLOCKS, rms, channels=3))
    assert moved_error(step, steps.raised_gradient, nets, images, generator) < 1e-10
    # and they do something
    d = steps.raised_gradient(nets, *images)
    assert relative_error(step(nets.blocks, d), step.rates(nets.blocks, d)) > 1e-2


def test_a_plain_gradient_is_not_moved_as_weights_are(nets, images, generator) -> None:  # type: ignore[no-untyped-def]
    rms = sizes(steps.plain_gradient, nets, images)
    for step in (
        loud(steps.Equivariant(SPEC, BLOCKS, rms, channels=3)),
        loud(steps.Flat(SPEC, BLOCKS, rms, parameters=5000)),
    ):
        assert moved_error(step, steps.plain_gradient, nets, images, generator) > 1e-3


def test_a_flat_mlp_is_not_equivariant(nets, images, generator) -> None:  # type: ignore[no-untyped-def]
    rms = sizes(steps.raised_gradient, nets, images)
    step = loud(steps.Flat(SPEC, BLOCKS, rms, parameters=5000))
    assert moved_error(step, steps.raised_gradient, nets, images, generator) > 1e-2


def test_both_directions_point_uphill(nets, images) -> None:  # type: ignore[no-untyped-def]
    before = steps.losses(nets, *images)
    for direction in (steps.plain_gradient, steps.raised_gradient):
        d = direction(nets, *images)
        lower = nets.blocks.replace({n: W - 1e-5 * d[n] for n, W in nets.blocks.tensors.items()})
        assert (steps.losses(steps.with_blocks(nets, lower), *images) < before).all()


def test_a_net_without_a_gradient_stays_finite(nets, images) -> None:  # type: ignore[no-untyped-def]
    dead = steps.with_blocks(nets, nets.blocks.map(torch.zeros_like))
    found = steps.raised_gradient(dead, *images)
    assert all(W.isfinite().all() for W in found.tensors.values())


def test_the_page_shows_the_figures_of_its_file() -> None:
    page = (ROOT / "docs" / "guides" / "weights-out.md").read_text()
    report = json.loads((ROOT / "docs" / "results" / "weights_out.json").read_text())
    assert report["ok"]
    for name, row in report["figures"]["steps"].items():
        line = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert f"{row['loss']:.3f}" in line
        assert f"{row['moved_loss']:.3f}" in line


def test_the_script_reads_its_options(monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sys, "argv", ["repair.py", "--help"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit):
        module("repair").main()
    assert "--quick" in capsys.readouterr().out
