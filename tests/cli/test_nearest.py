"""`tnfn nearest` leaves out the file that is asked for, however it is given."""

from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.cli.run import tnfn


def test_a_folder_is_the_file_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nets = tmp_path / "nets"
    made.save(made.model("gpt2"), nets / "a")
    out = f"{tmp_path / 'prints'}/"
    assert "1 file, 1 ok" in tnfn(capsys, "fingerprint", nets, "--out", out).out
    monkeypatch.chdir(nets)
    (tmp_path / "link").symlink_to(nets / "a")
    for given in ("a", "a/model.safetensors", nets / "a", tmp_path / "link"):
        ended = tnfn(capsys, "nearest", given, out)
        assert ended.code == 1, (given, ended)
        assert ended.out.startswith("no other of 1 file has the shape gpt2")
    made.save(made.model("gpt2", seed=1), nets / "b")
    tnfn(capsys, "fingerprint", nets, "--out", out)
    assert "stranger" in tnfn(capsys, "nearest", "a", out).out
    assert "copy" not in tnfn(capsys, "nearest", "a", out).out
