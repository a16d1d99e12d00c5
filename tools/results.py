"""The plan of docs/results and docs/zoos: build the zoos, run the benchmark, write the pages.

    python tools/results.py ../zoos --hours 3       # again, to go on where it stopped
    python tools/results.py ../zoos --list          # only the commands, in their order
    python tools/results.py ../zoos --at-most 600   # smaller zoos
    python tools/results.py ../zoos --only mnist-small,mnist-small-shared

Every command resumes, so what is done is not done again; after the given hours the running one is
interrupted, which keeps what it has finished. Zoos may be on several machines: the predictions of
those that are not here stay in docs/results, and are shown beside the new ones. The exit code is 0
once everything is there, 3 if the time was not enough, else that of the command that failed.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_nfn.bench.models.fittings import CHOSEN, NEURAL, candidates
from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.protocol.experiments import SIZES

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "results"
SEARCHES = PAGES / "fits"
CARDS = ROOT / "docs" / "zoos"
OUT_OF_TIME = 3
#: An interrupted command writes its state; so long it may take.
GRACE = 120.0


class Source(NamedTuple):
    """A zoo of the tables."""

    recipe: str
    runs: int
    shared: bool = False
    #: Models for which its task has too few inputs.
    without: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """Its folder among the zoos."""
        return f"{self.recipe}-shared" if self.shared else self.recipe


#: For choices that no table may see, by what they are zoos of.
TUNING = {
    ("mnist", "independent"): Source("mnist-tuning", 192),
    ("ag_news", "shared"): Source("agnews-tuning", 192, shared=True),
}
#: Of the tables, those first that say most.
ZOOS = (
    Source("digits-mini", 128, without=("confidence", "consensus")),
    Source("mnist-small", 2400),
    Source("mnist-small", 1200, shared=True),
    Source("agnews-small", 600),
    Source("agnews-small", 600, shared=True),
    Source("mnist-good", 300),
    Source("mnist-small-residual", 600),
)
#: Fitted three times in two splits.
SEEDED = ("nfn-authors", *NEURAL)
#: Not split 0, on which agreement probes were designed; what takes longest is fitted to two of the
#: others only, and of a larger zoo it learns from so many runs.
FOUR, TWO, COSTLY_RUNS = "--splits 1,2,3,4", "--splits 1,2", 600
#: What takes longest.
COSTLY = (
    "nfn-authors",
    "tokens",
    "probes",
    "probegen",
    "agreement",
    "agreement-noise",
    "agreement-invariants",
)
OTHERS = tuple(model for model in main_models() if model not in COSTLY)
#: What is shown inputs of the task learns little from other runs, and has no learning curve.
GROWING = ",".join(model for model in OTHERS if not MODELS[model].is_shown_inputs)
#: Of the paper, and what is cheap.
FEW = "nfn,mlp,statnn,statistics,invariants"
ASKED = "statistics,invariants,blockwise,hyperparameters"
#: Besides the main table: the experiment, on which zoos, and what else is said.
EXPERIMENTS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("sizes", ("mnist-small", "mnist-small-shared"), f"--models {GROWING}"),
    ("components", ("mnist-small-shared",), "--train-runs 300"),
    ("components", ("agnews-small-shared",), ""),
    ("channels", ("mnist-small-shared",), "--train-runs 300"),
    ("channels", ("agnews-small-shared",), ""),
    ("augmentation", ("mnist-small-shared",), f"--models {FEW} --train-runs 300"),
    ("augmentation", ("agnews-small-shared",), f"--models {FEW}"),
    ("thresholds", ("mnist-small-shared", "agnews-small-shared"), f"--models {FEW}"),
    ("questions", ("mnist-small", "mnist-small-shared"), f"--models {ASKED}"),
    ("held-out", ("mnist-small", "mnist-small-shared"), f"--models {ASKED}"),
)


def commands(
    zoos: Path, at_most: int | None, ray: bool, only: Collection[str] = ()
) -> Iterator[list[str]]:
    """What is run, in this order: zoo by zoo, then what else is asked of them, then the pages."""
    parallel = ["--ray"] if ray else []
    tnfn = [sys.executable, "-m", "transformer_nfn"]
    out, chosen = str(zoos / "bench"), [zoo for zoo in ZOOS if not only or zoo.folder in only]

    def build(zoo: Source) -> list[str]:
        asked = ["zoo", "build", zoo.recipe, "--out", str(zoos / zoo.folder)]
        asked += ["--runs", str(runs_of(zoo))]
        return [*tnfn, *asked, *(["--seeds", "shared"] if zoo.shared else []), *parallel]

    def runs_of(zoo: Source) -> int:
        return zoo.runs if at_most is None else min(zoo.runs, at_most)

    def costly(zoo: Source, models: Collection[str], more: str, runs: int = COSTLY_RUNS) -> str:
        fewer = f" --train-runs {runs}" if runs < runs_of(zoo) else ""
        return f"--models {','.join(models)} {TWO}{more}{fewer}"

    def bench(experiment: str, folders: Sequence[str], more: str) -> list[str]:
        named = [part for folder in folders for part in ("--zoo", str(zoos / folder))]
        asked = ["bench", "run", *named, "--out", out, "--experiment", experiment, "--no-report"]
        return [*tnfn, *asked, *shlex.split(more), *parallel]

    for networks, zoo in TUNING.items():
        search, models = SEARCHES / f"{zoo.folder}.json", CHOSEN[networks]
        if not _is_searched(search, models):
            yield build(zoo)
            fits = [str(ROOT / "tools" / "fits.py"), str(zoos / zoo.folder)]
            yield [sys.executable, *fits, "--out", str(search)]
    for zoo in chosen:
        yield build(zoo)
        yield bench("main", [zoo.folder], costly(zoo, COSTLY, ""))
        others = ",".join(model for model in OTHERS if model not in zoo.without)
        yield bench("main", [zoo.folder], f"--models {others} {FOUR}")
    there = {zoo.folder for zoo in chosen}
    slow = [model for model in SEEDED if model in COSTLY]
    for zoo in chosen:
        fast = [model for model in SEEDED if model not in slow]
        yield bench("main", [zoo.folder], f"--models {','.join(fast)} {TWO} --seeds 3")
        yield bench("main", [zoo.folder], costly(zoo, slow, " --seeds 3"))
        if zoo.recipe == "mnist-small":
            for size in SIZES:
                if size < min(COSTLY_RUNS, runs_of(zoo)):
                    yield bench("main", [zoo.folder], costly(zoo, COSTLY, "", size))
    for experiment, folders, more in EXPERIMENTS:
        if there.intersection(folders):
            yield bench(experiment, [one for one in folders if one in there], f"{more} {TWO}")
    report = ["bench", "report", out, str(PAGES), "--to", str(PAGES)]
    yield [*tnfn, *report, "--notes", str(PAGES / "notes.md")]


def copy_cards(zoos: Path, to: Path) -> None:
    """Make pages of the documentation from the data cards of the zoos that are here."""
    for zoo in ZOOS:
        folder, page = zoos / zoo.folder, to / f"{zoo.folder}.md"
        if (folder / "README.md").is_file():
            _, _, card = (folder / "README.md").read_text("utf-8").split("---\n", 2)
            page.write_text(card.strip().replace("(accuracy.png)", f"({zoo.folder}.png)") + "\n")
            shutil.copyfile(folder / "accuracy.png", page.with_suffix(".png"))


def _is_searched(search: Path, models: Collection[str]) -> bool:
    """Whether all candidates of these models were fitted, here or elsewhere."""
    if not search.is_file():
        return False
    fitted = Counter(fit["model"] for fit in json.loads(search.read_text("utf-8"))["fits"])
    return all(fitted[model] == len(candidates(model)) for model in models)


def run(command: list[str], until: float | None) -> int:
    """Run one, and interrupt it when the time is over."""
    left = None if until is None else until - time.monotonic()
    if left is not None and left <= 0:
        return OUT_OF_TIME
    print(f"\n== {shlex.join(command)}", flush=True)
    # In the background of a shell an interrupt is ignored, by all that is started from here too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A group of its own: the interrupt has to reach what it has started.
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            return process.wait(left)
        except subprocess.TimeoutExpired:
            stopped = OUT_OF_TIME
        except KeyboardInterrupt:
            stopped = 128 + signal.SIGINT
        for sign in (signal.SIGINT, signal.SIGKILL):
            os.killpg(process.pid, sign)
            try:
                process.wait(GRACE)
                break
            except subprocess.TimeoutExpired:
                continue
    return stopped


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("zoos", type=Path, help="folder of the zoos, and of the benchmark's cells")
    parser.add_argument("--hours", type=float, help="stop after so many")
    parser.add_argument("--at-most", type=int, help="runs of each zoo")
    parser.add_argument("--only", default="", help="folders of these zoos, with commas between")
    parser.add_argument("--ray", action="store_true", help="on all cores of this machine")
    parser.add_argument("--list", action="store_true", help="only show the commands")
    given = parser.parse_args(arguments)
    only = given.only.split(",") if given.only else []
    if unknown := set(only) - {zoo.folder for zoo in ZOOS}:
        parser.error(f"no zoo {', '.join(sorted(unknown))}: {', '.join(z.folder for z in ZOOS)}")
    until = None if given.hours is None else time.monotonic() + 3600 * given.hours
    for command in commands(given.zoos.absolute(), given.at_most, given.ray, only):
        if given.list:
            print(shlex.join(command))
            continue
        code = run(command, until)
        if code == OUT_OF_TIME:
            print("\nthe time is over: run it again to go on", file=sys.stderr)
        if code:
            return code
    if not given.list:
        copy_cards(given.zoos, CARDS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
