"""Every place of the command line where a file from outside is read, and a poisoned one put there.

A place is a command and a parameter; for each a function that puts bytes where the command finds
them, under every name that it looks for, and gives the command lines to run.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks.safety.fuzzing.folders import zoo_seeds
from benchmarks.safety.fuzzing.models import PREDICTOR, predictor_seeds
from benchmarks.safety.fuzzing.mutate import unpack
from benchmarks.safety.hostile_files.material import INDEX, SINGLE, make_base
from tests.zoo.conftest import TINY
from transformer_nfn.bench import Cell
from transformer_nfn.checkpoints import FAMILIES

Words = list[str | Path]


@lru_cache  # made once: they take longer than most commands
def sound_zoo() -> list[bytes]:
    return unpack(zoo_seeds()[0], 4)


@lru_cache
def sound_predictor() -> list[bytes]:
    return unpack(predictor_seeds()[0], len(PREDICTOR))


@lru_cache
def sound_net() -> bytes:
    return make_base(FAMILIES["gpt2"]).raw


@dataclass(frozen=True)
class Place:
    """A folder to work in, and sound files to go with the poisoned one."""

    home: Path
    poison: bytes

    def put(self, name: str, content: bytes | None = None) -> Path:
        """The poison, or something sound, under a name."""
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.poison if content is None else content)
        return path

    @property
    def net(self) -> Path:
        """A sound checkpoint without a config."""
        return self.put("sound.safetensors", sound_net())

    @property
    def recipe(self) -> Path:
        """A sound recipe."""
        return self.put("tiny.toml", TINY.encode())

    def checkpoints(self) -> Iterator[Path]:
        """All that a checkpoint may be."""
        for ending in ("safetensors", "bin", "pt", "ckpt"):
            yield self.put(f"net.{ending}")
        yield self.put(f"folder/{SINGLE}").parent
        self.put("bin/pytorch_model.bin")
        yield self.put("bin/config.json", b'{"model_type": "gpt2", "n_head": 2}').parent
        for shard in ("pytorch_model.bin", "a.safetensors"):
            self.put(f"sharded-{shard}/{shard}")
            index = json.dumps({"weight_map": {"a": shard}}).encode()
            yield self.put(f"sharded-{shard}/{INDEX}", index).parent
        yield self.put(f"index/{INDEX}")

    def sources(self) -> Iterator[Path]:
        """All that a list of checkpoints may be."""
        yield self.put("net.safetensors")
        yield self.put("many/net.safetensors").parent
        for ending in (".parquet", ".csv", ".jsonl", ".txt"):
            yield self.put(f"manifest{ending}")
        yield self.put("list.txt", b"net.safetensors\nnet.bin\n")

    def results(self) -> Iterator[Path]:
        """Folders of results with one poisoned file."""
        yield self.put("results-1/hub.json").parent
        task = {"name": "fingerprint", "blocks": "all", "seed": 0}
        self.put("results-2/data/000001-a.parquet")
        yield self.put(
            "results-2/hub.json", json.dumps({"format": 1, "task": task}).encode()
        ).parent

    def zoos(self) -> Iterator[Path]:
        """Zoos with one poisoned file."""
        names = ("zoo.json", "data/a.parquet", "builds/a.json", "splits.json")
        sound = sound_zoo()
        for number in range(len(names)):
            home = self.home / f"zoo-{number}"
            for name, content in zip(names, sound, strict=True):
                self.put(f"{home.name}/{name}", content)
            self.put(f"{home.name}/{names[number]}")
            yield home

    def data(self) -> Iterator[tuple[str, Path]]:
        """A recipe, and a data folder that it would read."""
        for part in (
            "train-images-idx3",
            "train-labels-idx1",
            "t10k-images-idx3",
            "t10k-labels-idx1",
        ):
            self.put(f"data/mnist/{part}-ubyte.gz")
            self.put(f"plain/mnist/{part}-ubyte")
        for name in ("train.csv", "test.csv"):
            self.put(f"data/ag_news/{name}")
        self.put("data/embeddings/vectors.bin")
        images = TINY.replace('"digits"', '"mnist"')
        text = TINY.replace('"digits"', '"ag_news"').replace("patch = 4", "")
        self.put("images.toml", images.encode())
        self.put("text.toml", text.encode())
        yield str(self.home / "images.toml"), self.home / "data"
        yield str(self.home / "images.toml"), self.home / "plain"
        yield str(self.home / "text.toml"), self.home / "data"

    def models(self) -> Iterator[Path]:
        """Saved models with one poisoned file."""
        sound = dict(zip(PREDICTOR, sound_predictor(), strict=True))
        for name in PREDICTOR:
            home = self.home / f"saved-{name}"
            for each, content in sound.items():
                self.put(f"{home.name}/{each}", content)
            self.put(f"{home.name}/{name}")
            yield home

    def benches(self) -> Iterator[Path]:
        yield self.put("bench/cells/a.parquet").parents[1]

    def published(self) -> Iterator[Path]:
        """The published zoo: its table, and one of its nets, which are pickles of their own."""
        yield self.put("published-1/metadata/mnist.csv").parents[1]
        columns = "ckpt_epoch,ckpt_file,seed,optimizer,lr,l2_regularize,dropout,w_init_std"
        row = "25,mnist/ab25_25_0.pt,42,adam,0.001,0.01,0.1,0.2,1.0,0.5"
        table = f"{columns},train_fraction,test_top1_accuracy\n{row}\n".encode()
        self.put("published-2/mnist/ab25_25_0.pt")
        yield self.put("published-2/metadata/mnist.csv", table).parents[1]


def _paths(
    command: str, paths: Callable[[Place], Iterator[Path]], *more: str
) -> Callable[[Place], Iterator[Words]]:
    """A command with one path after it."""

    def lines(place: Place) -> Iterator[Words]:
        for number, path in enumerate(paths(place)):
            out = [word.format(out=place.home / f"out-{number}") for word in more]
            yield [*command.split(), path, *out]

    return lines


def _config(command: str, option: str, *more: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        files: Words = [place.net] * (2 if command in ("same", "kin", "verify") else 1)
        certified = command in ("apply", "verify")
        first: Words = [place.put("g.safetensors", b"")] if certified else []
        out = [word.format(out=place.home / "out") for word in more]
        yield [command, *first, *files, option, place.put("config.json"), *out]

    return lines


def _first(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        for path in place.checkpoints():
            yield [command, path, place.net, "--set", "n_head=2"]

    return lines


def _second(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        for path in place.checkpoints():
            yield [command, place.net, path, "--set", "n_head=2"]

    return lines


def _units(place: Place) -> Iterator[Words]:
    for name in ("units.toml", "units.pt"):
        yield ["kin", place.net, place.net, "--units", place.put(name)]


def _explained(place: Place) -> Iterator[Words]:
    for path in place.checkpoints():
        yield ["explain", path, "--from", place.net]


def _parents(place: Place) -> Iterator[Words]:
    for path in place.checkpoints():
        yield ["explain", place.net, "--from", path]


def _certificate(place: Place) -> Iterator[Words]:
    for name in ("g.safetensors", "g.bin"):
        out = place.home / "out.safetensors"
        yield ["apply", place.put(name), place.net, "--set", "n_head=2", "--out", out]


def _applied(place: Place) -> Iterator[Words]:
    for path in place.checkpoints():
        yield ["apply", place.put("g.safetensors"), path, "--out", place.home / "out.safetensors"]


def _verified(parameter: str) -> Callable[[Place], Iterator[Words]]:
    """A certificate and two checkpoints, one of the three poisoned."""

    def lines(place: Place) -> Iterator[Words]:
        paths = [place.put("g.safetensors"), place.put("g.bin")]
        for path in paths if parameter == "certificate" else place.checkpoints():
            words: dict[str, str | Path] = {
                "certificate": place.home / "g.safetensors", "first": place.net, "second": place.net
            }  # fmt: skip
            yield ["verify", *(words | {parameter: path}).values(), "--set", "n_head=2"]

    return lines


def _recipes(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        for name in ("recipe.toml", "recipe.json"):
            out: Words = ["--out", place.home / "out"] if command == "build" else []
            yield ["zoo", command, place.put(name), *out]

    return lines


def _data(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        for number, (recipe, data) in enumerate(place.data()):
            out: Words = ["--out", place.home / f"out-{number}"] if command == "build" else []
            yield ["zoo", command, recipe, "--data", data, *out]

    return lines


def _build_into(place: Place) -> Iterator[Words]:
    """Only zoo.json says what is there; a shard is known by its name."""
    yield ["zoo", "build", place.recipe, "--out", place.put("zoo/zoo.json").parent]


def _import_into(place: Place) -> Iterator[Words]:
    zoo = place.put("zoo/zoo.json").parent
    for source in list(place.published())[1:]:
        yield ["zoo", "import", source, "--task", "mnist", "--out", zoo]


def _into(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        for results in place.results():
            yield [command, place.net, "--out", results]

    return lines


def _zoo_option(command: str, *more: str) -> Callable[[Place], Iterator[Words]]:
    """Poisoned shards and descriptions; builds/ is not read, and splits.json last."""

    def lines(place: Place) -> Iterator[Words]:
        for number, zoo in enumerate(list(place.zoos())[:2]):
            out = [word.format(out=place.home / f"out-{number}") for word in more]
            yield ["bench", command, "--zoo", zoo, *out]

    return lines


def _score_zoo(place: Place) -> Iterator[Words]:
    table = place.put("mine.csv", b"run_id,checkpoint,predicted\nrun0000,1,0.5\n")
    for zoo in list(place.zoos())[:2]:
        yield ["bench", "score", table, "--zoo", zoo]


def _score_predictions(place: Place) -> Iterator[Words]:
    sound, *_ = list(place.zoos())[2:3]
    for name in ("mine.parquet", "mine.csv"):
        yield ["bench", "score", place.put(name), "--zoo", sound]


def _score_out(place: Place) -> Iterator[Words]:
    sound, *_ = list(place.zoos())[2:3]
    table = place.put("mine.csv", b"run_id,checkpoint,predicted\nrun0000,1,0.5\n")
    for out in place.benches():
        yield ["bench", "score", table, "--zoo", sound, "--out", out]


def _gathered(place: Place) -> Iterator[Words]:
    folder = place.put("run/a.safetensors").parent
    table = place.put("accuracies.csv", b"path,accuracy\na.safetensors,0.5\n")
    yield ["zoo", "from-checkpoints", folder, table, "--out", place.home / "gathered"]


def _gathered_table(place: Place) -> Iterator[Words]:
    folder = place.put("run/a.safetensors", sound_net()).parent
    table = place.put("accuracies.csv")
    yield ["zoo", "from-checkpoints", folder, table, "--out", place.home / "gathered"]


def _test_zoo(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        sound, *_ = list(place.zoos())[2:3]
        for zoo in list(place.zoos())[:2]:
            words: Words = ["bench", command, "--zoo", sound, "--test-zoo", zoo]
            yield [*words, "--experiment", "across", "--out", place.home / "out"]

    return lines


def _rank_model(place: Place) -> Iterator[Words]:
    for model in place.models():
        yield ["rank", place.net, "--model", model]


def _rank_sources(place: Place) -> Iterator[Words]:
    sound = place.home / "model"
    for name, content in zip(PREDICTOR, sound_predictor(), strict=True):
        place.put(f"model/{name}", content)
    yield ["rank", place.put("net.safetensors"), "--model", sound]
    for number, source in enumerate(place.sources()):
        yield ["rank", source, "--model", sound, "--out", place.home / f"ranks-{number}"]


def _rank_out(place: Place) -> Iterator[Words]:
    for name, content in zip(PREDICTOR, sound_predictor(), strict=True):
        place.put(f"model/{name}", content)
    for results in place.results():
        yield ["rank", place.net, "--model", place.home / "model", "--out", results]


def _cells(command: str) -> Callable[[Place], Iterator[Words]]:
    """A finished cell, known by its name, and one more."""

    def lines(place: Place) -> Iterator[Words]:
        zoo = list(place.zoos())[2]
        name = Cell(zoo=str(zoo), model="statnn", split=0).name
        out = place.put(f"bench/cells/{name}.parquet").parents[1]
        yield ["bench", command, "--zoo", zoo, "--models", "statnn", "--splits", "1", "--out", out]

    return lines


def _notes(place: Place) -> Iterator[Words]:
    from benchmarks.safety.fuzzing.models import cell_seeds

    bench = place.put("bench/cells/a.parquet", cell_seeds()[0]).parents[1]
    if place.poison.isascii():  # text, which is what notes are
        place = Place(place.home, b"\x80" + place.poison)
    yield ["bench", "report", bench, "--notes", place.put("notes.md")]


def _bulk(command: str) -> Callable[[Place], Iterator[Words]]:
    def lines(place: Place) -> Iterator[Words]:
        for number, source in enumerate([*place.sources(), *place.results()]):
            yield [command, source]
            yield [command, source, "--out", place.home / f"prints-{number}"]

    return lines


def _nearest(place: Place) -> Iterator[Words]:

    from benchmarks.safety.fuzzing.folders import result_seeds

    described, shard = unpack(result_seeds()[0], 2)
    prints = place.put("prints/hub.json", described).parent
    place.put("prints/data/000001-a.parquet", shard)
    for path in place.checkpoints():
        yield ["nearest", path, prints]


#: Parameters that name something to read, and how it is poisoned.
READ: dict[tuple[str, str], Callable[[Place], Iterator[Words]]] = {
    ("inspect", "path"): _paths("inspect", Place.checkpoints),
    ("inspect", "config"): _config("inspect", "--config"),
    ("same", "first"): _first("same"),
    ("same", "second"): _second("same"),
    ("kin", "first"): _first("kin"),
    ("kin", "second"): _second("kin"),
    ("kin", "units"): _units,
    ("kin", "config_first"): _config("kin", "--config-first"),
    ("kin", "config_second"): _config("kin", "--config-second", "--set-first", "n_head=2"),
    ("kin", "family"): _config("kin", "--family"),
    ("explain", "checkpoint"): _explained,
    ("explain", "parents"): _parents,
    ("same", "config_first"): _config("same", "--config-first"),
    ("same", "config_second"): _config("same", "--config-second", "--set-first", "n_head=2"),
    ("convert", "source"): _paths("convert", Place.checkpoints, "--out", "{out}"),
    ("reparam", "path"): _paths("reparam", Place.checkpoints, "--out", "{out}"),
    ("reparam", "config"): _config("reparam", "--config", "--out", "{out}"),
    ("apply", "certificate"): _certificate,
    ("apply", "path"): _applied,
    ("apply", "config"): _config("apply", "--config", "--out", "{out}"),
    ("verify", "certificate"): _verified("certificate"),
    ("verify", "first"): _verified("first"),
    ("verify", "second"): _verified("second"),
    ("verify", "config_first"): _config("verify", "--config-first"),
    ("verify", "config_second"): _config("verify", "--config-second", "--set-first", "n_head=2"),
    ("inspect", "family"): _config("inspect", "--family"),
    ("same", "family"): _config("same", "--family"),
    ("reparam", "family"): _config("reparam", "--family", "--out", "{out}"),
    ("apply", "family"): _config("apply", "--family", "--out", "{out}"),
    ("verify", "family"): _config("verify", "--family"),
    ("fingerprint", "family"): _config("fingerprint", "--family"),
    ("fingerprint", "sources"): _bulk("fingerprint"),
    ("fingerprint", "out"): _into("fingerprint"),
    ("dedup", "sources"): _bulk("dedup"),
    ("dedup", "out"): _into("dedup"),
    ("nearest", "checkpoint"): _nearest,
    ("nearest", "prints"): lambda place: (
        ["nearest", place.net, results] for results in place.results()
    ),
    ("audit", "folder"): _paths(
        "audit", lambda place: iter([place.put("run/a.safetensors").parent])
    ),
    ("rank", "sources"): _rank_sources,
    ("rank", "model"): _rank_model,
    ("rank", "out"): _rank_out,
    ("zoo plan", "recipe"): _recipes("plan"),
    ("zoo plan", "data"): _data("plan"),
    ("zoo build", "recipe"): _recipes("build"),
    ("zoo build", "data"): _data("build"),
    ("zoo build", "out"): _build_into,
    ("zoo import", "source"): _paths(
        "zoo import", Place.published, "--task", "mnist", "--json", "--out", "{out}"
    ),
    ("zoo import", "out"): _import_into,
    ("zoo info", "folder"): _paths("zoo info", lambda place: iter(list(place.zoos())[:3])),
    ("zoo verify", "folder"): _paths("zoo verify", lambda place: iter(list(place.zoos())[:2])),
    ("zoo card", "folder"): _paths("zoo card", lambda place: iter(list(place.zoos())[:3])),
    ("zoo publish", "folder"): _paths(
        "zoo publish", lambda place: iter(list(place.zoos())[:2]), "--out", "{out}"
    ),
    ("zoo export", "folder"): _paths(
        "zoo export", lambda place: iter(list(place.zoos())[:2]), "--out", "{out}"
    ),
    ("bench plan", "zoo"): _zoo_option("plan", "--models", "statnn", "--out", "{out}"),
    ("bench plan", "test_zoo"): _test_zoo("plan"),
    ("bench plan", "out"): _cells("plan"),
    ("bench run", "zoo"): _zoo_option("run", "--models", "statnn", "--out", "{out}"),
    ("bench run", "test_zoo"): _test_zoo("run"),
    ("bench run", "out"): _cells("run"),
    ("bench report", "out"): _paths("bench report", Place.benches),
    ("bench report", "notes"): _notes,
    ("bench fit", "zoo"): _zoo_option("fit", "--model", "statnn", "--name", "x"),
    ("bench rows", "zoo"): _paths(
        "bench rows", lambda place: iter(list(place.zoos())[:2]), "--out", "{out}.parquet"
    ),
    ("bench score", "zoo"): _score_zoo,
    ("bench score", "predictions"): _score_predictions,
    ("bench score", "out"): _score_out,
    ("zoo from-checkpoints", "source"): _gathered,
    ("zoo from-checkpoints", "accuracies"): _gathered_table,
}  # fmt: skip

#: Parameters that are written only, names, or words.
NOT_READ = {
    ("same", "certificate"): "written",
    ("same", "plot"): "written", ("same", "html"): "written",
    ("same", "options"): "NAME=VALUE", ("same", "options_first"): "NAME=VALUE",
    ("same", "options_second"): "NAME=VALUE",
    ("same", "bom"): "written", ("same", "card"): "written", ("same", "only"): "word",
    ("kin", "bom"): "written", ("kin", "card"): "written",
    ("kin", "plot"): "written", ("kin", "html"): "written",
    ("kin", "options"): "NAME=VALUE", ("kin", "options_first"): "NAME=VALUE",
    ("kin", "options_second"): "NAME=VALUE",
    ("families", "model_type"): "words",
    ("inspect", "options"): "NAME=VALUE", ("reparam", "options"): "NAME=VALUE",
    ("apply", "options"): "NAME=VALUE",
    ("verify", "options"): "NAME=VALUE", ("verify", "options_first"): "NAME=VALUE",
    ("verify", "options_second"): "NAME=VALUE",
    ("convert", "out"): "written",
    ("reparam", "out"): "written", ("apply", "out"): "written", ("zoo export", "out"): "written",
    ("zoo publish", "out"): "written", ("zoo from-checkpoints", "out"): "written",
    ("bench rows", "out"): "written", ("bench score", "name"): "word",
    ("reparam", "parts"): "words",
    ("fingerprint", "blocks"): "words", ("dedup", "blocks"): "words",
    ("fingerprint", "ray"): "address", ("dedup", "ray"): "address", ("audit", "ray"): "address",
    ("rank", "ray"): "address", ("zoo build", "ray"): "address", ("zoo import", "ray"): "address",
    ("bench run", "ray"): "address",
    ("inspect", "html"): "written", ("dedup", "html"): "written",
    ("dedup", "plot"): "written", ("dedup", "tree"): "written", ("dedup", "to"): "written",
    ("zoo export", "checkpoint"): "word",
    ("bench plan", "models"): "words", ("bench run", "models"): "words",
    ("bench plan", "splits"): "numbers", ("bench run", "splits"): "numbers",
    ("bench report", "to"): "written",
    ("bench fit", "model"): "word", ("bench fit", "name"): "a name in TNFN_MODELS, written",
}  # fmt: skip


def clean(home: Path) -> None:
    for path in home.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
