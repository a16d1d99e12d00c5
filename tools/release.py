"""Build what would be released, and check it: nothing is uploaded.

    python tools/release.py FOLDER    # the sdist and the wheel that is built from it go there

Checked: that twine finds nothing to warn of, so that PyPI renders the page; that the page has no
link or picture which only a checkout has; what is in both files and what is not; that a tag of
HEAD, the newest heading of the changelog and CITATION.cff, where they say a version, say this one.
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What the wheel must have, beside modules.
WANTED = (
    "transformer_nfn/py.typed",
    "transformer_nfn/zoo/recipes/digits-mini.toml",
)
#: Where the files of an sdist may lie.
SOURCES = ("src/", "CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "PKG-INFO")
SOURCES += ("pyproject.toml", ".gitignore")  # which hatchling adds: it reads both
_LINK = re.compile(r"!?\[[^\]]*\]\((?!https://)[^)]*\)")


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel of it."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True)
    (source,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return source, wheel


def problems(source: Path, wheel: Path, version: str) -> Iterator[str]:
    """What is wrong with both files."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = message_from_bytes(opened.read(metadata))
    yield from (f"{wheel.name} lacks {name}" for name in WANTED if name not in names)
    inside = ("transformer_nfn/", f"transformer_nfn-{version}.dist-info/")
    yield from (f"{wheel.name} has {name}" for name in names if not name.startswith(inside))
    if not any(name.endswith("licenses/LICENSE") for name in names):
        yield f"{wheel.name} lacks LICENSE"
    if said["Version"] != version:
        yield f"{wheel.name} is of version {said['Version']}, pyproject.toml says {version}"
    page = said.get_payload(decode=True)
    assert isinstance(page, bytes)
    links = _LINK.findall(page.decode())
    yield from (f"the page on PyPI has {link}, which is in a checkout alone" for link in links)
    with tarfile.open(source) as archive:
        files = [member.name.partition("/")[2] for member in archive if member.isfile()]
    yield from (f"{source.name} has {name}" for name in files if not name.startswith(SOURCES))
    missing = {name.removeprefix("src/") for name in files} & set(names)
    modules = {name for name in names if name.startswith("transformer_nfn/")}
    yield from (f"{source.name} lacks {name}" for name in sorted(modules - missing))


def contradictions(version: str) -> Iterator[str]:
    """Other places that say a version, and another one."""
    cited = re.search(r"^version: *(\S+)", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    if cited is not None and cited[1] != version:
        yield f"CITATION.cff says {cited[1]}, pyproject.toml {version}"
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if headings[0] not in ("Unreleased", version):
        yield f"CHANGELOG.md begins with {headings[0]}, pyproject.toml says {version}"
    tags = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split()
    yield from (f"HEAD has the tag {tag}, not v{version}" for tag in tags if tag != f"v{version}")


def main() -> int:
    """Build and check; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    if folder.is_dir() and any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source, wheel = build(folder)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", source, wheel], check=True)
    found = [*problems(source, wheel, project["version"]), *contradictions(project["version"])]
    print(*found or [f"{source.name} and {wheel.name} are sound"], sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
