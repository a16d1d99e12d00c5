"""Whatever a user gets wrong, every command says so in a line or two, and shows no traceback.

A command without a line in `RIGHT` fails the first test.
"""

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from tests.bench.conftest import write_zoo
from tests.bench.small import small_examples
from tests.cli.run import Ended, tnfn
from tests.zoo.conftest import write_tiny
from transformer_nfn.bench import sides_table
from transformer_nfn.cli.main import app
from transformer_nfn.zoo import Recipe, export
from transformer_nfn.zoo.build import _task
from transformer_nfn.zoo.dataset import Zoo, ok
from transformer_nfn.zoo.format.schema import FORMAT

#: Each command as it is meant; of the names in capitals `house` has all but the new ones.
RIGHT = {
    "zoo plan": "RECIPE --data NETS",
    "zoo build": "RECIPE --out NEW_FOLDER --data NETS",
    "zoo import": "PUBLISHED --task mnist --out NEW_FOLDER",
    "zoo from-checkpoints": "NETS ACCURACIES --out NEW_FOLDER",
    "zoo info": "ZOO",
    "zoo verify": "ZOO",
    "zoo card": "ZOO",
    "zoo publish": "ZOO --out NEW_FOLDER",
    "zoo export": "ZOO --out NEW_FOLDER --run 0 --checkpoint 3",
    "bench models": "",
    "bench plan": "--zoo ZOO --models hyperparameters --splits 1",
    "bench run": "--zoo ZOO --models hyperparameters --splits 1 --no-report --out NEW_FOLDER",
    "bench report": "BENCH --to NEW_FOLDER --notes NOTES",
    "bench fit": "--zoo ZOO --model hyperparameters --name new",
    "bench rows": "ZOO --out NEW.parquet",
    "bench score": "PREDICTIONS --zoo ZOO --name new --out NEW_FOLDER",
    "rank": "NETS --model MODEL",
    "inspect": "NET --family FAMILY",
    "families": "llama",
    "same": "NET OTHER --certificate NEW.safetensors --plot NEW.png",
    "kin": "NET OTHER --plot NEW.png --units UNITS",
    "explain": "NET --from OTHER",
    "convert": "NET --out NEW_FOLDER",
    "reparam": "NET --out NEW_FOLDER --family FAMILY",
    "apply": "CERTIFICATE NET --out NEW_FOLDER",
    "verify": "CERTIFICATE NET OTHER",
    "fingerprint": "NETS --out NEW.parquet",
    "dedup": "NETS --to NEW.csv --plot NEW.png --tree NEW.dot",
    "nearest": "NET PRINTS",
    "audit": "NETS",
}
#: Of these a right call is not made: not all that they are given here is right.
NOT_RUN = ("zoo import", "zoo plan", "zoo build", "zoo verify")
NOT_RUN += ("bench report", "inspect", "reparam", "kin")
INPUT = re.compile(
    r"\b(NETS?|OTHER|ZOO|BENCH|MODEL|PRINTS|CERTIFICATE|RECIPE|PUBLISHED|NOTES|FAMILY|UNITS|PREDICTIONS|ACCURACIES)\b"
)
OUTPUT = re.compile(r"\bNEW(_FOLDER|\.\w+)\b")


def commands(group: object = None, before: str = "") -> Iterator[str]:
    """All commands there are, by their words."""
    found = get_command(app) if group is None else group
    for name, one in sorted(getattr(found, "commands", {}).items()):
        if hasattr(one, "commands"):
            yield from commands(one, f"{before}{name} ")
        else:
            yield before + name


def test_every_command_is_here():
    assert sorted(RIGHT) == sorted(commands())


class House(dict[str, str]):
    """Paths by their names in `RIGHT`."""

    home: Path


