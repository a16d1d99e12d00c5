"""Whether `same` can be deceived: thousands of forged pairs, an adaptive attacker, honest copies.

    python benchmarks/same/forgeries.py --processes 2 --out FOLDER --json
    python benchmarks/same/forgeries.py --quick --json
    python benchmarks/same/forgeries.py --case 'weak direction gpt2 float32 3'

A forgery is a pair whose outputs, on 256 inputs that the verdict never sees, differ by more than 4
times what rounding the stored numbers of both files does. None may be called the same. Pairs below
that line are counted apart. Honest copies must not be called different, and at most one in a
thousand may be left undecided. The generators work on what each family declares, so a family that
is added later is attacked without new code.

`--out` keeps each result as a line of JSON, and a second run goes on from there. Each wrong answer
is printed as JSON; `--case` makes it again.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.material.spreading import spread_over
from benchmarks.same.forging.bases import DTYPES, FAMILIES, Bases, rng
from benchmarks.same.forging.contest import Result, all_kinds, play, summary
from benchmarks.same.forging.honest import HONEST
from benchmarks.same.forging.pairs import Case

_QUICK = {"forgeries": 6, "adaptive": 1, "honest": 4}
#: Of the verdict's inputs in the quick form, which is to be repeatable; else they are fresh.
_QUICK_SEED = 0
#: Cases given out at a time.
_BATCH = 48
_bases: Bases | None = None


def work_on(job: tuple[str, Case, int | None]) -> Result:
    """In a process whose bases are made once."""
    global _bases
    home, case, seed = job
    if _bases is None:
        _silence()
        folder = Path(home) / multiprocessing.current_process().name
        folder.mkdir(exist_ok=True)
        _bases = Bases(folder)
    return play(_bases, case, seed=seed)


def _silence() -> None:
    import warnings

    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


def cases(kinds: list[str], families: list[str]) -> Iterator[Case]:
    """Round after round all kinds, families and dtypes, each round in an order of its own."""
    every = [(k, f, d) for k in kinds for f in families for d in DTYPES]
    seed = 0
    while every:
        order = torch.randperm(len(every), generator=rng("order", seed)).tolist()
        yield from (Case(*every[i], seed) for i in order)
        seed += 1


class Contest:
    """Results so far, in memory and in a file."""

    def __init__(self, out: Path | None) -> None:
        self.results: dict[str, Result] = {}
        self._file = None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            path = out / "results.jsonl"
            if path.exists():
                for line in path.read_text().splitlines():
                    self.results[json.loads(line)["case"]] = json.loads(line)
            self._file = path.open("a")
        self.known = dict(self.results)
        self.counted: list[Result] = []

    def add(self, result: Result, *, new: bool) -> None:
        self.counted.append(result)
        if new and self._file:
            self._file.write(json.dumps(result) + "\n")
            self._file.flush()
        if result["wrong"]:
            print(json.dumps(result), file=sys.stderr)


def contest(
    play_all: Callable[[list[Case]], Iterable[Result]],
    record: Contest,
    source: Iterator[Case],
    wanted: int,
    what: str,
) -> None:
    """Play cases until there are as many as wanted: forgeries, honest copies, or attacks.

    The attacker's results below the line count too: how far he gets is his affair.
    """
    counts = {
        "forgeries": ("forgery",),
        "adaptive": ("forgery", "too small"),
        "honest": ("honest",),
    }[what]
    begin, done, tries = time.monotonic(), 0, 0
    while done < wanted and tries < 40 * wanted + 2000:
        batch = [next(source) for _ in range(min(_BATCH, max(wanted // 2, 1)))]
        tries += len(batch)
        new = [case for case in batch if case.key not in record.known]
        played = play_all(new)
        old = (record.known[case.key] for case in batch if case.key in record.known)
        for fresh, results in ((False, old), (True, played)):
            for result in results:
                record.add(result, new=fresh)
                done += result["status"] in counts
        spent = time.monotonic() - begin
        left = spent / max(done, 1) * max(wanted - done, 0)
        print(
            f"{what}: {done}/{wanted} after {spent:.0f} s, {left:.0f} s left, "
            f"{sum(r['wrong'] for r in record.counted)} wrong",
            file=sys.stderr,
        )


def remake(text: str) -> None:
    """One case again, with all that is known of it."""
    case = Case.parse(text)
    with tempfile.TemporaryDirectory() as home:
        print(json.dumps(work_on((home, case, None)), indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--forgeries", type=int, default=4000)
    parser.add_argument("--adaptive", type=int, default=500)
    parser.add_argument("--honest", type=int, default=4000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kinds", nargs="*", help="only these; a part of a name is enough")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--out", type=Path, help="a folder for results, to go on from")
    parser.add_argument("--case", help="'KIND FAMILY DTYPE SEED': make one again")
    arguments = parser.parse_args()
    if arguments.case:
        remake(arguments.case)
        return 0
    start = time.monotonic()
    chosen = [
        k for k in all_kinds() if not arguments.kinds or any(part in k for part in arguments.kinds)
    ]
    wanted = {name: getattr(arguments, name) for name in ("forgeries", "adaptive", "honest")}
    if arguments.quick:
        wanted = {name: min(_QUICK[name], number) for name, number in wanted.items()}
    groups = {
        "forgeries": [k for k in chosen if k not in HONEST and not k.startswith("adaptive")],
        "adaptive": [k for k in chosen if k.startswith("adaptive")],
        "honest": [k for k in chosen if k in HONEST],
    }
    record = Contest(arguments.out)
    seed = _QUICK_SEED if arguments.quick else None
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        many = stack.enter_context(spread_over(arguments.processes))

        def play_all(cases: list[Case]) -> Iterable[Result]:
            return many(work_on, [(home, case, seed) for case in cases])

        for what, kinds in groups.items():
            if kinds and wanted[what]:
                source = cases(kinds, arguments.families)
                contest(play_all, record, source, wanted[what], what)
    wanted = {name: number if groups[name] else 0 for name, number in wanted.items()}
    report = summary(record.counted, wanted)
    report["seconds"] = round(time.monotonic() - start)
    for name, value in report.items():
        print(f"{name}: {value}")
    if arguments.json:
        print(json.dumps(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
