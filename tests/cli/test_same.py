"""`tnfn inspect`, `reparam`, `same` and `apply`, as a user runs them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.cli.test_zoo import tnfn
from transformer_nfn.checkpoints import CheckpointError


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(made.model("gpt2"), tmp_path_factory.mktemp("nets") / "a")


@pytest.mark.parametrize("command", ["inspect", "same", "reparam", "apply", "verify"])
def test_the_help_has_an_example_and_json(command: str) -> None:
    text = tnfn(command, "--help").stdout
    assert f"Example: tnfn {command}" in text
    assert "--json" in text


def test_inspect_says_what_a_file_is(net: Path) -> None:
    result = tnfn("inspect", net)
    assert result.exit_code == 0
    assert "family        gpt2" in result.stdout
    assert "2 blocks, D 24, heads 3, D_k 8, D_v 8, D_A 40" in result.stdout
    assert "basis" in result.stdout
    found = json.loads(tnfn("inspect", net, "--json").stdout)
    assert found["family"] == "gpt2"
    assert found["dimension"] == sum(found["group"].values())
    assert [block["qk_rank"] for block in found["health"]] == [8, 8]


def test_a_file_from_reparam_is_the_same_function_and_apply_makes_it(
    net: Path, tmp_path: Path
) -> None:
    other, certificate, picture = tmp_path / "b", tmp_path / "g.safetensors", tmp_path / "p.png"
    written = json.loads(tnfn("reparam", net, "--seed", 3, "--out", other, "--json").stdout)
    assert written["wrote"] == str(other)
    result = tnfn("same", net, other, "--certificate", certificate, "--plot", picture, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["answer"] == "equivalent"
    assert found["part_of_limit"] < 0.9
    assert found["outputs"]["times_rounding"] < 2.5
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert tnfn("apply", certificate, net, "--out", tmp_path / "c").exit_code == 0
    again = json.loads(tnfn("same", other, tmp_path / "c", "--json").stdout)
    assert again["answer"] in ("equivalent", "same tensors")
    assert again["largest_residual"] is None or again["largest_residual"] < 4


def test_another_function_has_a_code_and_a_witness(net: Path, tmp_path: Path) -> None:
    stranger = made.save(made.model("gpt2", seed=1), tmp_path / "b")
    result = tnfn("same", net, stranger, "--json")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["answer"] == "different"
    assert len(found["witness"]["tokens"]) == 16
    text = tnfn("same", net, stranger, "--seed", 1).stdout
    assert "different" in text
    assert "the first prefers output" in text
    assert "times what rounding does" in text
    said = found["witness"]["said"]
    assert said["first"]["word"] is None  # no tokenizer is there
    assert 0 < said["first"]["probability"] <= 1


def test_where_to_write_is_checked_first(net: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "g.safetensors"
    assert "is no folder" in str(tnfn("same", net, net, "--certificate", nowhere).exception)
    assert "should end in .png" in str(
        tnfn("same", net, net, "--plot", tmp_path / "p.bmp").exception
    )


def test_inspect_names_numbers_that_are_none(net: Path, tmp_path: Path) -> None:
    import torch

    from transformer_nfn.checkpoints import Checkpoint, rewrite

    bad = torch.full((24,), torch.nan)
    with Checkpoint(net) as checkpoint:
        names = ["transformer.h.0.ln_1.weight", "transformer.ln_f.bias"]
        rewrite(checkpoint, [(name, bad) for name in names], tmp_path / "b")
    result = tnfn("inspect", tmp_path / "b")
    assert result.exit_code == 1
    assert all(f"{name} has 24 numbers" in result.output for name in names)


def test_other_families_are_not_decided(net: Path, tmp_path: Path) -> None:
    bert = made.save(made.model("bert"), tmp_path / "b")
    assert tnfn("same", net, bert).exit_code == 4


def test_parts_that_are_no_symmetry_are_refused(net: Path, tmp_path: Path) -> None:
    result = tnfn("reparam", net, "--parts", "heads,scales", "--out", tmp_path / "b")
    assert isinstance(result.exception, CheckpointError)
    assert "scales: no symmetry" in str(result.exception)


def test_a_certificate_for_another_net_is_refused(net: Path, tmp_path: Path) -> None:
    other = made.save(made.model("bert"), tmp_path / "bert")
    tnfn("reparam", net, "--out", tmp_path / "b")
    tnfn("same", net, tmp_path / "b", "--certificate", tmp_path / "g.safetensors")
    words = ("apply", tmp_path / "g.safetensors", other, "--out", tmp_path / "c", "--other-file")
    assert "is no certificate for" in str(tnfn(*words).exception)
    assert not (tmp_path / "c").exists()


def test_settings_can_come_from_the_command_line(net: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes((net / "model.safetensors").read_bytes())
    said = ("--set", "model_type=gpt2")
    assert "say --set model_type=gpt2" in str(tnfn("inspect", bare).exception)
    assert "n_head is not known" in str(tnfn("inspect", bare, *said).exception)
    assert tnfn("inspect", bare, *said, "--set", "n_head=3").exit_code == 0
    assert tnfn("inspect", bare, "--config", net / "config.json").exit_code == 0
    assert tnfn("same", bare, net, *said, "--set-first", "n_head=3").exit_code == 0


def test_the_user_sees_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")
    command = [sys.executable, "-c", "from transformer_nfn.cli import main; main()"]
    done = subprocess.run(
        [*command, "inspect", str(tmp_path / "x.safetensors")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def pair(net: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A net, a copy of it in other coordinates, and the certificate between them."""
    home = tmp_path_factory.mktemp("pair")
    other, certificate = home / "b", home / "g.safetensors"
    tnfn("reparam", net, "--seed", 5, "--out", other)
    assert tnfn("same", net, other, "--certificate", certificate).exit_code == 0
    return net, other, certificate


