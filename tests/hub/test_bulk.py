import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from tests.checkpoints import made
from tests.hub.nets import some_nets, upload
from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.hub import (
    Bulk,
    FingerprintTask,
    HubError,
    Results,
    stored_digests,
    stored_index,
)
from transformer_nfn.hub.planning import deal
from transformer_nfn.jobs import Done, Failed, InProcess
from transformer_nfn.kinship import Index, copies_by_digest, fingerprint


def run(source: object, out: object, task: Any = None) -> tuple[Bulk, int]:
    bulk = Bulk(task or FingerprintTask(), [str(source)], str(out))
    done = len(bulk.open)
    bulk.run(InProcess())
    return bulk, done


def rows(out: object) -> dict[str, dict[str, Any]]:
    return {Path(row["path"]).name: row for row in Results(str(out)).rows().to_pylist()}


def test_a_second_run_does_only_what_is_new_or_changed(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    assert run(home, out)[1] == 3
    assert run(home, out)[1] == 0
    before = rows(out)
    made.zoo_net(home / "new.safetensors", "residual", 7)
    made.zoo_net(home / "0" / "0.safetensors", "residual", 8)
    bulk, done = run(home, out)
    assert done == 2
    after = rows(out)
    assert len(after) == 4
    assert after["1.safetensors"] == before["1.safetensors"]
    assert after["0.safetensors"]["numbers"] != before["0.safetensors"]["numbers"]
    assert bulk.standing() == ({"ok": 4}, {})


def test_results_are_a_manifest_of_their_own(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    bulk, _ = run(home, out)
    manifest = tmp_path / "all.parquet"
    pq.write_table(bulk.results.rows(["size", "version"]), manifest)
    assert run(manifest, out)[1] == 0
    assert run(manifest, tmp_path / "other")[1] == 3


def test_stored_fingerprints_are_those_of_the_files(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    made.save(made.model("gpt2"), home / "gpt2")
    bulk, _ = run(home, out)
    found = stored_index(bulk.results)
    assert len(found) == 4
    expected = Index.of([fingerprint(path) for path in found.paths])
    assert found.keys() == expected.keys()  # shape, dtype, parts and all numbers
    assert found.shapes == expected.shapes
    (home / "0" / "0.safetensors").unlink()
    again, _ = run(home, out)
    assert len(stored_index(again.results)) == 4
    assert len(stored_index(again.results, again.listing)) == 3


def test_bad_files_are_rows_with_a_reason(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets", 1), tmp_path / "out"
    (home / "broken.safetensors").write_bytes(b"no")
    (home / "pickle.safetensors").write_bytes(b"\x80\x02" + b"a" * 100)
    Path(os.fsdecode(os.fsencode(home) + b"/\xff.safetensors")).write_bytes(b"no")
    (home / "list.txt").write_text("\n".join(["0/0.safetensors", "none.safetensors", "a.bin", "0"]))
    bulk, _ = run(home, out)
    counts, reasons = bulk.standing()
    assert counts == {"ok": 1, "broken": 2, "failed": 1}
    assert "too few" in reasons[str(home / "broken.safetensors")]
    assert run(home, out)[1] == 1  # only what could not be read is tried again
    _, done = run(home / "list.txt", out)
    assert done == 3
    assert "is a folder" in rows(out)["0"]["reason"]
    assert rows(out)["none.safetensors"]["status"] == "failed"
    assert "No such file" in rows(out)["a.bin"]["reason"]


def test_files_of_no_family_are_unsupported_and_tried_again_by_another_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = some_nets(tmp_path / "nets", 1), tmp_path / "out"
    tensors = {"a.weight": torch.randn(3, 4), "b": torch.arange(5)}
    for name, renamed in (("one", "{}"), ("two", "new.{}")):
        save_file({renamed.format(k): v for k, v in tensors.items()}, home / f"{name}.safetensors")
    save_file({**tensors, "b": torch.arange(5) + 1}, home / "three.safetensors")
    bulk, _ = run(home, out)
    assert bulk.standing()[0] == {"ok": 1, "unsupported": 3}
    digests = stored_digests(bulk.results, bulk.listing)
    copies = copies_by_digest(digests)
    assert {Path(a).stem: Path(b).stem for a, b in copies.items()} == {"two": "one"}
    assert rows(out)["one.safetensors"]["bytes_read"] >= 48 + 40
    assert run(home, out)[1] == 0
    monkeypatch.setattr("transformer_nfn.hub.planning.reader", lambda: "a later one")
    monkeypatch.setattr("transformer_nfn.hub.work.reader", lambda: "a later one")
    assert run(home, out)[1] == 3
    assert run(home, out)[1] == 0


def test_headers_that_ask_for_too_much_are_refused(tmp_path: Path) -> None:
    made.save(made.model("gpt2"), tmp_path / "nets")
    file = tmp_path / "nets" / "model.safetensors"
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].decode()
    place = f"[{len(data) - 8 - size},{len(data) - 8 - size + 2**24}]"
    more = f',"long":{{"dtype":"F32","shape":[{2**22},1],"data_offsets":{place}}}}}'
    for rows_there, word in ((2**22, None), (2**22 + 8, "axis")):
        text = header.rstrip().removesuffix("}") + more.replace(str(2**22), str(rows_there))
        end = len(data) - 8 - size + 4 * rows_there
        text = text.replace(f",{len(data) - 8 - size + 2**24}]", f",{end}]")
        with file.open("wb") as target:
            target.write(len(text).to_bytes(8, "little") + text.encode() + data[8 + size :])
            target.truncate(8 + len(text) + end)  # sparse
        run(tmp_path / "nets", tmp_path / f"out-{word}")
        reason = rows(tmp_path / f"out-{word}")["model.safetensors"]["reason"]
        assert reason is None if word is None else word in reason


class Changing(FingerprintTask):
    """A file that somebody writes to while it is read."""

    def read(self, path: str) -> Any:
        found = super().read(path)
        if path.endswith("0.safetensors"):
            os.utime(path, ns=(1, 1))
        return found


def test_a_file_that_changes_while_it_is_read_is_read_again_next_time(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    run(home, out, Changing())
    row = rows(out)["0.safetensors"]
    assert (row["status"], row["numbers"]) == ("changed", None)
    assert run(home, out)[1] == 1
    assert rows(out)["0.safetensors"]["status"] == "ok"


class Interrupted(InProcess):
    """Ctrl-C after the first batch."""

    def run(self, function: Any, jobs: Any) -> Iterator[Any]:
        for job in jobs:
            yield Done(job, function(job), 0.0)
            raise KeyboardInterrupt


def test_what_was_committed_before_an_interruption_is_kept(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets", 20), tmp_path / "out"
    bulk = Bulk(FingerprintTask(), [str(home)], str(out))
    with pytest.raises(KeyboardInterrupt):
        bulk.run(Interrupted())
    assert len(rows(out)) == 8
    assert run(home, out)[1] == 12
    assert len(rows(out)) == 20


class Dying(InProcess):
    """Workers die of one file, and of every batch that has it."""

    def run(self, function: Any, jobs: Any) -> Iterator[Any]:
        for job in jobs:
            if any(item.path.endswith("1.safetensors") for item in job.items):
                yield Failed(job, "worker died 3 times")
            else:
                yield Done(job, function(job), 0.0)


def test_of_a_batch_whose_worker_dies_all_others_are_done(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    bulk = Bulk(FingerprintTask(), [str(home)], str(out))
    tally = bulk.run(Dying())
    assert (tally.files, tally.errors) == (3, 1)
    assert bulk.standing() == (
        {"ok": 2, "failed": 1},
        {str(home / "1" / "1.safetensors"): "worker died 3 times"},
    )


def test_a_folder_holds_results_of_one_task(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    run(home, out)
    with pytest.raises(HubError, match="choose another folder"):
        run(home, out, FingerprintTask("first"))
    with pytest.raises(CheckpointError, match="all, or some of"):
        FingerprintTask("second")
    with pytest.raises(HubError, match="no results"):
        Results(str(home))


def sizes(batches: Sequence[Any]) -> list[list[int]]:
    return [[item.size for item in batch.items] for batch in batches]


def test_batches_are_bounded_in_files_and_bytes() -> None:
    numbers = [1, 1, 1, 9, 1, 30, 1]
    items = pa.table({"path": [str(n) for n in range(7)], "size": numbers, "version": ["v"] * 7})
    dealt = list(deal(items, 1, files=(3, 3), many_bytes=(10, 10)))
    assert [n for batch in sizes(dealt) for n in batch] == numbers
    assert all(len(batch) <= 3 and sum(batch[:-1]) <= 10 for batch in sizes(dealt))
    assert len({batch.name for batch in dealt}) == len(dealt)
    assert list(deal(items, 1, files=(3, 3), many_bytes=(10, 10))) == dealt
    assert list(deal(items.slice(0, 0), 1)) == []
    assert sizes(list(deal(items, 1, files=(2, 9)))) == [[1, 1], [1, 9], [1, 30], [1]]


def test_from_and_to_a_url(tmp_path: Path, memory: str) -> None:
    home = some_nets(tmp_path / "nets")
    made.save(made.model("gpt2"), home / "gpt2")
    upload(home, f"{memory}/nets")
    bulk, done = run(f"{memory}/nets", f"{memory}/out")
    assert done == 4
    assert bulk.standing()[0] == {"ok": 4}
    near, _ = run(home, tmp_path / "out")
    far = stored_index(bulk.results)
    assert all(path.startswith("memory://") for path in far.paths)
    assert far.keys() == stored_index(near.results).keys()
    assert run(f"{memory}/nets", f"{memory}/out")[1] == 0
    (home / "gpt2" / "config.json").write_text("{}")
    upload(home / "gpt2", f"{memory}/nets/gpt2")
    assert run(f"{memory}/nets", f"{memory}/out")[1] == 1
