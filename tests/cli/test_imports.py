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


def test_the_zoo_is_imported_without_what_only_some_need():
    extras = {"ray", "sklearn", "gensim", "matplotlib", "datasets", "huggingface_hub", "duckdb"}
    statement = "import transformer_nfn.zoo, transformer_nfn.zoo.dataset"
    assert imported(statement, extras | {"torch"}) == {"torch"}


def test_jobs_are_imported_without_torch():
    assert imported("import transformer_nfn.jobs", {"torch", "ray", "pyarrow"}) == {"pyarrow"}


def test_the_benchmark_is_imported_without_what_only_some_models_need():
    extras = {"ray", "sklearn", "xgboost", "lightgbm", "matplotlib"}
    assert imported("import transformer_nfn.bench", extras | {"torch"}) == {"torch"}


@pytest.mark.parametrize("name", ["json", "colorsys"])
def test_an_import_is_noticed(name):
    assert imported(f"import {name}", {name, "mailbox"}) == {name}
