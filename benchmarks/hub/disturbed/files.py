"""Files for benchmarks/hub/faults.py, and what may become of them while they are read."""

import os
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.checkpoints import made

BAD = {
    "empty": b"",
    "short": b"no",
    "pickle": b"\x80\x02" + b"a" * 100,
    "long header": (2**40).to_bytes(8, "little") + b"{" * 100,
    "no json": (8).to_bytes(8, "little") + b"{\xff\xff\xff\xff\xff\xff}",
}
#: Seconds between two writes to a file that comes slowly: more than a tick of any clock.
PAUSE = 0.03
#: Nets that others are replaced by.
SPARE = 24


def plant(home: Path, count: int) -> Path:
    """Zoo nets that are all different, every 40th a bad file, and some of each family."""
    pool = home / "pool"
    for number in range(count):
        path = pool / f"{number % 12:02d}" / f"{number:04d}.safetensors"
        if number % 40 == 7:
            content = list(BAD.values())[number // 40 % len(BAD)]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        else:
            made.zoo_net(path, "residual" if number % 3 else "paper", number)
    for family in made.FAMILIES:
        made.save(made.model(family), pool / family)
    made.save(made.model("llama", 1), pool / "sharded", max_shard_size="20KB")
    assert len(list((pool / "sharded").glob("*.safetensors"))) > 2
    for number in range(SPARE):
        made.zoo_net(home / "spare" / f"{number}.safetensors", "residual", 10_000 + number)
    return pool


class Mischief:
    """Things that happen to files of a tree, each at once or over some seconds.

    Args:
        tree: The files.
        spare: Nets that others are replaced by.
        rng: Says which.
    """

    def __init__(self, tree: Path, spare: Path, rng: random.Random) -> None:
        self.tree, self.rng = tree, rng
        self.spare = sorted(spare.iterdir())
        # No file twice: what two mischiefs make of one is nobody's intention.
        self.waiting = sorted(tree.glob("[0-9]*/*.safetensors"))
        rng.shuffle(self.waiting)

    def vanish(self) -> list[Callable[[], None]]:
        """Files go, one in three for good; a whole folder is away for a while."""
        folder = self.tree / self.rng.choice(["gpt2", "vit"])
        return [
            partial(_remove, self._take(6)),
            partial(_away, self._take(6), self.rng.uniform(0.05, 0.5)),
            partial(_away, self._take(6), 3.0),
            partial(_away, [folder], self.rng.uniform(0.05, 1.0)),
        ]

    def change(self) -> list[Callable[[], None]]:
        """Files are replaced, once, often, or until they are put back, or are written over."""
        shard = self.rng.choice(sorted((self.tree / "sharded").glob("*.safetensors")))
        return [
            partial(self._replace, self._take(12), times=1),
            partial(self._replace, self._take(3), times=150),
            partial(self._write_over, self._take(3)),
            partial(self._swap, self._take(12), self.rng.uniform(0.5, 3.0)),
            partial(_write_anew, shard),
            partial(_write_anew, self.tree / "bert" / "config.json"),
        ]

    def grow(self) -> list[Callable[[], None]]:
        """Files of which only the beginning is there, until the rest comes."""
        coming = [(path, path.read_bytes()) for path in self._take(8)]
        for path, content in coming:
            path.write_bytes(content[: self.rng.randrange(len(content))])
        late = self.tree / "late.safetensors"
        return [
            *(partial(_append, path, content) for path, content in coming),
            partial(_append, late, self.rng.choice(self.spare).read_bytes()),
        ]

    def _take(self, count: int) -> list[Path]:
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken

    def _replace(self, paths: list[Path], times: int) -> None:
        for path in paths * times:
            beside = path.with_name(f".{path.name}.new")
            shutil.copyfile(self.rng.choice(self.spare), beside)
            os.replace(beside, path)
            time.sleep(0.004)

    def _swap(self, paths: list[Path], seconds: float) -> None:
        """Others are in their places for a while: then all is as the listing said."""
        for path in paths:
            path.rename(path.with_name(f".{path.name}"))
            shutil.copyfile(self.rng.choice(self.spare), path)
        time.sleep(seconds)
        for path in paths:
            os.replace(path.with_name(f".{path.name}"), path)

    def _write_over(self, paths: list[Path]) -> None:
        for path in paths:
            content = self.rng.choice(self.spare).read_bytes()
            with path.open("r+b", buffering=0) as file:
                for start in range(0, len(content), 4096):
                    file.write(content[start : start + 4096])
                    time.sleep(PAUSE)
                file.truncate()


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()


def _away(paths: list[Path], seconds: float) -> None:
    for path in paths:
        path.rename(path.with_name(f".{path.name}"))
    time.sleep(seconds)
    for path in paths:
        path.with_name(f".{path.name}").rename(path)


def _write_anew(path: Path) -> None:
    """The same content, written anew: another version."""
    beside = path.with_name(f".{path.name}.new")
    shutil.copyfile(path, beside)
    os.replace(beside, path)


def _append(path: Path, content: bytes) -> None:
    """What is missing of a file, piece by piece."""
    with path.open("ab", buffering=0) as file:
        for start in range(file.tell(), len(content), 4096):
            file.write(content[start : start + 4096])
            time.sleep(PAUSE)
