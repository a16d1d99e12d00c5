"""Run the examples of README.md and of the tutorials, and compare what they print with the page.

Each page runs in a directory that is empty at first, from its top to its end:

- of a fenced `sh` block the lines that call `tnfn`;
- each fenced `python` block, in a process of its own with warnings as errors; a `text` block below
  it is what it prints;
- of a fenced `console` block the lines `$ tnfn …`, and `$ echo $?` for the exit code that the call
  before must have. Lines shown below a call are compared if they have no digit: numbers depend on
  the model. README.md shows a session with models that are not here, so its are not run.

What a page downloads is replaced by something small that is made here, and large numbers by small
ones, see `PAGES`.

    python tools/readme.py                  # all pages
    python tools/readme.py train            # those with this in their name
"""

import difflib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.forks import Ended, forked, prepare, run_python, run_tnfn  # noqa: E402

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
#: What most commands import, beside our own package.
IMPORTED = ("pandas", "pyarrow.parquet", "safetensors.torch", "scipy.optimize")


class Page(NamedTuple):
    """A page, what it needs, what is replaced in its code, and whether its sessions are run.

    Of what its examples `need`, each would import it anew.
    """

    path: str
    prepare: Callable[[Path], None] = lambda folder: None
    small: Mapping[str, str] = {}
    sessions: bool = True
    need: tuple[str, ...] = ()


class Example(NamedTuple):
    """What to run, what is shown below it, its exit code, and the line on which the block starts.

    `shown` is all that is printed, `lines` are some of it.
    """

    line: int
    calls: tuple[Callable[[], None], ...]
    shown: str | None = None
    lines: tuple[str, ...] = ()
    code: int = 0


def tiny_bert(folder: Path) -> None:
    """A model in the place of the one that the tutorial downloads."""
    script = """
import torch
from transformers import BertConfig, BertModel
torch.manual_seed(0)
sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
config = BertConfig(**sizes, vocab_size=90, max_position_embeddings=64, initializer_range=0.2)
BertModel(config).save_pretrained("MiniLM")
"""
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True, capture_output=True)


def short_recipe(folder: Path) -> None:
    """The recipe of a page with a quarter of its epochs."""
    recipe = ROOT / "src" / "transformer_nfn" / "zoo" / "recipes" / "digits-mini.toml"
    text = recipe.read_text(encoding="utf-8").replace("epochs = 12", "epochs = 3")
    text = text.replace("checkpoints = [6, 9, 12]", "checkpoints = [1, 2, 3]")
    (folder / "short.toml").write_text(text, encoding="utf-8")


#: Of so few runs only the second split has two on each of its sides.
FEW_RUNS = {
    "build digits-mini --runs 40": "build short.toml --runs 13",
    "--name digits": "--name digits --split 1",
}
PAGES = (
    Page(
        "README.md",
        short_recipe,
        {**FEW_RUNS, "run000000-12.": "run000000-3.", "run000000-6.": "run000000-1."},
        sessions=False,
        need=("lightgbm", "scipy.stats"),
    ),
    Page("docs/tutorials/first-verdict.md", tiny_bert),
    Page(
        "docs/tutorials/train.md",
        short_recipe,
        {**FEW_RUNS, "range(30)": "range(2)"},
        need=("torch._dynamo", "scipy.stats"),  # optimizers import the first
    ),
    # Two networks in each fold are as few as go; tests run the benchmark.
    Page(
        "docs/tutorials/own-ranking.md",
        small={
            "NETWORKS = 70": "NETWORKS = 30",
            "randint(5, 120, ())": "randint(1, 12, ())",
            "tnfn bench run --zoo mine --models statistics --splits 1 --no-report --out bench": "",
        },
        need=("lightgbm", "scipy.stats"),
    ),
)


def examples(page: Page) -> Iterator[Example]:
    """Find what a page tells its reader to run."""
    text = (ROOT / page.path).read_text(encoding="utf-8")
    for large in page.small:
        assert large in text, f"{page.path} has no {large!r}"
    blocks = list(FENCE.finditer(text))
    for block, following in pairwise([*blocks, None]):
        assert block is not None
        line = text.count("\n", 0, block.start()) + 1
        code = block[2]
        for large, little in page.small.items():
            code = code.replace(large, little)
        if block[1] == "python":
            shown = following[2] if following is not None and following[1] == "text" else None
            yield Example(line, (partial(run_python, code),), shown)
        elif block[1] == "sh":
            calls = [call for call in code.splitlines() if call.startswith("tnfn ")]
            if calls:
                yield Example(line, tuple(map(command, calls)))
        elif block[1] == "console" and page.sessions:
            yield from session(line, code)


def session(line: int, text: str) -> Iterator[Example]:
    """The calls of a console block."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    for part, following in pairwise([*parts, ""]):
        call, *below = part.splitlines()
        if call.startswith("tnfn "):
            asked = following.splitlines() if following.startswith("echo $?") else ["", "0"]
            shown = tuple(row for row in below if row.strip() and not re.search(r"\d|…", row))
            yield Example(line, (command(call),), None, shown, int(asked[1]))


def command(call: str) -> Callable[[], None]:
    """A line that calls `tnfn`, and has nothing else for the shell than a comment."""
    words = shlex.split(call, comments=True)
    assert not re.search(r"[|&;<>$`*?~]", " ".join(words)), f"not only a call of tnfn: {call}"
    return partial(run_tnfn, words[1:])


def run_all(example: Example, folder: str) -> Ended:
    """Run the calls of an example, up to the first that fails."""
    # Nothing is left behind in the user's folders.
    env = {"TNFN_MODELS": f"{folder}/.models", "XDG_CACHE_HOME": f"{folder}/.cache"}
    out = err = ""
    for call in example.calls:
        ended = forked(call, folder, env)
        out, err = out + ended.out, err + ended.err
        if ended.code:
            return Ended(ended.code, out, err)
    return Ended(0, out, err)


def complaint(example: Example, folder: str) -> str | None:
    """Run one example and say what is wrong with it, or None."""
    run = run_all(example, folder)
    if run.code != example.code:
        return f"exit code {run.code}, not {example.code}\n{run.out}{run.err}"
    printed = [" ".join(row.split()) for row in run.out.splitlines()]
    for row in example.lines:
        if " ".join(row.split()) not in printed:
            return f"not printed: {row}\n{run.out}"
    if example.shown is None or example.shown.rstrip() == run.out.rstrip():
        return None
    shown, got = example.shown.rstrip().splitlines(), run.out.rstrip().splitlines()
    return "\n".join(difflib.unified_diff(shown, got, "shown", "printed", lineterm=""))


def check(page: Page) -> bool:
    """Run a page, and say what is wrong with it."""
    found = list(examples(page))
    if not found:
        print(f"{page.path}: nothing to run")
        return False
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        page.prepare(Path(folder))
        prepare(*IMPORTED, *page.need)
        for example in found:
            problem = complaint(example, folder)
            if problem is not None:
                wrong += 1
                print(f"{page.path}, example at line {example.line}:\n{problem}")
    print(f"{page.path}: {len(found) - wrong} of {len(found)} examples do what the page says")
    return not wrong


def main() -> int:
    """Check every page, or those named; the exit code is 1 if an example is wrong."""
    chosen = [page for page in PAGES if all(word in page.path for word in sys.argv[1:])]
    sound = [check(page) for page in chosen]
    return 0 if sound and all(sound) else 1


if __name__ == "__main__":
    sys.exit(main())
