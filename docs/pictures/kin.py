"""Draw kin.png: copies in disguise and tuned copies of small nets among strangers.

python docs/pictures/kin.py
"""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.hub.planted import plant, templates
from tests.kinship.test_dedup import disguise, tune
from transformer_nfn.kinship import dedup, plot_kin

HERE = Path(__file__).parent


def relatives(home: Path, source: Path, count: int) -> None:
    """By turns a disguise and a fine-tune, each by more than the one before."""
    alone = home / f".{source.stem}"
    alone.mkdir()
    shutil.copy(source, alone / "model.safetensors")
    shutil.copy(source.parent / "config.json", alone)
    for number in range(count):
        out = home / f"kin-{source.stem}-{number}"
        if number % 2:
            tune(alone, out, 0.01 * (number + 1), seed=number)
        else:
            disguise(alone, out, seed=number)


def main() -> None:
    """Make the nets, compare them, draw."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        plant(home / "nets", 340, templates(home / "templates"))
        nets = sorted((home / "nets" / "gpt2-0" / "0000").glob("*.safetensors"))
        for number, net in enumerate(nets[:4]):
            relatives(home / "nets", net, 4 * (number + 1))
        found = dedup(home / "nets")

        def name(path: str) -> str:
            below = Path(path).relative_to(home / "nets")
            return str(below.parent if below.name == "model.safetensors" else below.with_suffix(""))

        plot_kin(found, HERE / "kin.png", name)


if __name__ == "__main__":
    main()
