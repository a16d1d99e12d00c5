"""The fuzzer must be able to find what it looks for."""

import os
import pickle  # noqa: TID251  # what the tripwire is for
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from benchmarks.safety.fuzzing.coverage import Lines
from benchmarks.safety.fuzzing.engine import Reader, Record, Target, any_of
from benchmarks.safety.fuzzing.mutate import Each, json_text, pack, plain, safetensors, unpack
from benchmarks.safety.hostile_files.material import join, split
from transformer_nfn.checkpoints import CheckpointError

SOUND = join({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"\0" * 8)


def findings(
    read: Callable[[bytes], object], folder: Path, data: bytes = b"x"
) -> dict[str, object]:
    reader = Reader("r", read, (CheckpointError,), list, plain, (), 1, seconds=0.2)
    target = Target(reader, Record(folder / "record"), folder, 1)
    target(data)
    found: dict[str, object] = Record.load(folder / "record")
    assert found["inputs"] == 1
    return found


def test_a_value_and_its_own_error_are_right(tmp_path: Path) -> None:
    assert findings(len, tmp_path)["accepted"] == 1

    def refuse(_: bytes) -> None:
        raise CheckpointError("no")

    found = findings(refuse, tmp_path)
    assert (found["findings"], found["refused"]) == ({}, {"CheckpointError": 1})


def test_another_error_is_found_and_its_input_kept(tmp_path: Path) -> None:
    found = findings(lambda data: {}[data], tmp_path)["findings"]
    assert [name.split()[0] for name in found] == ["KeyError"]
    (kept,) = (tmp_path / "findings").iterdir()
    assert kept.read_bytes() == b"x"


def test_what_takes_too_long_is_found(tmp_path: Path) -> None:
    assert "too slow" in findings(lambda _: time.sleep(0.25), tmp_path)["findings"]


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: exec("1"),
        lambda folder: eval("1"),
        lambda folder: pickle.loads(b"cbuiltins\nlen\n."),
        lambda folder: (folder.parent / "outside").write_bytes(b""),
        lambda folder: (folder / "inside").rename(folder.parent / "outside"),
        lambda folder: os.system("true"),
        lambda folder: subprocess.run(["true"]),
        lambda folder: socket.create_connection(("127.0.0.1", 9), timeout=0.1),
    ],
)
def test_harm_is_found(harm: Callable[[Path], object], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "inside").write_bytes(b"")

    def read(_: bytes) -> None:
        try:
            harm(home)
        except OSError as error:
            raise CheckpointError("refused, but tried") from error

    wires = [name for name in findings(read, home)["findings"] if name.startswith("tripwire")]
    assert wires


def test_files_inside_are_no_harm(tmp_path: Path) -> None:
    def read(data: bytes) -> None:
        (tmp_path / "file").write_bytes(data)
        (tmp_path / "file").read_bytes()

    assert not findings(read, tmp_path)["findings"]


def test_an_input_that_one_way_accepts_is_accepted() -> None:
    def refuse(way: int) -> None:
        if way:
            raise CheckpointError("no")

    any_of(refuse, [1, 0, 1])
    with pytest.raises(CheckpointError):
        any_of(refuse, [1, 1])
    with pytest.raises(ValueError, match="invalid literal"):
        any_of(int, ["a", "1"])


def test_mutations_get_past_the_header() -> None:
    """Most are still a length and a JSON object: else nothing behind these checks is met."""
    made = [safetensors(SOUND, Random(seed), lambda data: data[::-1]) for seed in range(200)]
    assert len(set(made)) > 50
    parsed = 0
    for data in made:
        try:
            parsed += isinstance(split(data)[0], dict)
        except (ValueError, RecursionError, struct.error):
            continue
    assert parsed > 140


def test_mutations_keep_the_number_of_files() -> None:
    both = Each(json_text, plain)
    for seed in range(20):
        parts = unpack(both(pack([b"{}", b"abc"]), Random(seed), lambda data: data * 2), 2)
        assert parts[1] in (b"abc", b"abcabc")


def test_lines_that_are_not_reached_are_counted() -> None:
    with Lines(["transformer_nfn.checkpoints.config:parse_option"]) as lines:
        from transformer_nfn.checkpoints import parse_option

        parse_option("a=1")
    assert 0 < len(lines.reached & lines.all) < len(lines.all)
    assert all(place.startswith("config.py:") for place in lines.missed())
