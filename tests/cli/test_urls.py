"""Commands on checkpoints take URLs wherever they take a path."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.material.gguf_files import source, write
from tests.checkpoints import made
from tests.cli.run import Ended, tnfn
from tests.hub.nets import upload
from tests.hub.test_http import Server, server
from transformer_nfn.checkpoints import TensorFiles
from transformer_nfn.stores import retries

__all__ = ["server"]

Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command; nobody waits before a store is asked again."""
    monkeypatch.setattr(retries.time, "sleep", lambda _: None)
    return lambda *words: tnfn(capsys, *words)


@pytest.fixture(params=["memory", "http", "file"])
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], str]]:
    """Puts a folder behind a URL."""
    if request.param == "memory":
        memory = request.getfixturevalue("memory")
        yield lambda home: upload(home, memory)
    elif request.param == "file":
        yield lambda home: f"file://{home}"
    else:
        one: Server = request.getfixturevalue("server")

        def serve(home: Path) -> str:
            one.home = home
            return f"http://127.0.0.1:{one.server_port}"

        yield serve


def figures(ended: Ended) -> dict[str, Any]:
    assert ended.code == 0, ended
    return dict(json.loads(ended.out))


def equal(one: Path, two: Path) -> bool:
    with TensorFiles(one) as ours, TensorFiles(two) as theirs:
        return all(ours.read(name).equal(theirs.read(name)) for name in ours)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Run], tuple[Path, str]]:
    """What commands make of local files, made once for all places: only to be read."""
    known: dict[str, tuple[Path, str]] = {}

    def made_once(family: str, run: Run) -> tuple[Path, str]:
        if family not in known:
            home = tmp_path_factory.mktemp(family)
            shards = {"max_shard_size": "15KB"} if family == "llama" else {}
            net = made.save(made.model(family), home / "a", **shards)
            figures(run("reparam", net, "--seed", 3, "--out", home / "b", "--json"))
            words = (net, home / "b", "--certificate", home / "g.safetensors", "--json")
            near = figures(run("same", *words))
            figures(run("apply", home / "g.safetensors", net, "--out", home / "d", "--json"))
            known[family] = home, near["answer"]
        return known[family]

    return made_once


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_round_of_all_commands(
    family: str,
    rounds: Callable[[str, Run], tuple[Path, str]],
    place: Callable[[Path], str],
    run: Run,
    tmp_path: Path,
) -> None:
    home, answer = rounds(family, run)
    net, url = home / "a", place(home)
    assert figures(run("inspect", f"{url}/a", "--json"))["family"] == family
    far = figures(run("same", f"{url}/a", f"{url}/b", "--json"))
    assert far["answer"] == answer
    assert figures(run("same", net, f"{url}/a", "--json"))["answer"] == "identical bytes"
    figures(run("reparam", f"{url}/a", "--seed", 3, "--out", tmp_path / "b", "--json"))
    for file in sorted((home / "b").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name
    given = (f"{url}/g.safetensors", f"{url}/a")
    figures(run("apply", *given, "--out", tmp_path / "c", "--json"))
    assert equal(tmp_path / "c", home / "d")


def test_questions_of_kinship_and_gguf_behind_a_url(
    place: Callable[[Path], str], run: Run, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    net = source("llama", home / "a")
    write(net, home / "a.gguf", "Q8_0")
    url = place(home)
    assert figures(run("kin", f"{url}/a.gguf", f"{url}/a", "--json"))["answer"] == "derived"
    assert run("explain", f"{url}/a", "--from", f"{url}/a", "--json").code == 0
    figures(run("fingerprint", f"{url}/a.gguf", "--json"))
    figures(run("convert", f"{url}/a.gguf", "--out", tmp_path / "plain", "--json"))
    far = run("same", f"{url}/a.gguf", tmp_path / "plain", "--json")
    assert figures(far)["answer"] in ("same tensors", "equivalent")


@pytest.mark.parametrize("shards", [{}, {"max_shard_size": "15KB"}])
def test_a_snapshot_of_the_hub(shards: dict[str, str], run: Run, tmp_path: Path) -> None:
    """Its files are links to blobs, in every command."""
    net = made.save(made.model("llama"), tmp_path / "net", **shards)
    cache = tmp_path / "models--owner--net"
    snapshot, blobs = cache / "snapshots" / "0123", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(net.iterdir())):
        (blobs / f"sha{number}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/sha{number}")
    assert figures(run("inspect", snapshot, "--json"))["family"] == "llama"
    assert figures(run("same", net, snapshot, "--json"))["answer"] == "identical bytes"
    assert figures(run("kin", net, snapshot, "--json"))["answer"] == "copy"
    assert run("explain", snapshot, "--from", net, "--json").code == 0
    figures(run("fingerprint", snapshot, "--json"))
    figures(run("dedup", snapshot, "--json"))
    figures(run("reparam", snapshot, "--seed", 3, "--out", tmp_path / "b", "--json"))
    figures(run("convert", snapshot, "--out", tmp_path / "c", "--json"))
    bom = tmp_path / "bom.json"
    figures(run("same", snapshot, tmp_path / "b", "--bom", bom, "--json"))
    assert bom.exists()


def test_a_config_behind_a_url(place: Callable[[Path], str], run: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    net = made.save(made.model("gpt2"), home / "a")
    bare = tmp_path / "bare.safetensors"
    bare.write_bytes((net / "model.safetensors").read_bytes())
    config = f"{place(home)}/a/config.json"
    assert run("inspect", bare).code == 1
    assert run("inspect", bare, "--config", config).code == 0
    given = ("--config-first", config, "--config-second", config)
    assert figures(run("same", bare, bare, *given, "--json"))["answer"] == "identical bytes"


def test_a_series_behind_a_url_is_in_natural_order(
    place: Callable[[Path], str], run: Run, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    for step in (100, 1000, 200, 30):
        made.zoo_net(home / f"step-{step}.safetensors", "residual", step)
    near = json.loads(run("audit", home, "--json").out)
    far = json.loads(run("audit", place(home), "--json").out)
    names = [Path(one["path"]).name for one in far["steps"]]
    assert names == [f"step-{step}.safetensors" for step in (30, 100, 200, 1000)]
    assert [one["moved"] for one in far["steps"]] == [one["moved"] for one in near["steps"]]
    assert "step-1000" in run("audit", place(home)).out


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only to be read."""
    return made.save(made.model("gpt2"), tmp_path_factory.mktemp("nets") / "net")


READERS = {
    "inspect": ["URL"],
    "same": ["URL", "NET"],
    "same, the second": ["NET", "URL"],
    "same, a config": ["NET", "NET", "--config-first", "URL"],
    "reparam": ["URL", "--out", "OUT"],
    "apply": ["URL", "NET", "--out", "OUT"],
    "apply, the checkpoint": ["URL", "URL", "--out", "OUT"],
    "audit": ["URL"],
    "fingerprint": ["URL"],
    "dedup": ["URL"],
}


@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("none://a/b", "Protocol not known"),
        ("http://[a/b", ""),
        (
            "http://127.0.0.1:1/a.safetensors",
            "ClientConnectorError: Cannot connect",
        ),
        ("memory://hub/none.safetensors", "does not exist"),
        ("file:///none/none.safetensors", "does not exist"),
        ("SERVER/none.safetensors", "does not exist"),
        ("SERVER/refused.safetensors", "credentials"),
        ("SERVER/teapot.safetensors", "418"),
    ],
)
def test_a_url_that_leads_nowhere_is_one_line(
    command: str, url: str, says: str, run: Run, server: Server, net: Path, tmp_path: Path
) -> None:
    values = {
        "URL": url.replace("SERVER", f"http://127.0.0.1:{server.server_port}"),
        "NET": str(net),
        "OUT": str(tmp_path / "out"),
    }
    words = [values.get(word, word) for word in READERS[command]]
    ended = run(command.partition(",")[0], *words)
    assert ended.code == 1, ended
    lines = [line for line in ended.err.splitlines() if not line.startswith("fingerprints ")]
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert len(lines) == 1, ended
    assert not (tmp_path / "out").exists()
