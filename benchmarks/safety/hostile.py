"""Files from outside, made to hurt: each must end in one clear error, quickly, in little memory.

    python benchmarks/safety/hostile.py
    python benchmarks/safety/hostile.py --quick --json

Thousands of damaged, lying and malicious checkpoints are opened in this process, and where one
opens after all, every block, writer and head is read. Allowed are a `CheckpointError` with a
short message, or a sound result where the file is in fact legal; each in less than 2 s and with
less than 300 MB above what the process has after its imports, under a limit of its address space.
The time is that of the wall, so a case that is too slow is tried again: the machine may be busy.
Nothing in a file may run: the pickles among them would make a marker file. Some cases go
through `tnfn inspect` as well, which must say one line and show no traceback.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.safety.hostile_files.cases import Case, all_cases
from benchmarks.safety.hostile_files.folders import payload
from benchmarks.safety.hostile_files.material import Expected
from transformer_nfn.checkpoints import Checkpoint, CheckpointError

SECONDS = 2.0
TRIES = 3  # of a case that is too slow: others may have the core, but what hangs does so each time
MEGABYTES = 300
CHARACTERS = 600
ADDRESS_SPACE = 1.5 * 2**30
CLEAR = Path("/proc/self/clear_refs")


class TooSlow(BaseException):
    """Not an Exception, so that nothing on the way takes it for one of its own."""


# ----------------------------------------------------------------------------------- in process


def memory(key: str) -> float:
    """VmRSS now, or VmHWM at its highest, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024


def read_all(path: Path) -> None:
    """Open and read everything that others would; a wrong shape or dtype is an AssertionError."""
    with Checkpoint(path) as checkpoint:
        names = [*checkpoint.writers, *(head.weight for head in checkpoint.heads.values())]
        names += [head.bias for head in checkpoint.heads.values() if head.bias]
        for name in [*names, *(checkpoint.hidden_head or ())]:
            tensor = checkpoint.files.read(name)
            assert tensor.is_floating_point(), name
            assert tuple(tensor.shape) == checkpoint.files.entry(name).shape, name
        for i in range(min(checkpoint.blocks, 50)):
            batch = checkpoint.block(i)
            assert all(t.dtype == torch.float64 for t in batch.tensors.values())
            packed = checkpoint.pack(i, batch)
            for name, tensor in packed.items():
                original = checkpoint.files.read(name).double()
                assert torch.equal(tensor.nan_to_num(), original.nan_to_num()), name
        for norm in checkpoint.norm_names:
            assert all(part.shape == (checkpoint.D,) for part in checkpoint.norm(norm))
        assert isinstance(repr(checkpoint) + str(checkpoint.dtype), str)
        assert len(checkpoint.others) >= len(checkpoint.unknown)


@contextmanager
def written(case: Case, folder: Path) -> Iterator[tuple[Path, Expected]]:
    """The case on disk: what is to be opened, and what must come of it."""
    home = folder / "case"
    yield case.write(home)
    shutil.rmtree(home)
    for stray in folder.glob("outside-*"):
        stray.unlink()


def too_slow(*_: object) -> None:
    raise TooSlow


def outcome(path: Path, expected: Expected) -> tuple[str, float, str]:
    """`error`, `sound` or what is wrong; seconds; the message."""
    ended, message = "too slow", ""
    start = time.perf_counter()
    with suppress(TooSlow):  # around all of it: the alarm may ring while an error is on its way
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            read_all(path)
            ended = "sound"
        except CheckpointError as error:
            ended, message = "error", str(error)
        except Exception as error:
            ended, message = "unexpected exception", f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.perf_counter() - start
    if seconds > SECONDS:
        ended = "too slow"
    elif ended == "error" and not (0 < len(message) <= CHARACTERS and message.isprintable()):
        ended = "unclear message"
    elif expected != "any" and ended in ("error", "sound") and ended != expected:
        ended = f"{ended}, expected {expected}"
    return ended, seconds, message


def in_process(cases: list[Case], folder: Path, verbose: bool) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, too_slow)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    slowest: dict[str, float] = defaultdict(float)
    wrong: list[str] = []
    worst_memory, heaviest, repeated = 0.0, "", 0
    descriptors = len(os.listdir("/proc/self/fd"))
    for case in cases:
        with written(case, folder) as (path, expected):
            CLEAR.write_text("5")  # VmHWM starts again, without what making the case took
            for _ in range(TRIES):
                ended, seconds, message = outcome(path, expected)
                if ended != "too slow":
                    break
                repeated += 1
        counts[case.category][ended] += 1
        slowest[case.category] = max(slowest[case.category], seconds)
        if memory("VmHWM") > worst_memory:
            worst_memory, heaviest = memory("VmHWM"), f"{case.category} {case.number}"
        if ended not in ("error", "sound"):
            name = case.base.family.name
            wrong.append(f"{case.category} {case.number} ({name}): {ended}: {message[:200]!r}")
            print(wrong[-1])
        elif verbose:
            print(f"{case.category} {case.number}: {ended} {seconds:.3f} s {message}")
    return {
        "counts": {category: dict(counter) for category, counter in counts.items()},
        "slowest": dict(slowest),
        "wrong": wrong,
        "worst_memory": worst_memory,
        "heaviest": heaviest,
        "repeated": repeated,
        "open_files": len(os.listdir("/proc/self/fd")) - descriptors,
    }


