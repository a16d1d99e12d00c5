"""No unpickling path is reachable: a pickle in every input position leaves no trace."""

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer

import transformer_nfn
from benchmarks.safety.fuzzing.checkpoints import READERS as CHECKPOINTS
from benchmarks.safety.fuzzing.data import READERS as DATA
from benchmarks.safety.fuzzing.engine import Reader
from benchmarks.safety.fuzzing.folders import READERS as FOLDERS
from benchmarks.safety.fuzzing.models import READERS as MODELS
from benchmarks.safety.fuzzing.mutate import pack, unpack
from tests.security.poison import control, poisons
from tests.security.positions import NOT_READ, READ, Place, clean
from transformer_nfn.cli.main import app, main
from transformer_nfn.zoo import StoreError
from transformer_nfn.zoo.dataset import Zoo


def parts(kind: Any) -> set[Any]:
    """A type, and those that it is made of: `list[str] | None` takes text; a Literal does not."""
    inside = () if get_origin(kind) is Literal else get_args(kind)
    return {kind} if not inside else set().union(*map(parts, inside))


def parameters(app: typer.Typer = app, before: str = "") -> Iterator[tuple[str, str]]:
    """Every command, and every parameter of it that takes text or a path."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        for parameter, kind in get_type_hints(command.callback).items():
            if {str, Path} & parts(kind):
                yield f"{before}{name}", parameter
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from parameters(group.typer_instance, f"{before}{group.name} ")


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Also a home of its own: caches and models of the user are not for tests."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "TNFN_MODELS"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.chdir(home)
    return tmp_path / "marker"


def test_every_parameter_is_in_the_table() -> None:
    assert set(parameters()) == set(READ) | set(NOT_READ)
    assert not set(READ) & set(NOT_READ)


def test_the_poison_works(marker: Path) -> None:
    for name, read in control(marker).items():
        with suppress(Exception):
            read()
        assert marker.exists(), name
        marker.unlink()


@pytest.mark.parametrize("position", sorted(READ), ids=" ".join)
def test_a_pickle_in_a_position_of_the_command_line(
    position: tuple[str, str],
    marker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "place"
    home.mkdir()
    kinds = poisons(marker)
    for turn, (kind, poison) in enumerate(kinds.items()):
        # Every kind and every name come once at least; all pairs are for the readers, below.
        lines = list(READ[position](Place(home, poison)))
        for number, words in enumerate(lines):
            if turn not in (number % len(kinds), turn * (turn % len(lines) == number)):
                continue
            monkeypatch.setattr(sys, "argv", ["tnfn", *map(str, words)])
            with pytest.raises(SystemExit) as ended:
                main()
            said = capsys.readouterr()
            line = f"{kind}: {' '.join(map(str, words))}\n{said.out}{said.err}"
            assert not marker.exists(), line
            assert "Traceback" not in said.out + said.err, line
            if words[:2] == ["zoo", "import"] and not ended.value.code:
                assert '"unreadable": 1' in said.out, line  # the net, a row of the zoo
                continue
            assert ended.value.code == 1, line
            if position not in SEVERAL:
                last = said.err.splitlines()[-1:] or [said.out]
                assert last[0].startswith("error: ") or "problems" in last[0], line
                assert said.err.count("error: ") <= 1, line
        clean(home)


#: Commands on many files: each that cannot be read is named, in a line of its own.
SEVERAL = {
    ("fingerprint", "sources"),
    ("dedup", "sources"),
    ("rank", "sources"),
    ("audit", "folder"),
}


ALL: list[Reader] = [*CHECKPOINTS, *FOLDERS, *MODELS, *DATA]


@pytest.mark.parametrize("reader", ALL, ids=lambda reader: reader.name)
def test_a_pickle_in_a_position_of_a_reader(reader: Reader, marker: Path) -> None:
    """Every reader, and every file of those that read several."""
    sound = reader.seeds()[0]
    for kind, poison in poisons(marker).items():
        for number in range(reader.parts):
            files = unpack(sound, reader.parts) if reader.parts > 1 else [sound]
            files[number] = poison
            try:
                reader.read(pack(files) if reader.parts > 1 else poison)
                assert takes(reader, kind), f"{kind} as file {number} was taken"
            except reader.errors:
                pass
            assert not marker.exists(), f"{kind} as file {number}"


def takes(reader: Reader, kind: str) -> bool:
    """A list of paths is any text, and a table with an unknown extension type is a table."""
    return reader.name == "manifest .txt" or (
        reader.name == "manifest .parquet" and kind == "Parquet, extension type"
    )


def test_a_pickle_in_the_copy_of_a_zoo(marker: Path, tmp_path: Path) -> None:
    place = Place(tmp_path, b"")
    zoo = Zoo(list(place.zoos())[2])
    zoo.cached(tmp_path / "copies")
    (weights,) = (tmp_path / "copies").glob("*/weights.npy")
    for poison in poisons(marker).values():
        weights.write_bytes(poison)
        with pytest.raises(StoreError, match="damaged"):
            zoo.cached(tmp_path / "copies")
    assert not marker.exists()


# --------------------------------------------------------------------------- what is not called

#: Modules whose purpose is to turn bytes into objects or code.
FORBIDDEN = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "yaml"}
#: Functions that may do so, whatever they are called on.
CALLS = {
    "torch.load",
    "np.load",
    "numpy.load",
    "pd.read_pickle",
    "eval",
    "exec",
    "KeyedVectors.load",
}
ALLOWED = {
    # The published zoo has no other form. torch's own reader builds tensors and plain containers.
    ("zoo/published/nets.py", "torch.load"): ("weights_only", True),
    # In a process of its own, if somebody says --unpickle.
    ("checkpoints/unpickling.py", "torch.load"): ("weights_only", True),
    # Our own copy of a zoo; numbers only.
    ("zoo/cache.py", "np.load"): ("allow_pickle", False),
    # A table that the user names with --family, and nothing else.
    ("checkpoints/families/__init__.py", "exec"): None,
}  # fmt: skip


def called(node: ast.Call) -> str:
    """A function by its last two names."""
    match node.func:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(owner), name):
            return f"{owner}.{name}"
    return ""


def test_no_module_imports_what_unpickles() -> None:
    root = Path(transformer_nfn.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & FORBIDDEN, (path, names)
            function = called(node) if isinstance(node, ast.Call) else ""
            if function in CALLS:
                place = (path.relative_to(root).as_posix(), function)
                assert place in ALLOWED, place
                if (wanted := ALLOWED[place]) is not None:
                    given = {k.arg: k.value for k in node.keywords if k.arg == wanted[0]}
                    values = {name: ast.literal_eval(value) for name, value in given.items()}
                    assert values == dict([wanted]), place
                found.add(place)
    assert found == set(ALLOWED)  # an exception that is no longer needed is removed