def made_up_predictions(zoo: str) -> str:
    """Of the test rows of the first split, as CSV."""
    rows = sides_table(zoo, 0, "epochs", None).to_pylist()
    tested = (row for row in rows if row["side"] == "test")
    lines = (f"{row['run_id']},{row['checkpoint']},{row['epoch']}" for row in tested)
    return "\n".join(["run_id,checkpoint,predicted", *lines])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    home = tmp_path_factory.mktemp("house")
    found = House(
        {word: str(home / word.lower()) for word in ("NETS", "ZOO", "BENCH", "MODEL", "PRINTS")}
    )
    found.home = home
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    patch.setenv("TNFN_MODELS", str(home / "models"))
    patch.delenv("TNFN_DATA", raising=False)
    write_zoo(Path(found["ZOO"]), small_examples(60))
    recipe = Recipe.load(write_tiny(home)).model_dump(mode="json", exclude={"runs"})
    described = json.dumps({"format": FORMAT, "recipe": recipe})
    (Path(found["ZOO"]) / "zoo.json").write_text(described)
    write_zoo(home / "tiny", small_examples(12))
    export(Zoo(found["ZOO"]), ok, found["NETS"])
    files = sorted(Path(found["NETS"]).iterdir())
    for file in files[3:]:
        file.unlink()
    found |= {"NET": str(files[0]), "OTHER": str(home / "other.safetensors")}
    found |= {"CERTIFICATE": str(home / "certificate.safetensors")}
    for word, text in {
        "RECIPE.toml": "digits",
        "PUBLISHED.csv": "run",
        "NOTES.md": "# Notes",
        "FAMILY.py": "1 / 0",
        "UNITS.toml": "x = 1",
        "ACCURACIES.csv": "\n".join(["path,accuracy", *(f"{one.name},0.5" for one in files[:3])]),
        "PREDICTIONS.csv": made_up_predictions(found["ZOO"]),
    }.items():
        (home / word.lower()).write_text(text)
        found[word.partition(".")[0]] = str(home / word.lower())
    yield found
    patch.undo()


@pytest.fixture
def built(house: House, capsys: pytest.CaptureFixture[str]) -> House:
    """The same with what commands make, made once."""
    if not Path(house["PRINTS"]).exists():
        words = f"--zoo {house['ZOO']} --splits 1 --models statnn,hyperparameters --no-report"
        for line in (
            f"reparam {house['NET']} --out {house['OTHER']}",
            f"same {house['NET']} {house['OTHER']} --certificate {house['CERTIFICATE']}",
            f"bench run {words} --out {house['BENCH']}",
            f"bench fit --zoo {house['ZOO']} --model statistics --name model",
            f"fingerprint {house['NETS']} --out {house['PRINTS']}",
        ):
            ended = tnfn(capsys, *line.split())
            assert ended.code == 0, (line, ended)
        os.rename(house.home / "models" / "model", house["MODEL"])
    return house


def filled(words: str, house: House, out: Path) -> list[str]:
    """The words of a command, with the paths of the house and places for what is new."""
    named = [INPUT.sub(lambda found: house[found[0]], word) for word in words.split()]
    return [OUTPUT.sub(lambda found: str(out / found[0].lower()), word) for word in named]


def check(ended: Ended, *about: object) -> None:
    """One or two lines that say what is wrong, or how the command is used."""
    assert ended.code in (1, 2), (about, ended)
    assert "Traceback" not in ended.err, (about, ended)
    if ended.code == 2:
        assert re.search("Usage: |Error: ", ended.err), (about, ended)
        return
    progress = re.compile(r"calibrating |.* elapsed \d|fingerprints ")
    lines = [one for one in ended.err.splitlines() if not progress.match(one)]
    assert 1 <= len(lines) <= 2, (about, ended)
    assert lines[0].startswith("error: "), (about, ended)


def bad_inputs(home: Path) -> dict[str, Path]:
    """What is none of the files and folders that commands read."""
    home.mkdir()
    places = {
        "missing": home / "missing",
        "under a file": home / "empty.safetensors" / "x",
        "empty file": home / "empty.safetensors",
        "noise": home / "noise.safetensors",
        "empty folder": home / "nothing",
        "foreign folder": home / "foreign",
        "no UTF-8": home / os.fsdecode(b"\xff\xfe.safetensors"),
        "two lines": home / "two\nlines",
        "a device": Path("/dev/null"),
    }
    places["empty file"].touch()
    places["noise"].write_bytes(bytes(range(256)) * 4)
    places["no UTF-8"].write_bytes(b"\xff" * 100)
    places["two lines"].write_bytes(b"")
    places["empty folder"].mkdir()
    for name in ("cells", "data", "metadata"):
        (places["foreign folder"] / name).mkdir(parents=True)
        (places["foreign folder"] / name / "a.parquet").write_bytes(b"PAR1 but no more")
    for name in ("config", "zoo", "predictor", "adapter_config", "task", "splits"):
        (places["foreign folder"] / f"{name}.json").write_text("[1, 2]")
    (places["foreign folder"] / "model.safetensors").write_bytes(b"\x08" + bytes(7) + b"[]      ")
    return places