# --------------------------------------------------------------------------------- command line


def tnfn(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("tnfn"), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=120,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def opens(path: Path) -> bool:
    """Some cases are errors only when their tensors are read, which `inspect` need not do."""
    try:
        with Checkpoint(path):
            return True
    except CheckpointError:
        return False


def is_one_clear_line(result: subprocess.CompletedProcess[str]) -> bool:
    lines = result.stderr.splitlines()
    return (
        result.returncode == 1
        and len(lines) == 1
        and lines[0].startswith("error: ")
        and len(lines[0]) <= CHARACTERS
        and "Traceback" not in result.stdout + result.stderr
    )


def through_command_line(cases: list[Case], folder: Path, count: int) -> tuple[int, list[str]]:
    """So many cases that end in an error, of all categories in turn; those with another end."""
    queues: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        queues[case.category].append(case)
    done, wrong = 0, []
    turn = 0
    while done < count and any(queues.values()):
        for queue in queues.values():
            if done == count or not queue:
                continue
            # From the middle on: the first of a category are alike in all of them.
            case = queue.pop((7 * turn + len(queue) // 2) % len(queue))
            with written(case, folder) as (path, expected):
                if expected != "error" or opens(path):
                    continue
                done += 1
                result = tnfn("inspect", path)
            if not is_one_clear_line(result):
                shown = (result.stdout + result.stderr)[-300:]
                wrong.append(f"{case.category} {case.number}: {result.returncode}: {shown!r}")
                print(wrong[-1])
        turn += 1
    return done, wrong


# ----------------------------------------------------------------------------------------- main


def payload_works(folder: Path) -> bool:
    """Whether the pickles would do harm if someone read them; else they prove nothing."""
    marker = folder / "control"
    code = """if True:
        import os, pickle, sys
        for given in sys.argv[2:]:
            pickle.loads(bytes.fromhex(given))
            os.unlink(sys.argv[1])
    """
    pickles = [payload(protocol, marker).hex() for protocol in range(6)]
    command = [sys.executable, "-c", code, str(marker), *pickles]
    return not subprocess.run(command, timeout=60).returncode


def print_table(found: dict[str, Any]) -> None:
    for category, counts in found["counts"].items():
        shown = ", ".join(f"{count} {end}" for end, count in sorted(counts.items()))
        print(f"{category:<28} {shown:<28} slowest {found['slowest'][category]:.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    commands = 2 if options.quick else 50  # each starts Python and imports torch
    with tempfile.TemporaryDirectory(prefix="hostile") as name:
        folder, marker = Path(name), Path(name) / "marker"
        works = payload_works(folder)
        cases = list(all_cases(marker, 0.1 if options.quick else 1.0))
        level = memory("VmRSS")
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = int(memory("VmSize") * 2**20 + ADDRESS_SPACE)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        start = time.perf_counter()
        found = in_process(cases, folder, options.verbose)
        seconds = time.perf_counter() - start
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        lines, wrong_lines = through_command_line(cases, folder, commands)
        executed = marker.exists()
    above = found["worst_memory"] - level
    worst = max(found["slowest"].values())
    ends: Counter[str] = Counter()
    for counts in found["counts"].values():
        ends.update(counts)
    print_table(found)
    print(f"{len(cases)} cases in {seconds:.0f} s: {dict(ends)}")
    print(f"slowest {worst:.2f} s; {above:.0f} MB above the level before, at {found['heaviest']!r}")
    print(f"command line: {lines} cases, {len(wrong_lines)} wrong; something ran: {executed}")
    figures = {
        "cases": len(cases),
        "ends": dict(ends),
        "categories": found["counts"],
        "wrong": len(found["wrong"]),
        "slowest_seconds": round(worst, 3),
        "repeated_because_slow": found["repeated"],
        "megabytes_above": round(above, 1),
        "open_files_left": found["open_files"],
        "executed": executed,
        "payload_works": works,
        "command_line_cases": lines,
        "command_line_wrong": len(wrong_lines),
    }
    targets = {
        "cases": 500 if options.quick else 5000,
        "wrong": 0,
        "slowest_seconds": SECONDS,
        "megabytes_above": MEGABYTES,
        "command_line_cases": commands,
        "command_line_wrong": 0,
    }
    ok = (
        len(cases) >= targets["cases"]
        and not found["wrong"]
        and worst <= SECONDS
        and above <= MEGABYTES
        and not found["open_files"]
        and works
        and not executed
        and lines == targets["command_line_cases"]
        and not wrong_lines
    )
    if options.json:
        print(json.dumps({"figures": figures, "targets": targets, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
