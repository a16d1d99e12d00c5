from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from tests.models.checks import assert_gradients_reach, assert_seeded
from tests.models.test_probes import NET, model
from tests.strategies import generator
from transformer_nfn.models import ProbeNet, ProbeNetConfig, load_model, save_model
from transformer_nfn.models.generatedprobes import GeneratedProbes

WIDTHS = (2, 6, 7)


def test_parameters() -> None:
    config = ProbeNetConfig(tokens=16, inputs=49, classes=10, generator=(32, 64))
    reader = (480 + 1) * 64 + (64 + 1) * 64 + (64 + 1)
    made = 48 * 32 + 32 * 64 + 64 * 16 * 49
    assert ProbeNet(config).parameter_count == made + reader


def test_probes_are_linear_in_the_codes_and_all_use_the_same_layers() -> None:
    probes = GeneratedProbes((4, 5, 16), WIDTHS, generator(0)).double()
    first, second, third = probes.layers
    whole = probes.codes @ first @ second @ third
    torch.testing.assert_close(probes(), whole.reshape(4, 5, 16))
    before = probes().detach()
    with torch.no_grad():
        probes.codes[1] *= -2
    torch.testing.assert_close(probes()[1], -2 * before[1])
    assert torch.equal(probes()[[0, 2, 3]], before[[0, 2, 3]])


def test_there_are_no_more_independent_probes_than_numbers_in_a_code() -> None:
    """Which is how probes come to have a structure in common."""
    probes = model(generator=WIDTHS).sequences().detach().flatten(1)
    assert torch.linalg.matrix_rank(probes) == 2


@pytest.mark.parametrize("widths", [(64,), (64, 64), (64,) * 8])
def test_the_first_probes_are_as_large_as_free_ones(widths: tuple[int, ...]) -> None:
    probes = GeneratedProbes((48, 49, 16), widths, generator(0))
    assert 0.8 < probes().std() < 1.25


def test_the_networks_are_asked_what_was_generated() -> None:
    """A model with these sequences as free ones, and the same reader, says the same."""
    made, free = model(generator=WIDTHS), model()
    free.reader.load_state_dict(made.reader.state_dict())
    with torch.no_grad():
        free.probes.copy_(made.sequences())
        torch.testing.assert_close(free(NET), made(NET))


def test_gradients_reach_every_parameter() -> None:
    m = model(generator=WIDTHS)
    assert_gradients_reach(m, NET)
    assert m.generated.codes.grad is not None
    assert (m.generated.codes.grad != 0).all()


def test_same_seed_same_model_and_the_global_generator_is_untouched() -> None:
    assert_seeded(lambda seed: model(seed=seed, generator=WIDTHS))


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    made = model(generator=WIDTHS)
    save_model(made, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert again.config == made.config
    with torch.no_grad():
        assert torch.equal(again(NET), made(NET))


@pytest.mark.parametrize("widths", [(), (0,), (3, -1), (1,) * 17])
def test_widths_that_are_none_are_refused(widths: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError):
        model(generator=widths)
