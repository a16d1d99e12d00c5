import sys

import pytest

from tests.zoo.tasks.samples import real_data
from transformer_nfn.zoo.tasks import TASKS, DataError, load_task


def test_an_unknown_task_is_told() -> None:
    with pytest.raises(DataError, match="no task 'cifar', there are digits, mnist, ag_news"):
        load_task("cifar")


@pytest.mark.parametrize(("name", "library"), [("digits", "sklearn"), ("ag_news", "gensim.models")])
def test_a_missing_library_is_named(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("digits", "ag_news", "wordvectors"):
        monkeypatch.delitem(sys.modules, f"transformer_nfn.zoo.tasks.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(DataError, match=rf"needs {library}: `pip install 'transformer-nfn\[zoo\]"):
        load_task(name)


@real_data
@pytest.mark.parametrize("name", TASKS)
def test_every_name_is_a_task(name: str) -> None:
    assert load_task(name).name == name
