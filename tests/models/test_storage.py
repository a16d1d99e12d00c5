import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import BaseModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tests.nets import paper_nets
from tests.strategies import generator
from transformer_nfn.models import (
    FlatMLP,
    FlatMLPConfig,
    ModelFileError,
    NFNConfig,
    ProbeNet,
    ProbeNetConfig,
    StatNN,
    StatNNConfig,
    TokenNet,
    TokenNetConfig,
    TransformerNFN,
    WeightModel,
    load_model,
    register_model,
    save_model,
    storage,
)
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch, declare, free, permuted

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)


def model(seed: int = 3) -> TransformerNFN:
    return TransformerNFN(NFNConfig.of(SPEC, blocks=2, channels=(3, 2), seed=seed))


NET = paper_nets(2)
BASELINES = {
    "flat_mlp": lambda: FlatMLP(FlatMLPConfig.of(NET, hidden=3, seed=5)),
    "statnn": lambda: StatNN(StatNNConfig.of(NET, hidden=3, embedding_hidden=2, seed=5)),
    "probes": lambda: ProbeNet(ProbeNetConfig.of(NET, tokens=4, probes=3, hidden=2, seed=5)),
    "tokens": lambda: TokenNet(TokenNetConfig.of(NET, width=4, heads=2, hidden=3, seed=5)),
}


