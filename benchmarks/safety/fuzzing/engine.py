"""One reader under atheris, in a process of its own: counts, tripwires and what was found.

libFuzzer ends the process itself, so all that is counted lies in a memory-mapped file. An exception
that is not the reader's own is kept, with the input, and the fuzzing goes on.
"""

import json
import mmap
import os
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.safety.fuzzing.mutate import Each, Mutator

#: Most time for one input where a reader has no limit of its own.
SECONDS = 2.0
TRIES = 3
#: What a reader may have above the level after its seeds, in resident and in address space.
MEGABYTES = 300
#: So many times that, for all tries, libFuzzer ends the process: nothing else would.
HANG = 10
_SIZE = 2**20


@dataclass(frozen=True)
class Reader:
    """What is fuzzed.

    Attributes:
        name: What it is called.
        read: Reads one input; what it writes goes into the current folder.
        errors: What it may raise.
        seeds: Inputs to start from, the first of them sound.
        mutate: How inputs are made of others.
        modules: Whose branches guide it, and whose lines are reported.
        runs: Inputs of a full run.
        longest: Most bytes of an input.
        seconds: Most time for an input; the wall's, so a slow one is tried again.
    """

    name: str
    read: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    seeds: Callable[[], list[bytes]]
    mutate: Mutator
    modules: tuple[str, ...]
    runs: int
    longest: int = 2**15
    seconds: float = SECONDS

    @property
    def parts(self) -> int:
        """Files in an input."""
        return len(self.mutate.mutators) if isinstance(self.mutate, Each) else 1


def any_of(use: Callable[[Any], object], ways: Iterable[Any]) -> None:
    """All ways to read an input; refused only if all of them refuse it."""
    refused, accepted = None, False
    for way in ways:
        try:
            use(way)
            accepted = True
        except ValueError as error:
            if not type(error).__module__.startswith("transformer_nfn."):
                raise
            refused = error
    if refused and not accepted:
        raise refused


class Tripwire:
    """An audit hook that remembers what no reader may do: run, connect, write elsewhere."""

    _NEVER = (
        "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen",
        "pickle.find_class", "socket.connect", "socket.getaddrinfo", "ctypes.dlopen",
    )  # fmt: skip
    _INSIDE = ("os.remove", "os.rename", "os.symlink", "os.link", "os.truncate", "shutil.rmtree")

    def __init__(self, folder: Path) -> None:
        self.armed, self.tripped = False, list[str]()
        self._folder = str(folder)
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = (mode or "r")[0] in "wax" or "+" in (mode or "") or (flags or 0) & 3
            if writes and not self._inside(path):
                self.tripped.append(f"open {path!r:.100} {mode}")
        elif event == "import":
            if arguments[1] and self._inside(arguments[1]):
                self.tripped.append(f"import {arguments[0]}")
        elif event in ("exec", "compile"):
            given = arguments[0] if event == "exec" else arguments[1]
            file = getattr(given, "co_filename", given)
            # A library imports late, and makes its named tuples by compiling them.
            known = str(file).startswith((sys.prefix, sys.base_prefix))
            if not known and not (file == "<string>" and _importing()):
                self.tripped.append(f"{event} {arguments!r:.100}")
        elif event in self._NEVER or (
            event in self._INSIDE and not all(map(self._inside, self._paths(arguments)))
        ):
            self.tripped.append(f"{event} {arguments!r:.100}")

    @staticmethod
    def _paths(arguments: tuple[Any, ...]) -> list[Any]:
        """Those of a rename or a link are two, beside numbers of open folders."""
        return [one for one in arguments if isinstance(one, str | bytes | os.PathLike)]

    def _inside(self, path: object) -> bool:
        if isinstance(path, int):
            return True
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        return (not os.path.isabs(text) and bool(text)) or text.startswith(self._folder)


def _importing() -> bool:
    """Whether a module is being run; which one was asked when its own code came by."""
    frame = sys._getframe(2)
    while frame := frame.f_back:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
    return False


class Record:
    """What happened so far, in a file that outlives this process."""

    def __init__(self, path: Path) -> None:
        with open(path, "w+b") as file:
            file.truncate(_SIZE)
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self.inputs, self.accepted, self.slowest = 0, 0, 0.0
        self.refused: Counter[str] = Counter()
        self.findings: dict[str, dict[str, Any]] = {}
        self.slowest_input = b""

    def count(self) -> None:
        """After every input: numbers only, since it must cost nothing."""
        struct.pack_into("<QQd", self._map, 0, self.inputs, self.accepted, self.slowest)

    def write(self, more: dict[str, Any]) -> None:
        text = json.dumps({"refused": self.refused, "findings": self.findings, **more}).encode()
        struct.pack_into("<Q", self._map, 24, len(text))
        self._map[32 : 32 + len(text)] = text[: _SIZE - 32]

    @staticmethod
    def count_of(path: Path) -> int:
        """Inputs so far."""
        with open(path, "rb") as file:
            return int.from_bytes(file.read(8), "little")

    @staticmethod
    def load(path: Path) -> dict[str, Any]:
        raw = path.read_bytes()
        inputs, accepted, slowest, length = struct.unpack_from("<QQdQ", raw)
        more = json.loads(raw[32 : 32 + length]) if length else {"refused": {}, "findings": {}}
        return {"inputs": inputs, "accepted": accepted, "slowest": slowest, **more}


