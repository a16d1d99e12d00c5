"""What a checkpoint is, to the byte."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.hub.nets import upload
from transformer_nfn.checkpoints import Checkpoint, Digests


def digests(path: Path | str, **given: object) -> Digests:
    with Checkpoint(path, **given) as checkpoint:  # type: ignore[arg-type]
        return Digests.of(checkpoint)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("digests")
    return made.save(made.model("gpt2"), home / "a", max_shard_size="15KB")


def test_they_are_those_of_sha256sum_near_and_far(net: Path, memory: str) -> None:
    found = digests(net)
    assert found.files == {
        path.name: sha256(path.read_bytes()).hexdigest() for path in net.glob("*.safetensors")
    }
    assert len(found.files) > 1
    assert found.config == sha256((net / "config.json").read_bytes()).hexdigest()
    assert found.options == "{}"
    upload(net, memory)
    assert digests(memory) == found
    assert found.difference(found) is None


def test_a_byte_of_a_shard_or_of_the_config_and_an_option_count(net: Path, tmp_path: Path) -> None:
    found = digests(net)
    other = shutil.copytree(net, tmp_path / "b")
    shard = sorted(other.glob("*.safetensors"))[1]
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    difference = found.difference(digests(other))
    assert difference is not None
    assert shard.name in difference
    third = shutil.copytree(net, tmp_path / "c")
    config = json.loads((third / "config.json").read_text())
    (third / "config.json").write_text(json.dumps(config))  # the same, spelled otherwise
    assert "config.json" in str(found.difference(digests(third)))
    named = digests(third, config=net / "config.json")
    assert found.difference(named) is None
    options = digests(net, options={"n_head": 3, "initializer_range": [1.5, None]})
    assert options.options == '{"initializer_range":[1.5,null],"n_head":3}'
    assert "options" in str(found.difference(options))


def test_names_of_files_do_not_count_and_a_zoo_net_has_no_config(tmp_path: Path) -> None:
    one = made.zoo_net(tmp_path / "one.safetensors")
    two = shutil.copy(one, tmp_path / "two.safetensors")
    assert digests(one).config is None
    assert digests(one).difference(digests(two)) is None
