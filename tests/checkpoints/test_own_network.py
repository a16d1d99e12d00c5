"""The page "Declare your own network": all of it, on a network that no family of ours is."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from tests.cli.run import Ended, tnfn
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, load_family
from transformer_nfn.checkpoints.families import installed, recognise
from transformer_nfn.group import assert_equivariant
from transformer_nfn.identity import run
from transformer_nfn.layers import EquivariantLayer

PAGE = Path(__file__).parents[2] / "docs" / "understand" / "networks.md"
TABLE, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
Command = Callable[..., Ended]
CONFIG = {"model_type": "ours", "heads": 4, "groups": 2, "width": 24, "hidden": 32, "layers": 2}
WORDS, PLACES = 40, 12


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(24, eps=1e-6), nn.RMSNorm(24, eps=1e-6)
        self.wq, self.wo, self.up, self.down = (
            nn.Linear(i, o, bias=False) for i, o in ((24, 24), (24, 24), (24, 32), (32, 24))
        )
        self.wk, self.wv = nn.Linear(24, 12, bias=False), nn.Linear(24, 12, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm1(x)
        q = self.wq(n).unflatten(-1, (4, 6)).transpose(1, 2)
        k, v = (w(n).unflatten(-1, (2, 6)).transpose(1, 2) for w in (self.wk, self.wv))
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Ours(nn.Module):
    """The network as somebody wrote it, with torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, 24), nn.Embedding(PLACES, 24)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.out = nn.RMSNorm(24, eps=1e-6), nn.Linear(24, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.out(self.norm(x))


def write(net: Ours, folder: Path) -> Path:
    folder.mkdir()
    save_file(net.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def net() -> Ours:
    torch.manual_seed(0)
    made = Ours()
    with torch.no_grad():
        for name, value in made.named_parameters():
            value.copy_(torch.randn_like(value) * 0.3 + ("norm" in name))
    return made


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "ours.py"
    path.write_text(TABLE)
    return path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def run_command(*words: object, code: int = 0) -> Ended:
        ended = tnfn(capsys, *words)
        assert ended.code == code, ended
        return ended

    return run_command


def logits(net: Ours, folder: Path, ids: Tensor) -> Tensor:
    net.load_state_dict(load_file(folder / "model.safetensors"))
    with torch.no_grad():
        return net.double()(ids)


def test_the_table_fits_a_screen() -> None:
    lines = [line for line in TABLE.splitlines() if line.strip()]
    assert len(lines) < 60


def test_the_table_computes_what_the_network_does(net: Ours, table: Path, tmp_path: Path) -> None:
    model = write(net, tmp_path / "model")
    ids = torch.randint(WORDS, (3, PLACES), generator=torch.Generator().manual_seed(1))
    with Checkpoint(model, family=load_family(str(table))) as checkpoint:
        found = run(checkpoint, ids)["out"]
    assert (found - logits(net, model, ids)).abs().max() < 1e-12 * found.abs().max()


def test_all_commands_of_the_page(net: Ours, table: Path, tmp_path: Path, command: Command) -> None:
    model, moved = write(net, tmp_path / "model"), tmp_path / "moved"
    own = ("--family", table, "--json")
    shown = json.loads(command("inspect", model, *own).out)
    assert shown["family"] == "ours"
    assert set(shown["group"]) >= {"heads", "qk", "vo", "neurons", "norms", "basis"}
    command("reparam", model, "--out", moved, "--family", table)
    ids = torch.randint(WORDS, (3, PLACES), generator=torch.Generator().manual_seed(1))
    wanted = logits(net, model, ids)
    assert (logits(net, moved, ids) - wanted).abs().max() < 1e-4 * wanted.abs().max()
    certificate = tmp_path / "g.safetensors"
    verdict = json.loads(command("same", model, moved, "--certificate", certificate, *own).out)
    assert verdict["answer"] == "equivalent"
    assert json.loads(command("verify", certificate, model, moved, *own).out)["holds"]
    prints = json.loads(command("fingerprint", model, moved, *own).out)["fingerprints"]
    one, two = (torch.tensor([v for part in p["parts"].values() for v in part]) for p in prints)
    assert (one - two).norm() < 1e-4 * one.norm()


def test_one_changed_neuron_is_another_function(
    net: Ours, table: Path, tmp_path: Path, command: Command
) -> None:
    model = write(net, tmp_path / "model")
    with torch.no_grad():
        net.layers[1].up.weight[5] *= 1.2
    other = write(net, tmp_path / "other")
    result = command("same", model, other, "--family", table, "--json", code=3)
    assert "neuron 5" in json.loads(result.out)["where"]


def test_its_blocks_go_into_layers(net: Ours, table: Path, tmp_path: Path) -> None:
    with Checkpoint(write(net, tmp_path / "model"), family=load_family(str(table))) as checkpoint:
        batch = checkpoint.batch(torch.float64)
        layer = EquivariantLayer(checkpoint.spec, blocks=2, inputs=1, outputs=3).double()
    assert_equivariant(layer, batch, generator=torch.Generator().manual_seed(0))


def test_a_tensor_that_the_table_does_not_name_is_refused(
    net: Ours, table: Path, tmp_path: Path, command: Command
) -> None:
    model = write(net, tmp_path / "model")
    tensors = load_file(model / "model.safetensors") | {"layers.1.wz.weight": torch.ones(2)}
    save_file(tensors, model / "model.safetensors")
    shown = command("inspect", model, "--family", table, code=1).err
    assert "'layers.1.wz.weight' stands in a block, and ours has no such tensor" in shown


def test_without_the_table_it_is_of_no_family(net: Ours, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no family we know.*docs/understand/networks.md"):
        Checkpoint(write(net, tmp_path / "model"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        ("\x00", "cannot be run"),
        ("def", "cannot be run: SyntaxError"),
        ("x = 1", "should have one Family at its top level, it has: none"),
        (TABLE + "\nTWO = __import__('dataclasses').replace(OURS, name='two')", "ours, two"),
    ],
)
def test_a_file_without_one_table_is_one_line(
    text: str, wanted: str, tmp_path: Path, command: Command
) -> None:
    path = tmp_path / "table.py"
    path.write_text(text)
    shown = command("inspect", tmp_path, "--family", path, code=1).err
    assert wanted in shown
    assert "Traceback" not in shown
    missing = command("inspect", tmp_path, "--family", tmp_path / "none.py", code=1).err
    assert "cannot be run: FileNotFoundError" in missing


def test_a_file_of_another_family_is_not_the_user_s(table: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is no ours: it has not all of layers\.0\.wq"):
        recognise(["wte.weight"], "here", load_family(str(table)))


class _Entry:
    value = "somewhere:OURS"

    def __init__(self, found: object) -> None:
        self._found = found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def test_families_of_other_packages(
    net: Ours, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ours = write(net, tmp_path / "model"), load_family(str(table))

    def give(found: object) -> None:
        installed.cache_clear()
        monkeypatch.setattr(
            "transformer_nfn.checkpoints.families._entries", lambda places: [_Entry(found)]
        )

    give(ours)
    with Checkpoint(model) as checkpoint:
        assert checkpoint.family is ours
    for found, wanted in ((3, "is no Family"), (ImportError("gone"), "cannot be loaded")):
        give(found)
        with pytest.raises(CheckpointError, match=wanted):
            Checkpoint(model)
    installed.cache_clear()


def test_a_table_may_be_made_of_one_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from transformer_nfn.checkpoints.families.encoders.bert import BERT\n"
        "MINE = replace(BERT, name='mine')\n"
    )
    assert load_family(str(path)).name == "mine"