def resident() -> float:
    """The highest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def where(error: BaseException) -> str:
    """Kind and place of an error: two of the same are one finding."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "transformer_nfn" in f.filename] or frames
    last = ours[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} in {last.name}"


class Target:
    """Reads one input after the other and keeps account."""

    def __init__(self, reader: Reader, record: Record, folder: Path, runs: int) -> None:
        self._reader, self._record, self._runs, self._folder = reader, record, runs, folder
        self._wire = Tripwire(folder)
        self._level = resident()

    def warm(self, seeds: list[bytes]) -> None:
        """Lazy imports and caches belong to no input."""
        for seed in seeds * 2:
            self._try(seed)
        self._level = resident()

    def _try(self, data: bytes) -> tuple[str | None, BaseException | None]:
        """The error's kind, or what is wrong."""
        try:
            self._reader.read(data)
        except self._reader.errors as error:
            return type(error).__name__, None
        except Exception as error:
            return None, error
        return None, None

    def __call__(self, data: bytes) -> None:
        record = self._record
        for _ in range(TRIES):
            start = time.perf_counter()
            self._wire.armed = True
            refused, wrong = self._try(data)
            self._wire.armed = False
            seconds = time.perf_counter() - start
            if seconds < self._reader.seconds:
                break
        if wrong is not None:
            self._found(where(wrong), str(wrong), data)
        elif seconds >= self._reader.seconds:
            self._found("too slow", f"{seconds:.1f} s, {TRIES} times", data)
        if self._wire.tripped:
            self._found(f"tripwire: {self._wire.tripped[0]}", "", data)
            self._wire.tripped.clear()
        record.inputs += 1
        record.accepted += refused is None and wrong is None
        if refused is not None:
            record.refused[refused] += 1
        if seconds > record.slowest:
            record.slowest, record.slowest_input = seconds, data
        record.count()
        if record.inputs % 1000 == 0 or record.inputs >= self._runs:
            self._save()

    def _found(self, what: str, message: str, data: bytes) -> None:
        known = self._record.findings.setdefault(what, {"count": 0, "message": message[:300]})
        known["count"] += 1
        if known["count"] == 1 or len(data) < known["bytes"]:  # the shortest is the one to keep
            known["bytes"] = len(data)
            name = "".join(c if c.isalnum() else "_" for c in what)[:80]
            (self._folder / "findings").mkdir(exist_ok=True)
            (self._folder / "findings" / name).write_bytes(data)
        self._save()

    def _save(self) -> None:
        above = resident() - self._level
        if above > MEGABYTES and "memory" not in self._record.findings:
            self._record.findings["memory"] = {"count": 1, "message": f"{above:.0f} MB", "bytes": 0}
        self._record.write({"megabytes_above": round(above, 1)})


def fuzz(reader: Reader, runs: int, seed: int, folder: Path) -> None:
    """Fuzz until so many inputs are read; libFuzzer ends the process."""
    import atheris  # type: ignore[import-untyped]

    from benchmarks.safety.fuzzing.coverage import functions_of

    os.chdir(folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    seeds = reader.seeds()
    for number, data in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(data)
    target = Target(reader, Record(folder / "record"), folder, runs)
    target.warm(seeds)
    for function in functions_of(reader.modules):
        atheris.instrument_func(function)
    soft = int(_address_space() + MEGABYTES * 2**20 * 4)  # threads reserve more than they use
    resource.setrlimit(resource.RLIMIT_AS, (soft, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        def blind(part: bytes) -> bytes:
            return atheris.Mutate(part, len(part) + 64)

        try:
            return reader.mutate(data, Random(seed), blind)[:size]
        except RecursionError:  # what a mutation before has nested too deep
            return blind(data)[:size]

    arguments = [
        reader.name, str(corpus), f"-runs={runs}", f"-seed={seed}", f"-max_len={reader.longest}",
        f"-timeout={HANG * reader.seconds:.0f}", "-rss_limit_mb=4096", "-detect_leaks=0",
        f"-artifact_prefix={folder}/", "-len_control=0", "-print_final_stats=1",
    ]  # fmt: skip
    atheris.Setup(arguments, target, custom_mutator=mutate)
    atheris.Fuzz()


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
