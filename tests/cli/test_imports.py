"""What is imported when: commands start in a moment, and readers need no builder's libraries."""

import subprocess
import sys

import pytest


def imported(statement: str, modules: set[str]) -> set[str]:
    """Which of the modules a fresh Python has after a statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules.keys() & {modules!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    return set(done.stdout.split())


def test_the_command_line_starts_without_the_heavy_libraries():
    heavy = {"torch", "ray", "pyarrow", "numpy", "sklearn", "gensim", "matplotlib", "pandas"}
    assert imported("import transformer_nfn.cli", heavy) == set()


#: One after the other in one process, since each takes seconds: what a later one imports on top of
#: an earlier one it would import by itself as well.
STAGES = {
    "jobs": "import transformer_nfn.jobs",
    "zoo": "import transformer_nfn.zoo, transformer_nfn.zoo.dataset",
    "no data": """
from transformer_nfn.zoo.tasks import DataError, load_task
try: load_task("mnist", data="nowhere")
except DataError: pass
else: raise SystemExit("there are data")
""",
    "digits": "load_task('digits')",
    "bench": "import transformer_nfn.bench",
}
#: By stage, what may not be imported yet.
UNWANTED = {
    "jobs": {"torch", "ray"},
    "zoo": {"ray", "sklearn", "gensim", "matplotlib", "datasets", "huggingface_hub", "duckdb"},
    "no data": {"sklearn", "gensim", "huggingface_hub", "PIL"},
    "digits": {"sklearn", "scipy", "gensim", "huggingface_hub", "PIL"},
    "bench": {"ray", "sklearn", "scipy", "xgboost", "lightgbm", "matplotlib"},
}
NEEDED = {"jobs": {"pyarrow"}, "zoo": {"torch"}, "bench": {"torch"}}


@pytest.fixture(scope="module")
def after() -> dict[str, set[str]]:
    """The names of all modules after each stage."""
    note = "\nprint(*{name.partition('.')[0] for name in sys.modules})\n"
    code = "import sys\n" + "".join(statement + note for statement in STAGES.values())
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    lines = map(set, map(str.split, done.stdout.splitlines()))
    return dict(zip(STAGES, lines, strict=True))


@pytest.mark.parametrize("stage", STAGES)
def test_nothing_is_imported_that_only_some_need(stage, after):
    assert after[stage] & UNWANTED[stage] == set()
    assert after[stage] >= NEEDED.get(stage, set())


@pytest.mark.parametrize("name", ["json", "colorsys"])
def test_an_import_is_noticed(name):
    assert imported(f"import {name}", {name, "mailbox"}) == {name}
