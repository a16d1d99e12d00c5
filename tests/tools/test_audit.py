import subprocess
from typing import Any

import pytest

from tools import audit


def package(name: str, *vulns: str) -> dict[str, Any]:
    found = [{"id": one, "aliases": [], "fix_versions": ["2"]} for one in vulns]
    return {"name": name, "version": "1", "vulns": found}


UNKNOWN = {"name": "a", "skip_reason": "Dependency not found on PyPI"}


def answer(monkeypatch: pytest.MonkeyPatch, *reports: str) -> None:
    """What pip-audit prints, service by service."""
    waiting = iter(reports)

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, next(waiting), "could not connect")

    monkeypatch.setattr(subprocess, "run", run)


def report(*packages: dict[str, Any]) -> str:
    return audit.json.dumps({"dependencies": list(packages)})


def test_a_vulnerability_fails(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    answer(monkeypatch, report(package("b"), package("a", "PYSEC-1")))
    assert audit.main() == 1
    assert "a 1: PYSEC-1, fixed in 2" in capsys.readouterr().out


def test_none_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    answer(monkeypatch, report(package("a"), package("b"), UNKNOWN))
    assert audit.main() == 0
    assert "no known vulnerability in 2 packages (pypi); 1 are not" in capsys.readouterr().out


def test_nobody_asked_is_no_clean_bill(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A service that knows no package, and one that is not there."""
    answer(monkeypatch, report(UNKNOWN, UNKNOWN), "")
    assert audit.main() == 0
    said = capsys.readouterr().out
    assert "NOT AUDITED by pypi: it knew 0 of 2" in said
    assert "NOT AUDITED by osv: could not connect" in said
    assert "NO AUDIT WAS DONE" in said
    assert "no known vulnerability" not in said


def test_the_second_service_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "", report(package("a", "X-1")))
    assert audit.main() == 1
