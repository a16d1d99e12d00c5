"""Mistakes in a table of one's own: each is said in one line, and none makes another function."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.checkpoints.test_own_network import PLACES, TABLE, WORDS, Ours, logits, write
from tests.cli.run import tnfn
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, load_family
from transformer_nfn.checkpoints.families import FAMILIES
from transformer_nfn.checkpoints.tables import check_table
from transformer_nfn.identity import run
from transformer_nfn.space import Attention, DeclarationError, Half

#: What is changed on the page's table, into what, and what is then said.
MISTAKES = {
    "a norm that is none": ('Half(attention, "rms")', 'Half(attention, "layernorm")', "norm of a"),
    "another norm than the keys say": ('"norm": "rms"', '"norm": "layer"', "block has the norm"),
    "another activation": ('"activation": "gelu"', '"activation": "relu"', "has the activation"),
    "no such activation": ('Mlp("gelu")', 'Mlp("gleu")', "has the activation 'gleu'"),
    "a matrix is missing": ('linear("wk", "K", "g k x"),', "", "none of matrices is K"),
    "a matrix is there twice": ('"wv", "V", "g v x"', '"wv", "K", "g k x"', "more than one of mat"),
    "no such axis": ('"g k x"', '"g k y"', "K should have 'g x k' in some order"),
    "an axis too few": ('"g k x"', '"k x"', "wk.weight has the axes 'k x'"),
    "no such tensor": ('"K", "g k x"', '"KK", "g k x"', "has no tensor 'KK', only Q, K, V"),
    "no groups": ("grouped=True, ", "", "wq.weight has the axes 'g m k x'"),
    "a norm too few": ('("norm1", "norm2")', '("norm1",)', "norms has 1 names, its block 2"),
    "no comma": ('("layers.0.wq.weight", "place.weight")', '("place.weight")', "probes should be"),
    "no tuple": ('(Reader("out", bias=False),)', 'Reader("out")', "readers should be a tuple"),
    "no inputs": (
        'Words("word.weight"), Positions("place.weight")',
        "",
        "says what the network is given",
    ),
    "two numbers": ('"layers.{}."', '"layers.{}.{}."', "one {} for the number"),
    "a setting is missing": ('"norm": "rms", ', "", "nothing says 'norm'"),
    "no such setting": ('"heads", int', '"headz", int', "there is no setting 'headz'"),
    "no such size": ('"width": "D"', '"width": "DD"', "width is the size 'DD'; sizes are D,"),
    "keys of no model_type": ('{"ours": KEYS}', "KEYS", "a Keys for each model_type"),
    "no block": ("return compose", "compose", "should return what compose() gives"),
    "a block that fails": ("return compose", "return settings.no", "cannot be run: AttributeError"),
    "it ends the program": ("OURS = Family", "raise SystemExit(3)\nOURS = Family", "SystemExit(3)"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return write(Ours(), tmp_path_factory.mktemp("own") / "model")


def changed(path: Path, *changes: tuple[str, str]) -> Path:
    text = TABLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line(
    mistake: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, said = MISTAKES[mistake]
    table = changed(tmp_path / "table.py", (old, new))
    ended = tnfn(capsys, "same", model, model, "--family", table)
    assert (ended.code, ended.out) == (1, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1


def test_tables_that_are_shipped_have_none() -> None:
    for family in FAMILIES.values():
        check_table(family)


def test_a_table_that_is_given_in_python_is_checked_too(model: Path) -> None:
    llama = FAMILIES["llama"]
    with pytest.raises(CheckpointError, match="'llama': prefixes should be a tuple of str"):
        Checkpoint(model, family=replace(llama, prefixes=""))
    with pytest.raises(DeclarationError, match="'layer' or 'rms', not 'LayerNorm'"):
        Half(Attention(), "LayerNorm")  # type: ignore[arg-type]


def test_matrices_stand_in_any_order_and_a_bias_more(tmp_path: Path) -> None:
    """Another name for the block, one more tensor, and the queries last."""
    query = '        linear("wq", "Q", "g m k x"),\n'
    last = '        linear("down", "B", "x a", "bB"),\n'
    table = changed(
        tmp_path / "table.py",
        (query, ""),
        (last, last + query),
        ('compose("ours"', 'compose("mine"'),
    )
    torch.manual_seed(0)
    net = Ours()
    for layer in net.layers:
        layer.wo.bias = torch.nn.Parameter(torch.randn(24))
    model = write(net, tmp_path / "model")
    assert "layers.0.wo.bias" in load_file(model / "model.safetensors")
    ids = torch.randint(WORDS, (3, PLACES), generator=torch.Generator().manual_seed(1))
    with Checkpoint(model, family=load_family(str(table))) as checkpoint:
        assert checkpoint.spec.block.name == "mine"
        found = run(checkpoint, ids)["out"]
    wanted = logits(net, model, ids)
    assert (found - wanted).abs().max() < 1e-12 * wanted.abs().max()