@pytest.mark.parametrize("command", [one for one in RIGHT if INPUT.search(RIGHT[one])])
def test_an_input_that_is_none(command, built, tmp_path, capsys):
    bad = bad_inputs(tmp_path / "bad")
    words = RIGHT[command].split()
    for place, word in enumerate(words):
        if not INPUT.fullmatch(word):
            continue
        for kind, path in bad.items():
            if word == "NOTES" and kind in ("empty file", "two lines", "a device"):
                continue  # which is a page without words
            given = filled(RIGHT[command], built, tmp_path)
            given[place] = str(path)
            check(tnfn(capsys, *command.split(), *given), command, word, kind)


def bad_outputs(home: Path, wanted: str) -> dict[str, Path]:
    """Where nothing can be written: wanted is the ending of a file, or that of a folder."""
    home.mkdir()
    (home / "file").write_text("here")
    ending = wanted if wanted.startswith(".") else ""
    places = {
        "under a file": home / "file" / f"new{ending}",
        "in /proc": Path(f"/proc/new{ending}"),
    }
    if ending:
        places["no such folder"] = home / "none" / f"new{ending}"
        places["a folder"] = home / f"folder{ending}"
        places["a folder"].mkdir()
        places["another ending"] = home / "new.none"
    else:
        places["a file"] = home / "file"
    return places


@pytest.mark.parametrize("command", [one for one in RIGHT if OUTPUT.search(RIGHT[one])])
def test_an_output_that_cannot_be_written(command, built, tmp_path, capsys):
    words = RIGHT[command].split()
    for place, word in enumerate(words):
        if (wanted := OUTPUT.fullmatch(word)) is None:
            continue
        home = tmp_path / f"bad{place}"
        for kind, path in bad_outputs(home, wanted[1]).items():
            if command == "fingerprint" and kind == "a folder":
                continue  # into which it writes
            given = filled(RIGHT[command], built, tmp_path)
            given[place] = str(path)
            check(tnfn(capsys, *command.split(), *given), command, word, kind)
            assert (home / "file").read_text() == "here"


#: Values that no option means, of each command; the words of `RIGHT` come before.
NONSENSE = {
    "zoo plan": ["--runs 0", "--runs -3", "--cpus 0", "--gpu-speed nan", "--gpu-speed 0 --gpus 1"],
    "zoo build": [
        "--runs 999999999",
        "--device tpu",
        "--device cuda",
        "--seeds 7",
        "--ray nowhere",
    ],
    "zoo import": ["--limit -1", "--task cifar"],
    "zoo from-checkpoints": ["more", "--out ZOO", "--limit 3"],
    "zoo export": ["--run -1", "--checkpoint none", "--min-accuracy nan", "--min-accuracy 2"],
    "bench plan": ["--runs 0", "--splits 6", "--models oracle", "--models ,", "--experiment x"],
    "bench run": [
        "--runs -1",
        "--runs 5",
        "--models nfn,oracle",
        "--device cuda",
        "--experiment across",
        "--test-zoo ZOO",
        "--checkpoints first",
        "--models mlp --runs 30 --experiment sizes --zoo TINY",
    ],
    "bench fit": ["--split 9", "--runs 0", "--model oracle", "--name ../up", "--device tpu"],
    "bench rows": ["--split 5", "--split x", "--checkpoints first", "--runs 0", "--out x.txt"],
    "bench score": [
        "--split 1",
        "--split -1",
        "--name nfn",
        "--name ../up",
        "--tier all",
        "--runs 30",
        "--checkpoints last",
        "--zoo TINY",
        "--out NOTES",
    ],
    "bench report": ["--notes ZOO"],
    "rank": ["--ray", "--model oracle", "--model ../x", "--top -1 --ray", "--out NOTES"],
    "families": ["one two", "--set x"],
    "inspect": ["--set x", "--set =", "--config NOTES", "--set layer_norm_eps=nan", "--set D=-1"],
    "same": ["--seed -1", "--seed 1e3", "--only nothing", "--set x", "--plot x.gif", "--bom a.xml"],
    "kin": ["--bom a.json", "--disguised", "--set nonsense", "--card x.html"],
    "explain": ["--from ZOO", "--from"],
    "convert": ["--out MODEL", "--unpickle --out MODEL", "--out NET"],
    "reparam": ["--condition 0", "--condition nan", "--condition inf", "--parts x", "--seed x"],
    "apply": ["--other-file x", "--config NOTES"],
    "verify": ["--seed -1", "--set x"],
    "fingerprint": ["--blocks none", "--limit -1", "--limit nan --out new/", "--ray nowhere:1:2"],
    "dedup": ["--blocks 7", "--tree x.none", "--to x.xls", "--plot x.txt"],
    "nearest": ["--top 0", "--top x"],
    "audit": ["--ray ray://nowhere", "extra words"],
    "zoo info": ["--none"],
    "zoo verify": ["more"],
    "zoo card": ["--top 3"],
    "zoo publish": ["--run 0", "--out"],
    "bench models": ["more"],
}


