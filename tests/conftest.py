import gc
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import fsspec
import pytest
import torch
import typer.testing
from hypothesis import settings
from typer.main import get_command

settings.register_profile("dev", max_examples=10, deadline=None)
# derandomize: CI gives the same verdict on the same commit. No deadline: the first example of a
# test pays for torch's warm-up.
settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True, print_blob=True)
# Where every call is checked for its shapes, which takes ten times as long as most calls do.
settings.register_profile("few", max_examples=3, deadline=None, derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# The tensors of the tests are tiny: threads cost more than they give, and the workers of
# pytest-xdist would fight for the same cores.
torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where every call is checked, what is of a wrong type never reaches our own words."""
    if config.getoption("--jaxtyping-packages", None):
        left_out = pytest.mark.skip(reason="the check of signatures refuses it before")
        for item in items:
            if item.get_closest_marker("wrong_types"):
                item.add_marker(left_out)


def pytest_collection_finish() -> None:
    """What was imported stays: no collection of garbage looks at its million objects again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    """Thousands of small files need not outlive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def commands_are_made_once() -> Iterator[None]:
    """typer makes all commands anew for each call, which is a third of the time of most."""

    @cache
    def made(app: typer.Typer, detection: str | None) -> Any:
        return get_command(app)  # whether it detects the shell is settled here

    def command(app: typer.Typer) -> Any:
        return made(app, os.environ.get("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", command)
        patch.setattr(typer.testing, "_get_command", command)
        yield


@pytest.fixture(autouse=True)
def same_start() -> None:
    """Layers draw their parameters from torch's global generator: the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty place that is not local."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield "memory://hub"
    fs.store.clear()
