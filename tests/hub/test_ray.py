from pathlib import Path

from tests.hub.nets import some_nets
from transformer_nfn.hub import Bulk, FingerprintTask, stored_index
from transformer_nfn.jobs import InProcess, RayExecutor


def test_on_ray_the_rows_are_the_same(tmp_path: Path) -> None:
    home = some_nets(tmp_path / "nets", 4)
    (home / "broken.safetensors").write_bytes(b"no")
    here = Bulk(FingerprintTask(), [str(home)], str(tmp_path / "here"))
    here.run(InProcess())
    there = Bulk(FingerprintTask(), [str(home)], str(tmp_path / "there"))
    with RayExecutor(retries=1) as executor:
        tally = there.run(executor)
    assert (tally.files, tally.errors) == (5, 1)
    assert tally.bytes_read == here.tally.bytes_read
    assert there.standing()[0] == {"ok": 4, "broken": 1}
    assert stored_index(here.results).keys() == stored_index(there.results).keys()