def test_a_certificate_is_verified(pair: tuple[Path, Path, Path]) -> None:
    net, other, certificate = pair
    result = tnfn("verify", certificate, net, other, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["holds"] is True
    assert found["largest_residual"] < 5
    assert found["outputs_differ_by_roundings"] < 4
    again = json.loads(tnfn("verify", certificate, net, other, "--json").stdout)
    assert again["seed"] != found["seed"]
    chosen = json.loads(tnfn("verify", certificate, net, other, "--seed", 3, "--json").stdout)
    assert chosen["seed"] == 3
    text = tnfn("verify", certificate, net, other).stdout
    assert "holds" in text


def test_a_certificate_of_other_files_or_settings_does_not_hold(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    net, other, certificate = pair
    for words in (
        (other, net),
        (net, net),
        (net, other, "--set-second", "n_head=3"),
        (net, other, "--set", "activation_function=relu"),
    ):
        result = tnfn("verify", certificate, *words, "--json")
        assert result.exit_code == 3
        found = json.loads(result.stdout)
        assert found["holds"] is False
        assert "it was not found for" in found["reason"]


def test_what_is_no_certificate_is_an_error(pair: tuple[Path, Path, Path]) -> None:
    net, other, _ = pair
    result = tnfn("verify", net / "model.safetensors", net, other)
    assert "is no certificate" in str(result.exception)


def test_apply_wants_the_file_that_it_was_found_for(
    pair: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    net, _, certificate = pair
    stranger = made.save(made.model("gpt2", seed=1), tmp_path / "stranger")
    again = shutil.copytree(net, tmp_path / "again")
    weights = again / "model.safetensors"
    save_file(load_file(weights), weights, {"saved": "again"})
    for wrong, more in ((stranger, ()), (again, ()), (net, ("--set", "n_head=3"))):
        result = tnfn("apply", certificate, wrong, "--out", tmp_path / "c", *more)
        assert isinstance(result.exception, CheckpointError)
        assert "was not found for" in str(result.exception)
        assert not (tmp_path / "c").exists()
    assert tnfn("apply", certificate, net, "--out", tmp_path / "b").exit_code == 0
    words = ("--out", tmp_path / "c", "--other-file")
    assert tnfn("apply", certificate, again, *words).exit_code == 0
    assert tnfn("same", tmp_path / "b", tmp_path / "c", "--json").exit_code == 0
    # The last norm of the copy was made for this one head, which has no bias.
    words = ("--out", tmp_path / "d", "--other-file")
    result = tnfn("apply", certificate, stranger, *words)
    assert "outside.shift changes the constant of lm_head" in str(result.exception)
    assert not (tmp_path / "d").exists()


def test_equal_files_have_a_certificate_that_changes_nothing(net: Path, tmp_path: Path) -> None:
    other = shutil.copytree(net, tmp_path / "b")
    certificate = tmp_path / "g.safetensors"
    result = tnfn("same", net, other, "--certificate", certificate, "--json")
    assert json.loads(result.stdout)["certificate"] == str(certificate)
    assert tnfn("verify", certificate, net, other).exit_code == 0
    assert tnfn("apply", certificate, net, "--out", tmp_path / "c").exit_code == 0
    written = (tmp_path / "c" / "model.safetensors").read_bytes()
    assert written == (net / "model.safetensors").read_bytes()


def test_where_there_is_no_certificate_it_is_said(net: Path, tmp_path: Path) -> None:
    stranger = made.save(made.model("gpt2", seed=1), tmp_path / "b")
    certificate = tmp_path / "g.safetensors"
    result = tnfn("same", net, stranger, "--certificate", certificate)
    assert result.exit_code == 3
    assert "no certificate: the answer is 'different'" in result.stderr
    assert not certificate.exists()
