"""What a stranger saw in the first hour, and what is said now."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import made
from tests.cli.run import tnfn
from transformer_nfn.checkpoints import Checkpoint, rewrite


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.save(made.model("gpt2"), tmp_path_factory.mktemp("nets") / "net")


def changed(net: Path, to: Path, name: str, change: float) -> Path:
    """A net with one tensor changed."""
    with Checkpoint(net) as checkpoint:
        rewrite(checkpoint, [(name, checkpoint.files.read(name) + change)], to)
    return to


def pooled(to: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A BERT with a pooler, and its tensors."""
    from transformers import BertModel

    torch.manual_seed(0)
    net = made.save(BertModel(made.model("bert").config), to)
    return net, load_file(net / "model.safetensors")


def test_a_difference_is_named_by_a_tensor_of_the_file(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "transformer.h.0.mlp.c_fc.bias"
    assert name in load_file(net / "model.safetensors")
    other = changed(net, tmp_path / "other", name, 0.5)
    ended = tnfn(capsys, "same", net, other, "--seed", 1)  # on some inputs both prefer the same
    assert ended.code == 3
    assert f"no symmetry explains {name}, neuron " in ended.out
    assert "{" not in ended.out  # no raw JSON: a witness is told in words
    assert "the first prefers output" in ended.out


def test_a_missing_output_head_is_said_and_no_equal_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, tensors = pooled(tmp_path / "net")
    pooled(tmp_path / "other")
    kept = {name: value for name, value in tensors.items() if "pooler" not in name}
    assert len(kept) == len(tensors) - 2
    save_file(kept, tmp_path / "other" / "model.safetensors", metadata={"format": "pt"})
    ended = tnfn(capsys, "same", net, tmp_path / "other")
    assert "only the first has" in ended.out
    assert ") against (" not in ended.out


def test_same_tensors_have_a_certificate_and_a_word_on_the_picture(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Checkpoint(net) as checkpoint:
        rewrite(checkpoint, [], tmp_path / "copy")
    words = ["--certificate", tmp_path / "g.safetensors", "--plot", tmp_path / "p.png"]
    ended = tnfn(capsys, "same", net, tmp_path / "copy", *words)
    assert ended.code == 0
    assert (tmp_path / "g.safetensors").exists()
    assert "no picture: the answer is 'same" in ended.err or "identical bytes" in ended.err


def test_a_copy_without_its_output_head_is_near(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An int8 copy without its pooler was shown at 0.52: missing parts counted as 2."""
    _, tensors = pooled(tmp_path / "nets" / "a")
    pooled(tmp_path / "nets" / "b")
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: value * (1 + 0.005 * torch.randn(value.shape, generator=generator))
        if value.is_floating_point()
        else value
        for name, value in tensors.items()
        if "pooler" not in name
    }
    save_file(noisy, tmp_path / "nets" / "b" / "model.safetensors", metadata={"format": "pt"})
    ended = tnfn(capsys, "dedup", tmp_path / "nets")
    row = next(line for line in ended.out.splitlines() if "related to" in line)
    assert float(row.split()[-2]) < 0.05
    assert "near copy" not in ended.out


def test_a_setting_is_shown_as_it_was_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = made.save(made.model("llama"), tmp_path / "net")
    said = tnfn(capsys, "inspect", net).out
    assert "eps 1e-" in said
    assert "99999" not in said


def test_attention_heads_and_output_heads_have_different_names(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = tnfn(capsys, "inspect", net).out
    assert "output heads  lm_head, tied to the embedding" in said


def test_every_line_of_the_list_of_commands_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ((), ("zoo",), ("bench",)):
        said = tnfn(capsys, *group, "--help").out
        assert "..." not in said.replace("[ARGS]...", "")
        commands = [
            line for line in said.splitlines() if line.startswith("│ ") and "--" not in line
        ]
        assert commands


def test_completion_can_be_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--install-completion" in tnfn(capsys, "--help").out
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    said = tnfn(capsys, "--show-completion", "bash").out
    assert "_COMPLETE" in said  # behind the name of the program, which is that of a test's too
