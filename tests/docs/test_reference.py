"""Pages that are made from code are fresh, and those written by hand name all there is."""

import re
import subprocess
import sys
from pathlib import Path

from tools.reference import PAGES, commands
from transformer_nfn.checkpoints import FAMILIES

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


def test_made_pages_are_fresh() -> None:
    words = [sys.executable, str(ROOT / "tools" / "reference.py"), "--check"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_has_a_section_with_an_example() -> None:
    page = PAGES["cli.md"]()
    for name in commands():
        section = page.split(f"### `tnfn {name}`\n")[1].split("\n### ")[0]
        assert section.count(f"$ tnfn {name} ") + section.count(f"$ tnfn {name}\n") >= 2, name
        assert "--json" in section, name


def test_the_table_of_models_names_every_model_type() -> None:
    page = (REFERENCE / "models.md").read_text()
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| ")]
    named = {word for row in rows for word in re.findall(r"[\w-]+", row)}
    assert {kind for family in FAMILIES.values() for kind in family.keys} <= named


def test_the_home_page_counts_the_architectures() -> None:
    ours = ("zoo-", "torch-", "timm-")  # layouts that are not those of `transformers`
    kinds = {kind for family in FAMILIES.values() for kind in family.keys}
    count = sum(not kind.startswith(ours) for kind in kinds)
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert f"[{count} architectures]" in page.read_text()