def test_nonsense_is_tried_of_every_command():
    assert sorted(NONSENSE) == sorted(RIGHT)


@pytest.mark.parametrize("command", NONSENSE)
def test_values_that_no_option_means(command, built, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformer_nfn.jobs.ray_executor._connect", _no_cluster)
    for more in NONSENSE[command]:
        right = RIGHT[command]
        if command in ("inspect", "reparam"):
            right = right.replace("--family FAMILY", "")
        if command in ("zoo plan", "zoo build"):
            right = f"{write_tiny(tmp_path)} {right.partition(' --data')[0].partition('RECIPE')[2]}"
        for option in re.findall(r"--[\w-]+", more):  # of two values the later would count
            right = re.sub(rf"{option} \S+", "", right)
        more = more.replace("TINY", str(built.home / "tiny"))
        words = filled(f"{right} {more}", built, tmp_path)
        check(tnfn(capsys, *command.split(), *words), command, more)


def _no_cluster(address: str | None, retries: int) -> None:
    from transformer_nfn.jobs import JobError

    raise JobError(f"no Ray cluster answers at {address}")


#: Packages of extras, and what needs them.
NEEDING = {
    "matplotlib": (
        "same NET OTHER --plot NEW.png",
        "kin NET OTHER --plot NEW.png",
        "dedup NETS --plot NEW.png",
        "dedup NETS --tree NEW.png",
        "zoo build TINY.toml --out NEW_FOLDER",
        "zoo import NETS --task mnist --out NEW_FOLDER",
        "zoo from-checkpoints NETS ACCURACIES --out NEW_FOLDER",
        "zoo card ZOO",
        "zoo publish ZOO --out NEW_FOLDER",
        "bench run --zoo ZOO --out NEW_FOLDER",
        "bench report BENCH",
    ),
    "ray": (
        "zoo build TINY.toml --out NEW_FOLDER --ray",
        "bench run --zoo ZOO --models statnn --out NEW_FOLDER --ray",
        "fingerprint NETS --ray",
        "dedup NETS --ray",
        "audit NETS --ray",
        "rank NETS --model MODEL --out NEW_FOLDER --ray",
    ),
    "gguf": ("inspect LLAMA.gguf", "convert LLAMA.gguf --out NEW_FOLDER"),
    "huggingface_hub": ("inspect hf://a/b", "zoo info hf://datasets/a/b", "zoo plan mnist-small"),
    "s3fs": ("inspect s3://a/b", "zoo info s3://a/b", "dedup s3://a", "zoo verify s3://a/b"),
    "sklearn": ("zoo build TINY.toml --out NEW_FOLDER", "zoo plan TINY.toml"),
    "gensim": ("zoo plan agnews-small --data NETS",),
    "xgboost": ("bench run --zoo ZOO --models xgboost --out NEW_FOLDER",),
    "lightgbm": (
        "bench run --zoo ZOO --out NEW_FOLDER",
        "bench fit --zoo ZOO --model agreement --name new",
        "bench plan --zoo ZOO --models statistics",
    ),
}


@pytest.mark.parametrize("package", NEEDING)
def test_a_package_that_is_missing(package, built, tmp_path, capsys, monkeypatch):
    write_tiny(tmp_path)
    named = {"TINY.toml": str(tmp_path / "tiny.toml"), "LLAMA.gguf": str(tmp_path / "llama.gguf")}
    if package == "gguf":
        write_gguf(tmp_path / "llama.gguf")
    for name in [one for one in sys.modules if one.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    # What imports one at its top, and was imported by a test before.
    for name in ("wordvectors", "ag_news", "digits"):
        monkeypatch.delitem(sys.modules, f"transformer_nfn.zoo.tasks.{name}", raising=False)
    _task.cache_clear()  # a task that a test before has loaded
    monkeypatch.setitem(sys.modules, package, None)
    if package in ("huggingface_hub", "s3fs"):
        _forget_stores(monkeypatch)
    for line in NEEDING[package]:
        words = [named.get(word, word) for word in filled(line, built, tmp_path)]
        ended = tnfn(capsys, *words)
        check(ended, package, line)
        assert "pip install" in ended.err, (line, ended)
        assert not (tmp_path / "new_folder").exists(), line


def write_gguf(path: Path) -> None:
    """A quantised llama of one block, 32 wide."""
    import gguf

    random, width = np.random.default_rng(0), 32
    file = gguf.GGUFWriter(path, "llama")
    file.add_block_count(1)
    for name, add in {"attn": file.add_head_count, "kv": file.add_head_count_kv}.items():
        add(4 if name == "attn" else 2)
    file.add_embedding_length(width)
    file.add_feed_forward_length(2 * width)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_context_length(16)
    file.add_rope_freq_base(1e4)
    rows = {"token_embd": 40, "output": 40, "attn_q": width, "attn_k": 16, "attn_v": 16}
    rows |= {"attn_output": width, "ffn_gate": 64, "ffn_up": 64, "ffn_down": width}
    for name, count in rows.items():
        wide = 64 if name == "ffn_down" else width
        numbers = random.normal(size=(count, wide)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0
        inside = "" if name in ("token_embd", "output") else "blk.0."
        made = gguf.quants.quantize(numbers, kind)
        file.add_tensor(f"{inside}{name}.weight", made, raw_dtype=kind)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        file.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _forget_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of file systems that fsspec has imported before, and their instances."""
    known = sys.modules["fsspec.registry"]._registry
    for name in ("s3", "hf"):
        monkeypatch.delitem(known, name, raising=False)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers, and nobody waits for it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("transformer_nfn.stores.retries.time.sleep", lambda _: None)
    monkeypatch.setattr("transformer_nfn.stores.retries.ATTEMPTS", 1)
    once = {"mode": "standard", "total_max_attempts": 1}
    monkeypatch.setattr("transformer_nfn.stores.store._REQUESTS", once)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")


FAR = (
    "inspect URL",
    "same NET URL",
    "kin URL NET",
    "explain NET --from URL",
    "reparam URL --out NEW_FOLDER",
    "convert URL --out NEW_FOLDER",
    "apply URL NET --out NEW_FOLDER",
    "verify CERTIFICATE URL NET",
    "fingerprint URL",
    "dedup URL",
    "nearest URL PRINTS",
    "nearest NET URL",
    "audit URL",
    "rank URL --model MODEL --out NEW_FOLDER",
    "zoo info URL",
    "zoo card URL",
    "zoo publish ZOO --out URL",
    "zoo build TINY.toml --out URL",
    "bench run --zoo URL --out NEW_FOLDER",
)


@pytest.mark.parametrize("url", ["s3://bucket/model", "hf://owner/model", "none://a/b"])
def test_a_store_that_nobody_reaches(url, built, no_network, tmp_path, capsys):
    write_tiny(tmp_path)
    for line in FAR:
        line = line.replace("URL", url).replace("TINY.toml", str(tmp_path / "tiny.toml"))
        check(tnfn(capsys, *filled(line, built, tmp_path)), line)


#: What writes; the disk is full from the first byte on.
WRITING = (
    "zoo build TINY.toml --out NEW_FOLDER",
    "zoo card ZOO",
    "zoo publish ZOO --out NEW_FOLDER",
    "zoo export ZOO --out NEW_FOLDER",
    "bench run --zoo ZOO --models statnn --splits 1 --out NEW_FOLDER",
    "bench fit --zoo ZOO --model statistics --name new",
    "bench report BENCH --to NEW_FOLDER",
    "rank NETS --model MODEL --out NEW_FOLDER",
    "same NET OTHER --certificate NEW.safetensors",
    "same NET OTHER --plot NEW.png",
    "same NET OTHER --bom NEW.json",
    "same NET OTHER --html NEW.html",
    "kin NET OTHER --html NEW.html",
    "inspect NET --html NEW.html",
    "dedup NETS --html NEW.html",
    "kin NET OTHER --card NEW.md",
    "convert NET --out NEW_FOLDER",
    "reparam NET --out NEW_FOLDER",
    "apply CERTIFICATE NET --out NEW_FOLDER",
    "fingerprint NETS --out NEW.parquet",
    "fingerprint NETS --out NEW.jsonl",
    "fingerprint NETS --out NEW_FOLDER",
    "dedup NETS --to NEW.csv",
    "dedup NETS --to NEW.parquet",
    "dedup NETS --plot NEW.png",
    "dedup NETS --tree NEW.dot",
)


@contextmanager
def full_disk() -> Iterator[None]:
    """No file may have a byte: writes fail as they do where there is no room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("line", WRITING)
def test_a_full_disk(line, built, tmp_path, capsys):
    write_tiny(tmp_path)
    words = filled(line.replace("TINY.toml", str(tmp_path / "tiny.toml")), built, tmp_path)
    with full_disk():
        ended = tnfn(capsys, *words)
    check(ended, line)
    assert "File too large" in ended.err, (line, ended)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("plan", "mnist-small"),
        ("plan", "agnews-small"),
        ("build --runs 1 --out NEW_FOLDER", "mnist-small"),
    ],
)
def test_data_that_is_missing(command, name, built, no_network, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TNFN_DATA", raising=False)
    ended = tnfn(capsys, "zoo", *filled(f"{command} {name}", built, tmp_path))
    check(ended, name, command)
    assert "TNFN_DATA" in ended.err


def test_results_that_are_broken(built, tmp_path, capsys):
    """Each file of a folder of results in turn: cut off, empty, of another format, a folder."""
    for word, line in {
        "BENCH": "bench report BENCH --to NEW_FOLDER",
        "PRINTS": "nearest NET PRINTS",
        "MODEL": "rank NETS --model MODEL",
        "ZOO": "zoo info ZOO",
    }.items():
        whole = Path(built[word])
        for file in sorted(path for path in whole.rglob("*") if path.is_file()):
            if file.suffix in (".md", ".png", ".lock") or file.name == "splits.json":
                continue  # which this command does not read
            for damage in (b"", file.read_bytes()[: file.stat().st_size // 2], b"[1, 2]"):
                copy = tmp_path / "copy"
                shutil.copytree(whole, copy)
                (copy / file.relative_to(whole)).write_bytes(damage)
                words = filled(line.replace(word, str(copy)), built, tmp_path)
                check(tnfn(capsys, *words), word, file.name, damage[:20])
                shutil.rmtree(copy)


@pytest.mark.parametrize(
    "config", ["[1, 2]", "7", "{", '{"model_type": []}', '{"model_type": "no such"}', "\x00"]
)
def test_a_config_that_is_none(config, built, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(config)
    for line in (
        "inspect NET --config",
        "same NET OTHER --config-second",
        "reparam NET --out NEW_FOLDER --config",
    ):
        check(tnfn(capsys, *filled(line, built, tmp_path), path), line, config)


@pytest.mark.parametrize("command", [one for one in RIGHT if one not in NOT_RUN])
def test_what_is_meant_ends_well(command, built, tmp_path, capsys):
    """Or mistakes in `RIGHT` would be what is refused above."""
    ended = tnfn(capsys, *command.split(), *filled(RIGHT[command], built, tmp_path))
    assert ended.code == 0, ended


#: Of what does not exist; said before torch is imported, which takes seconds.
MISSING = (
    "same none nothing",
    "inspect none",
    "kin none nothing",
    "explain none --from nothing",
    "dedup none",
    "audit none",
    "nearest none nothing",
    "fingerprint none",
    "reparam none --out new",
    "convert none --out new",
    "apply none nothing --out new",
    "verify none nothing never",
    "rank none --model nothing",
    "zoo info none",
    "zoo verify none",
    "zoo card none",
    "zoo publish none --out new",
    "zoo export none --out new",
    "zoo import none --task mnist --out new",
    "bench plan --zoo none",
    "bench run --zoo none --out new",
    "bench fit --zoo none --model nfn --name new",
    "bench report none",
)


def test_missing_paths_are_said_before_torch_is_imported(tmp_path):
    code = f"""
import sys
from transformer_nfn.cli import main
for line in {MISSING!r}:
    sys.argv = ["tnfn", *line.split()]
    try:
        main()
    except SystemExit as ended:
        print(ended.code, "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout.splitlines() == ["1 False"] * len(MISSING), done
    assert all("none" in line and "not exist" in line for line in done.stderr.splitlines())
    assert not list(tmp_path.iterdir())
