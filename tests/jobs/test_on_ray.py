"""What runs on Ray gives what it gives here; one cluster, as its workers take seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import small_examples
from tests.hub.nets import some_nets
from tests.zoo.conftest import built, logs, shard_bytes, write_tiny
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import finished_cells
from transformer_nfn.bench.protocol.runner import Bench
from transformer_nfn.hub import Bulk, FingerprintTask, stored_index
from transformer_nfn.jobs import Done, InProcess, RayExecutor
from transformer_nfn.zoo import Build, Recipe
from transformer_nfn.zoo.dataset import Zoo


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    with RayExecutor(retries=1) as executor:
        yield executor


# Ray's own defaults set options of its context that it has deprecated.
@pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\.data\.context")
def test_a_zoo(executor: RayExecutor, tmp_path: Path) -> None:
    recipe = Recipe.load(write_tiny(tmp_path))
    here = built(recipe, tmp_path / "here", runs=4)
    assert Build(recipe, tmp_path / "there", runs=4).run(executor) == []
    there = Zoo(tmp_path / "there")
    assert shard_bytes(there) == shard_bytes(here)
    assert logs(there.url)[0]["workers"] == executor.slots
    files = sorted(Path(there.shards.url).glob("*.parquet"))
    rows = pa.concat_tables(pq.read_table(file) for file in files).to_pylist()
    read = pytest.importorskip("ray.data").read_parquet(there.shards.url).take_all()
    assert sorted(map(repr, read)) == sorted(map(repr, rows))


def test_cells(executor: RayExecutor, tmp_path: Path) -> None:
    zoo = str(write_zoo(tmp_path / "zoo", small_examples(60)))
    cells = [Cell(zoo=zoo, model=model, split=0) for model in ("hyperparameters", "statistics")]
    for place, runs_it in (("here", InProcess()), ("there", executor)):
        outcomes = list(Bench(cells, tmp_path / place).run(runs_it))
        assert all(isinstance(one, Done) for one in outcomes)
    here, there = finished_cells(tmp_path / "here"), finished_cells(tmp_path / "there")
    assert len(here) == 2
    assert [one.table for one in here] == [one.table for one in there]


def test_fingerprints(executor: RayExecutor, tmp_path: Path) -> None:
    home = some_nets(tmp_path / "nets", 4)
    (home / "broken.safetensors").write_bytes(b"no")
    here = Bulk(FingerprintTask(), [str(home)], str(tmp_path / "here"))
    here.run(InProcess())
    there = Bulk(FingerprintTask(), [str(home)], str(tmp_path / "there"))
    tally = there.run(executor)
    assert (tally.files, tally.errors) == (5, 1)
    assert tally.bytes_read == here.tally.bytes_read
    assert there.standing()[0] == {"ok": 4, "broken": 1}
    assert stored_index(here.results).keys() == stored_index(there.results).keys()