def test_a_saved_model_predicts_the_same(tmp_path: Path) -> None:
    saved = model()
    with torch.no_grad():
        saved.head.bias.fill_(0.25)
    save_model(saved, tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    net = NetBatch(WeightBatch.random(SPEC, networks=3, blocks=2, generator=generator(0)))
    assert torch.equal(loaded(net), saved(net))
    assert loaded.config == saved.config
    assert loaded.config.spec().block.halves == PAPER.halves
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("kind", sorted(BASELINES))
def test_a_saved_baseline_predicts_the_same(tmp_path: Path, kind: str) -> None:
    saved = BASELINES[kind]()
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter += 0.25
    save_model(saved, tmp_path / "m.safetensors")
    loaded = load_model(tmp_path / "m.safetensors")
    assert type(loaded) is type(saved)
    assert loaded.config == saved.config
    assert torch.equal(loaded.double()(NET), saved.double()(NET))
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        assert file.metadata()["kind"] == kind


def test_a_file_that_does_not_say_its_kind_is_the_first_one(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    assert metadata.pop("kind") == "nfn"
    save_file(load_file(path), path, metadata)
    assert load_model(path).config == model().config


def test_a_model_of_one_s_own_is_not_stored(tmp_path: Path) -> None:
    class Own(WeightModel):
        pass

    with pytest.raises(TypeError, match=r"Own cannot be stored; only .*'FlatMLP'"):
        save_model(Own(), tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_block_of_one_s_own_travels_with_the_model(tmp_path: Path) -> None:
    block = declare(
        "mlp", {"x": free("D"), "a": permuted("D_A")}, {"A": "x a", "B": "a x"}, products={}
    )
    spec = BlockSpec(block, D=3, D_A=5)
    save_model(TransformerNFN(NFNConfig.of(spec, blocks=1)), tmp_path / "m.safetensors")
    assert load_model(tmp_path / "m.safetensors").config.spec() == spec


def test_the_file_is_plain_safetensors_with_a_readable_config(tmp_path: Path) -> None:
    save_model(model(), tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        metadata = file.metadata()
    assert metadata["format"] == "transformer-nfn/1"
    assert json.loads(metadata["config"])["channels"] == [3, 2]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("transformer_nfn.models.storage.save", full)
    with pytest.raises(OSError, match="no space left"):
        save_model(model(4), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def rewrite(path: Path, kind: str | None = None, **config: Any) -> None:
    """Change the config in a saved file, and leave its tensors."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    metadata["config"] = json.dumps({**json.loads(metadata["config"]), **config})
    metadata["kind"] = kind or metadata["kind"]
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    "config",
    [
        {"channels": [3, 3]},
        {"channels": [10**9], "max_parameters": 10**18},
        {"channels": [1] * 100_000},
        {"blocks": 10**9},
        {"hidden": 10**15},
        {"embedding": 10**18},
        {"sizes": {"D": 10**12, "heads": 2, "D_k": 2, "D_v": 3, "D_A": 5}},
        {"sizes": {}},
        {"block": {}},
        {"block": {"name": "x", "axes": 3, "tensors": {}, "products": {}}},
        {"unknown": 1},
    ],
    ids=lambda config: str(config)[:40],
)
def test_files_whose_config_lies_are_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    rewrite(path, **config)
    with pytest.raises(ModelFileError, match=r"m\.safetensors"):
        load_model(path)


HUGE = (10**9, 10**15, 10**18, 10**30)
NUMBERS = {
    "flat_mlp": ("blocks", "embedding", "classifier", "hidden"),
    "statnn": ("tensors", "embedding", "classifier_tensors", "hidden", "embedding_hidden"),
    "probes": ("probes", "tokens", "inputs", "classes", "hidden"),
    "tokens": ("numbers", "width", "layers", "hidden"),
}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (kind, {name: number})
        for kind, names in NUMBERS.items()
        for name in names
        for number in (0, 1, *HUGE)
    ]
    + [(kind, dict.fromkeys(names, number)) for kind, names in NUMBERS.items() for number in HUGE]
    + [(kind, {"seed": 10**30}) for kind in NUMBERS]
    + [(kind, {"unknown": 1}) for kind in NUMBERS],
    ids=str,
)
def test_baselines_whose_config_lies_are_refused(
    tmp_path: Path, kind: str, config: dict[str, Any]
) -> None:
    path = tmp_path / "m.safetensors"
    save_model(BASELINES[kind](), path)
    rewrite(path, **config)
    with pytest.raises(ModelFileError, match=r"m\.safetensors"):
        load_model(path)


def test_files_whose_kind_lies_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    rewrite(path, kind="forest")
    with pytest.raises(ModelFileError, match=r"of kind 'forest', expected one of .*'statnn'"):
        load_model(path)
    for kind in BASELINES:
        rewrite(path, kind=kind)
        with pytest.raises(ModelFileError, match="no valid config"):
            load_model(path)


def test_a_config_nested_too_deep_is_refused(tmp_path: Path) -> None:
    metadata = {"format": "transformer-nfn/1", "config": "[" * 100_000}
    save_file({"w": torch.zeros(2)}, tmp_path / "c", metadata)
    with pytest.raises(ModelFileError, match="no valid config"):
        load_model(tmp_path / "c")


def test_a_declaration_with_too_many_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    labels = "abfghijkmopqrsuvwxyz"
    axes = {a: {"kind": "permuted", "size": "D", "per": ""} for a in labels}
    block = {"name": "x", "axes": axes, "tensors": {"W": " ".join(labels)}, "products": {}}
    rewrite(path, block=block, sizes={"D": 2})
    with pytest.raises(ModelFileError, match="has 20 axes, more than 6"):
        load_model(path)
    many = {f"W{i}": "a" for i in range(40)}
    block = {"name": "x", "axes": {"a": axes["a"]}, "tensors": many, "products": {}}
    rewrite(path, block=block, sizes={"D": 2})
    with pytest.raises(ModelFileError, match="make repeated parts an axis"):
        load_model(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no model at"):
        load_model(tmp_path / "nothing")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(ModelFileError, match="is not a safetensors file"):
        load_model(tmp_path / "text")
    save_file({"w": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ModelFileError, match="its metadata has format None"):
        load_model(tmp_path / "other.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "c", {"format": "transformer-nfn/1"})
    with pytest.raises(ModelFileError, match="no valid config"):
        load_model(tmp_path / "c")


class OwnConfig(BaseModel):
    width: int


class Own(WeightModel):
    def __init__(self, config: OwnConfig) -> None:
        super().__init__()
        self.config = config
        self.linear = torch.nn.Linear(config.width, 1)


def test_models_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "KINDS", dict(storage.KINDS))
    path = tmp_path / "own.safetensors"
    with pytest.raises(TypeError, match="register_model"):
        save_model(Own(OwnConfig(width=3)), path)
    register_model("own", OwnConfig, Own)
    register_model("own", OwnConfig, Own)
    model = Own(OwnConfig(width=3))
    save_model(model, path)
    again = load_model(path)
    assert isinstance(again, Own)
    assert torch.equal(again.linear.weight, model.linear.weight)
    for dtype in (torch.float64, torch.bfloat16):
        save_model(model.to(dtype), path)
        assert load_model(path).linear.weight.dtype == dtype
    tensors = {name: tensor.to(torch.int8) for name, tensor in model.state_dict().items()}
    with safe_open(path, framework="pt") as file:
        save_file(tensors, tmp_path / "whole.safetensors", file.metadata())
    with pytest.raises(ModelFileError, match=r"'linear.*' is torch.int8"):
        load_model(tmp_path / "whole.safetensors")
    for wrong in ((dict, Own), (OwnConfig, int)):
        with pytest.raises(TypeError, match=r"no pydantic model|no WeightModel"):
            register_model("wrong", *wrong)
    with pytest.raises(ValueError, match="'nfn' is the name of TransformerNFN already"):
        register_model("nfn", OwnConfig, Own)
    monkeypatch.setattr(storage, "KINDS", {"nfn": storage.KINDS["nfn"]})
    with pytest.raises(ModelFileError, match="call register_model first"):
        load_model(path)
