"""Certificates that say nothing wrong of themselves, and still do not hold."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.checkpoints import made
from tests.identity.test_certificates import element_of
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import (
    NetElement,
    Verification,
    apply_element,
    same,
    save_certificate,
    verify,
)


def verified(
    a: Path, b: Path, home: Path, element: NetElement | None = None, **second: object
) -> Verification:
    """By the certificate that somebody makes of these files."""
    path = home / "g.safetensors"
    with Checkpoint(a) as ours, Checkpoint(b, options=second) as theirs:
        if element is None:
            element = same(ours, theirs).element
        assert element is not None
        save_certificate(element, ours, theirs, path)
        return verify(path, ours, theirs, seed=0)


def changed(a: Path, out: Path, name: str, row: int, factor: float) -> Path:
    with Checkpoint(a) as checkpoint:
        tensor = checkpoint.files.read(name).clone()
        tensor[row] *= factor
        return rewrite(checkpoint, [(name, tensor)], out)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(made.model("gpt2"), tmp_path_factory.mktemp("verification") / "a")


@pytest.mark.parametrize(
    ("name", "row", "where"),
    [
        ("h.1.mlp.c_fc.weight", 3, "h.1.mlp.c_fc.weight"),
        ("wte.weight", 50, "wte.weight, row 50"),
        # A norm is judged in what reads it.
        ("h.0.ln_2.bias", 2, "h.0.mlp.c_fc.bias"),
        ("ln_f.weight", 7, "wte.weight"),
    ],
)
def test_another_row_does_not_hold(
    gpt2: Path, name: str, row: int, where: str, tmp_path: Path
) -> None:
    b = changed(gpt2, tmp_path / "b", f"transformer.{name}", row, 1.001)
    with Checkpoint(gpt2) as ours:
        nothing = NetElement.identity(ours.spec, ours.blocks)
    found = verified(gpt2, b, tmp_path, nothing)
    assert found.holds is False
    assert where in found.reason
    assert verified(gpt2, gpt2, tmp_path, nothing).holds


def test_another_element_does_not_hold(gpt2: Path, tmp_path: Path) -> None:
    with Checkpoint(gpt2) as ours:
        b = apply_element(ours, element_of(ours), tmp_path / "b")
        other = element_of(ours, seed=1)
    assert verified(gpt2, b, tmp_path, other).holds is False
    assert verified(gpt2, b, tmp_path).holds


def test_other_settings_do_not_hold(gpt2: Path, tmp_path: Path) -> None:
    with Checkpoint(gpt2) as ours:
        nothing = NetElement.identity(ours.spec, ours.blocks)
    found = verified(gpt2, gpt2, tmp_path, nothing, activation_function="gelu")
    assert found.holds is False
    assert "activation" in found.reason
    found = verified(gpt2, gpt2, tmp_path, nothing, norm="rms")
    assert found.holds is False


def test_functions_that_differ_when_run_do_not_hold(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the comparison of weights says; here it is made to see nothing."""
    from transformer_nfn.identity import verification
    from transformer_nfn.identity.comparing.outcome import Match

    b = changed(gpt2, tmp_path / "b", "transformer.wte.weight", 5, 1.5)
    with Checkpoint(gpt2) as ours:
        nothing = NetElement.identity(ours.spec, ours.blocks)
    monkeypatch.setattr(verification, "judge", lambda *_: Match())
    found = verified(gpt2, b, tmp_path, nothing)
    assert found.holds is False
    assert "the outputs differ" in found.reason


def test_what_cannot_be_run_is_not_decided(gpt2: Path, tmp_path: Path) -> None:
    a = shutil.copytree(gpt2, tmp_path / "a")
    config = (a / "config.json").read_text()
    (a / "config.json").write_text(config.replace("gelu_new", "mish"))
    with Checkpoint(a) as ours:
        nothing = NetElement.identity(ours.spec, ours.blocks)
    found = verified(a, a, tmp_path, nothing)
    assert found.holds is None
    assert "cannot be run" in found.reason


def test_what_is_no_certificate_is_an_error(gpt2: Path) -> None:
    with Checkpoint(gpt2) as ours, pytest.raises(CheckpointError, match="is no certificate"):
        verify(gpt2 / "model.safetensors", ours, ours)


def test_numbers_that_are_none_do_not_hold(gpt2: Path, tmp_path: Path) -> None:
    b = changed(gpt2, tmp_path / "b", "transformer.h.0.mlp.c_fc.weight", 0, torch.nan)
    with Checkpoint(gpt2) as ours:
        nothing = NetElement.identity(ours.spec, ours.blocks)
    assert verified(b, b, tmp_path, nothing).holds is False
    assert verified(gpt2, b, tmp_path, nothing).holds is False
