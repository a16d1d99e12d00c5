"""`tnfn inspect`, `reparam`, `same` and `apply`, as a user runs them."""

import json
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


@pytest.mark.parametrize("command", ["inspect", "same", "reparam", "apply"])
def test_the_help_has_an_example_and_json(command: str) -> None:
    text = tnfn(command, "--help").stdout
    assert f"Example: tnfn {command}" in text
    assert "--json" in text


def test_inspect_says_what_a_file_is(net: Path) -> None:
    result = tnfn("inspect", net)
    assert result.exit_code == 0
    assert "gpt2, " in result.stdout
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
    text = tnfn("same", net, stranger).stdout
    assert "different" in text
    assert "times_rounding" in text


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
    result = tnfn("apply", tmp_path / "g.safetensors", other, "--out", tmp_path / "c")
    assert "is no certificate for" in str(result.exception)
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
