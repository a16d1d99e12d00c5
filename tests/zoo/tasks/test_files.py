import sys
from pathlib import Path

import pytest

from transformer_nfn.zoo.tasks import DataError
from transformer_nfn.zoo.tasks.files import HubFiles, find

HUB = HubFiles("owner/set", ("data/a.parquet", "data/b.parquet"))


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TNFN_DATA", raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.gz").touch()
    (tmp_path / "set" / "b").touch()
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, str]]:
    """What was downloaded from the hub."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    calls = []

    def download(repo_id: str, filename: str, *, repo_type: str) -> str:
        calls.append((repo_id, filename, repo_type))
        return str(tmp_path / filename)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return calls


def test_files_are_found_with_and_without_gz(
    data: Path, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str, str]]
) -> None:
    wanted = {"a.gz": data / "set" / "a.gz", "b.gz": data / "set" / "b"}
    assert find(data, "set", ("a.gz", "b.gz"), HUB) == wanted
    monkeypatch.setenv("TNFN_DATA", str(data))
    assert find(None, "set", ("a.gz", "b.gz"), HUB) == wanted
    monkeypatch.setenv("TNFN_DATA", "elsewhere")
    assert find(data, "set", ("a.gz", "b.gz"), HUB) == wanted
    assert not asked


@pytest.mark.parametrize("folder", ["set", "other"])
def test_where_there_is_a_folder_nothing_is_downloaded(
    data: Path, folder: str, monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str, str]]
) -> None:
    with pytest.raises(DataError, match=r"no file c\.gz in .*: put it there, or set TNFN_DATA or"):
        find(data, folder, ("c.gz",), HUB)
    monkeypatch.setenv("TNFN_DATA", str(data))
    with pytest.raises(DataError, match=str(data / folder)):
        find(None, folder, ("c.gz",), HUB)
    assert not asked


def test_without_a_folder_the_hub_has_them(
    tmp_path: Path, asked: list[tuple[str, str, str]]
) -> None:
    assert find(None, "set", ("a.gz",), HUB) == {name: tmp_path / name for name in HUB.names}
    assert asked == [("owner/set", name, "dataset") for name in HUB.names]


def test_an_empty_variable_is_no_folder(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, str, str]]
) -> None:
    monkeypatch.setenv("TNFN_DATA", "")
    find(None, "set", ("a.gz",), HUB)
    assert len(asked) == 2


def test_without_folder_and_hub_there_is_advice() -> None:
    with pytest.raises(DataError, match=r"looked for set/a\.gz: set TNFN_DATA or --data"):
        find(None, "set", ("a.gz",), None)


def test_a_missing_hub_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match=r"set/a\.gz: .* `pip install 'transformer-nfn\[hub\]'`"):
        find(None, "set", ("a.gz",), HUB)


def test_a_failed_download_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")

    def fail(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(DataError, match=r"owner/set could not .* \(no network\): set TNFN_DATA"):
        find(None, "set", ("a.gz",), HUB)
