import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import yaml

from tools import release

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("transformer_nfn/__init__.py", *release.WANTED)


def made(
    folder: Path,
    *,
    wheel: tuple[str, ...] = MODULES,
    source: tuple[str, ...] = MODULES,
    beside: tuple[str, ...] = (),
    page: str = "words",
    version: str = "1.2",
) -> list[str]:
    """What is said of a release with these files."""
    about = f"transformer_nfn-{version}.dist-info"
    with zipfile.ZipFile(folder / "a.whl", "w") as archive:
        for name in (*wheel, f"{about}/licenses/LICENSE"):
            archive.writestr(name, "")
        archive.writestr(f"{about}/METADATA", f"Name: a\nVersion: {version}\n\n{page}\n")
    with tarfile.open(folder / "a.tar.gz", "w:gz") as archive:
        for name in ("README.md", "PKG-INFO", *beside, *(f"src/{one}" for one in source)):
            archive.addfile(tarfile.TarInfo(f"a-1.2/{name}"), io.BytesIO())
    return list(release.problems(folder / "a.tar.gz", folder / "a.whl", "1.2"))


def test_a_sound_release(tmp_path):
    assert made(tmp_path, page="[a paper](https://openreview.net)") == []


def test_what_is_missing_or_too_much(tmp_path):
    typed, *rest = release.WANTED
    assert made(tmp_path, wheel=(MODULES[0], *rest)) == [f"a.whl lacks {typed}"]
    assert made(tmp_path, wheel=(*MODULES, "tests/a.py")) == ["a.whl has tests/a.py"]
    assert made(tmp_path, source=MODULES[1:]) == [f"a.tar.gz lacks {MODULES[0]}"]
    assert made(tmp_path, beside=("tests/a.py",)) == ["a.tar.gz has tests/a.py"]


def test_links_that_only_a_checkout_has(tmp_path):
    for link in ("![a picture](docs/a.png)", "[the rules](docs/bench.md)", "[here](#cite)"):
        assert made(tmp_path, page=f"See {link}.") == [
            f"the page on PyPI has {link}, which is in a checkout alone"
        ]


def test_another_version(tmp_path):
    assert "is of version 1.3" in " ".join(made(tmp_path, version="1.3"))


def test_places_that_contradict_the_version(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2] - today\n")
    assert list(release.contradictions("1.2")) == []
    assert list(release.contradictions("1.3")) == [
        "CITATION.cff says 1.2, pyproject.toml 1.3",
        "CHANGELOG.md begins with 1.2, pyproject.toml says 1.3",
    ]
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    commit = ["git", *who, "commit", "-q", "--allow-empty", "-m", "a"]
    subprocess.run(commit, cwd=tmp_path, check=True)
    subprocess.run(["git", "tag", "v1.1"], cwd=tmp_path, check=True)
    assert list(release.contradictions("1.2")) == ["HEAD has the tag v1.1, not v1.2"]


def test_the_workflow_runs_what_everybody_runs():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == ["bash .ci/run"]
    assert job["timeout-minutes"] <= 120
    assert all("@v" in step["uses"] for step in job["steps"] if "uses" in step)
