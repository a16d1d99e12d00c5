import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.zoo.conftest import built, plant
from transformer_nfn.jobs import InProcess, ShardFolder
from transformer_nfn.space import apply_paper_net
from transformer_nfn.zoo import Build, NetShape, StoreError, load_task
from transformer_nfn.zoo import cache as cache_module
from transformer_nfn.zoo.cache import CachedRows
from transformer_nfn.zoo.dataset import Rows, Zoo, ok
from transformer_nfn.zoo.format.schema import (
    COLUMNS,
    FORMAT,
    METADATA_KEY,
    read_shape,
    row_digest,
    weight_matrix,
    zoo_schema,
    zoo_table,
)
from transformer_nfn.zoo.nets import views

SMALL = NetShape(tokens=1, inputs=1, D=2, heads=1, D_A=3, blocks=1, hidden=1, classes=2)


def stored_weights(zoo: Zoo) -> dict[str, list[float] | None]:
    """Weights by digest, read by nothing but pyarrow."""
    table = pa.concat_tables(pq.read_table(f"{zoo.shards.url}/{name}") for name in zoo.names())
    columns = (table.column(name).to_pylist() for name in ("digest", "weights"))
    return dict(zip(*columns, strict=True))


def check_nets(zoo: Zoo, rows: Rows) -> None:
    """The networks are those of the rows, tensor by tensor."""
    stored = stored_weights(zoo)
    expected = torch.tensor([stored[digest] for digest in rows.table.column("digest").to_pylist()])
    net = zoo.shape.net_batch(expected)
    assert len(rows.table) == rows.nets.blocks.networks
    assert torch.equal(rows.nets.blocks.flat(), net.blocks.flat())
    for part in ("embedding", "classifier"):
        assert torch.equal(rows.nets.flat(part), net.flat(part))


def test_the_table_has_all_rows_but_no_weights_in_order(tiny_zoo):
    table = tiny_zoo.table()
    assert (len(table), table.column_names) == (30, list(COLUMNS))
    keys = [(row["run"], row["epoch"], row["checkpoint"]) for row in table.to_pylist()]
    assert keys == sorted(keys)
    assert [row["run"] for row in table.to_pylist()] == sorted(3 * list(range(10)))


def test_the_table_is_filtered_also_by_columns_that_are_not_shown(tiny_zoo):
    where = ok & (pc.field("optimizer") == "adam") & (pc.field("checkpoint") == "best")
    chosen = tiny_zoo.table(where, ["test_accuracy", "run"])
    assert chosen.column_names == ["test_accuracy", "run"]
    whole = tiny_zoo.table().to_pylist()
    wanted = [r for r in whole if r["optimizer"] == "adam" and r["checkpoint"] == "best"]
    assert chosen.column("run").to_pylist() == [row["run"] for row in wanted] == [1, 4, 9]
    assert len(tiny_zoo.table(ok)) == 27
    assert len(tiny_zoo.table(pc.field("run") > 99)) == 0


def test_rows_and_batches_have_the_networks_of_their_rows(tiny_zoo):
    rows = tiny_zoo.rows()
    assert rows.table == tiny_zoo.table(ok)
    check_nets(tiny_zoo, rows)
    batches = list(tiny_zoo.batches())
    assert len(batches) == len(tiny_zoo.names()) == 5
    for batch in batches:
        check_nets(tiny_zoo, batch)
    digests = [digest for batch in batches for digest in batch.table.column("digest").to_pylist()]
    assert sorted(digests) == sorted(rows.table.column("digest").to_pylist())


def test_the_check_of_networks_notices_two_that_are_exchanged(tiny_zoo):
    rows = tiny_zoo.rows()
    order = [*range(3, len(rows.table)), 0, 1, 2]  # of the next run
    with pytest.raises(AssertionError):
        check_nets(tiny_zoo, Rows(rows.table.take(order), rows.nets))


def test_rows_and_batches_are_filtered_alike(tiny_zoo):
    where = ok & (pc.field("checkpoint") == "best") & (pc.field("optimizer") == "adam")
    rows, batches = tiny_zoo.rows(where), list(tiny_zoo.batches(where))
    assert rows.table.column("run").to_pylist() == [1, 4, 9]
    check_nets(tiny_zoo, rows)
    assert len(batches) == 2  # shards without a chosen row are left out
    assert sorted(run for b in batches for run in b.table.column("run").to_pylist()) == [1, 4, 9]


def test_a_choice_of_nothing_is_an_empty_batch(tiny_zoo):
    nothing = tiny_zoo.rows(pc.field("run") > 99)
    assert (len(nothing.table), nothing.nets.blocks.networks) == (0, 0)
    assert list(tiny_zoo.batches(pc.field("run") > 99)) == []


def test_diverged_rows_come_as_nan_if_asked_for(tiny_zoo):
    rows = tiny_zoo.rows(None)
    diverged = np.array([status == "diverged" for status in rows.table["status"].to_pylist()])
    missing = rows.nets.blocks.flat().isnan().flatten(1)
    assert diverged.sum() == 3
    assert missing.all(dim=1).tolist() == missing.any(dim=1).tolist() == diverged.tolist()


@pytest.mark.parametrize("part", ["validation", "test"])
def test_the_accuracies_are_those_of_the_stored_networks_on_the_task(tiny_recipe, tiny_zoo, part):
    table, nets = tiny_zoo.rows()
    task = load_task("digits", patch=tiny_recipe.patch)
    examples = getattr(task, part).first(32)
    count = nets.blocks.networks
    answers = torch.stack(
        [apply_paper_net(nets, one.expand(count, -1, -1)).argmax(dim=1) for one in examples.inputs],
        dim=1,
    )  # n m
    right = (answers == examples.labels).double().mean(dim=1)
    stored = table.column(f"{part}_accuracy").to_pylist()
    assert right.tolist() == stored
    assert len(set(stored)) > 3
    assert right.roll(3).tolist() != stored  # of the next run


# ------------------------------------------------------------------------------------ the copy


def check_copy(zoo: Zoo, copy: CachedRows) -> None:
    rows = zoo.rows()
    assert copy.table == rows.table
    assert copy.shape == zoo.shape
    nets = copy.nets(range(len(copy.table)))
    assert torch.equal(nets.blocks.flat(), rows.nets.blocks.flat())
    for part in ("embedding", "classifier"):
        assert torch.equal(nets.flat(part), rows.nets.flat(part))


def copies(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_the_copy_has_all_rows_that_are_ok(tiny_zoo, tmp_path):
    copy = tiny_zoo.cached(tmp_path)
    check_copy(tiny_zoo, copy)
    assert isinstance(copy.weights, np.memmap)
    assert not copy.weights.flags.writeable


@pytest.mark.parametrize("chosen", [[3, 1, 4], torch.tensor([3, 1, 4])])
def test_the_copy_gives_some_networks_in_the_order_asked_for(tiny_zoo, tmp_path, chosen):
    copy = tiny_zoo.cached(tmp_path)
    whole = tiny_zoo.rows().nets.blocks
    assert torch.equal(copy.nets(chosen).blocks.flat(), whole[[3, 1, 4]].flat())
    assert not torch.equal(copy.nets([1, 3, 4]).blocks.flat(), whole[[3, 1, 4]].flat())


def test_the_networks_of_a_copy_can_be_changed_without_changing_it(tiny_zoo, tmp_path):
    copy = tiny_zoo.cached(tmp_path)
    copy.nets([0]).blocks["Q"].zero_()
    check_copy(tiny_zoo, tiny_zoo.cached(tmp_path))


def test_the_copy_is_made_once(tiny_zoo, tmp_path, monkeypatch):
    tiny_zoo.cached(tmp_path)
    (home,) = copies(tmp_path)
    made = [path.stat().st_mtime_ns for path in sorted(home.iterdir())]
    monkeypatch.setattr(cache_module, "_copy", None)  # it cannot be made again
    check_copy(tiny_zoo, Zoo(tiny_zoo.url).cached(tmp_path))
    assert copies(tmp_path) == [home]
    assert [path.stat().st_mtime_ns for path in sorted(home.iterdir())] == made


def test_the_copy_is_made_anew_when_the_zoo_has_grown(tiny_recipe, tmp_path):
    zoo = built(tiny_recipe, tmp_path / "zoo", runs=2)
    small = zoo.cached(tmp_path / "copies")
    check_copy(zoo, small)
    assert Build(tiny_recipe, zoo.url, runs=4).run(InProcess()) == []
    large = zoo.cached(tmp_path / "copies")
    check_copy(zoo, large)
    assert len(large.table) == len(small.table) + 6
    assert len(copies(tmp_path / "copies")) == 2


def test_copies_of_two_zoos_are_kept_apart(tiny_zoo, own_zoo, tmp_path):
    folder = tmp_path / "copies"
    plant(own_zoo, own_zoo.names()[0], lambda rows: rows[0].update(test_accuracy=0.5))
    assert tiny_zoo.cached(folder).table != own_zoo.cached(folder).table
    check_copy(tiny_zoo, tiny_zoo.cached(folder))
    check_copy(own_zoo, own_zoo.cached(folder))


def test_many_may_make_the_copy_at_once(tiny_zoo, tmp_path, monkeypatch):
    copy, together = cache_module._copy, Barrier(4)

    def at_once(*arguments):
        together.wait(timeout=30)
        return copy(*arguments)

    monkeypatch.setattr(cache_module, "_copy", at_once)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: Zoo(tiny_zoo.url).cached(tmp_path), range(4)))
    for one in made:
        check_copy(tiny_zoo, one)
    assert len(copies(tmp_path)) == 1  # and nothing half-made


def test_a_copy_that_is_interrupted_leaves_nothing(tiny_zoo, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(cache_module.pq, "write_table", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tiny_zoo.cached(tmp_path)
    assert copies(tmp_path) == []
    check_copy(tiny_zoo, tiny_zoo.cached(tmp_path))


def test_copies_are_kept_in_the_users_cache(tiny_zoo, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    check_copy(tiny_zoo, tiny_zoo.cached())
    assert len(copies(tmp_path / "transformer-nfn")) == 1


def shorter(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def fewer_rows(path: Path) -> None:
    pq.write_table(pq.read_table(path).slice(1), path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("rows.parquet", fewer_rows),
        ("rows.parquet", shorter),
        ("rows.parquet", Path.unlink),
        ("weights.npy", shorter),
        ("weights.npy", Path.unlink),
    ],
)
def test_a_damaged_copy_is_reported_with_its_folder(
    tiny_zoo, tmp_path, name: str, damage: Callable[[Path], object]
):
    tiny_zoo.cached(tmp_path)
    (home,) = copies(tmp_path)
    damage(home / name)
    with pytest.raises(StoreError, match=r"is damaged: delete that folder") as caught:
        tiny_zoo.cached(tmp_path)
    assert str(home) in str(caught.value)
    shutil.rmtree(home)
    check_copy(tiny_zoo, tiny_zoo.cached(tmp_path))


def test_a_zoo_without_a_single_ok_row_can_be_read(tiny_recipe, tmp_path):
    zoo = built(tiny_recipe, tmp_path / "zoo", runs=1)
    assert set(zoo.table().column("status").to_pylist()) == {"diverged"}
    assert len(zoo.rows().table) == 0
    assert list(zoo.batches()) == []
    copy = zoo.cached(tmp_path / "copies")
    assert copy.weights.shape == (0, tiny_recipe.shape.size)


# -------------------------------------------------------------------------------------- errors


def test_a_folder_without_a_description_is_no_zoo(tmp_path):
    for url in (tmp_path, tmp_path / "nowhere", "memory://no-such-zoo"):
        with pytest.raises(StoreError, match=r"is no zoo: it has no zoo.json.*tnfn zoo build"):
            Zoo(url)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b"null"])
def test_a_description_that_is_none_is_reported(own_zoo, content):
    (Path(own_zoo.url) / "zoo.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"zoo\.json"):
        Zoo(own_zoo.url)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]", b"null"])
def test_a_description_that_is_none_stops_a_build(tiny_recipe, own_zoo, content):
    (Path(own_zoo.url) / "zoo.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"zoo\.json"):
        Build(tiny_recipe, own_zoo.url)


@pytest.mark.parametrize("version", [1, None])
def test_another_format_is_refused(own_zoo, version):
    path = Path(own_zoo.url) / "zoo.json"
    path.write_text(json.dumps({**own_zoo.description, "format": version}), encoding="utf-8")
    with pytest.raises(StoreError, match=f"has format {version}, this version reads {FORMAT}"):
        Zoo(own_zoo.url)


def test_a_zoo_without_shards_says_so(own_zoo):
    shutil.rmtree(own_zoo.shards.url)
    zoo = Zoo(own_zoo.url)
    readers = (zoo.names, zoo.table, zoo.rows, zoo.cached, lambda: list(zoo.batches()))
    for read in readers:
        with pytest.raises(StoreError, match=r"has no shards yet: run `tnfn zoo build` again"):
            read()


def test_a_zoo_is_read_from_an_object_store(tiny_zoo, tmp_path):
    url = f"memory://{tmp_path.name}"
    folder = ShardFolder(f"{url}/data")
    for name in tiny_zoo.names():
        assert folder.commit(name, tiny_zoo.shards.read(name), row_group_size=256)
    assert ShardFolder(url).write_once("zoo.json", tiny_zoo.root.read_bytes("zoo.json"))
    zoo = Zoo(url)
    assert zoo.table() == tiny_zoo.table()
    check_copy(tiny_zoo, zoo.cached(tmp_path))


# ---------------------------------------------------------------------------------- the schema


def small_rows(statuses: list[bool]) -> tuple[list[dict[str, object]], list[np.ndarray | None]]:
    """A row for each status; those that are not ok have no weights."""
    rows, weights = [], []
    for number, fine in enumerate(statuses):
        made = {name: None for name in COLUMNS if name != "digest"}
        for name, (kind, _) in COLUMNS.items():
            if name in made:
                made[name] = f"{name}{number}" if kind == pa.string() else number
            if kind == pa.float64():
                made[name] = number / 7 if fine else None
        for name in ("lr", "l2", "dropout", "init_std", "train_fraction"):
            made[name] = 0.1 * number
        made["status"] = "ok" if fine else "diverged"
        rows.append(made)
        random = np.random.default_rng(number)
        weights.append(random.normal(size=SMALL.size).astype(np.float32) if fine else None)
    return rows, weights


def expected_matrix(weights: list[np.ndarray | None]) -> np.ndarray:
    missing = np.full(SMALL.size, np.nan, dtype=np.float32)
    stacked = [missing if one is None else one for one in weights]
    return np.array(stacked, dtype=np.float32).reshape(-1, SMALL.size)


statuses = st.lists(st.booleans(), min_size=1, max_size=9)
bounds = st.tuples(st.integers(0, 9), st.integers(0, 9))


@given(statuses=statuses, first=bounds, second=bounds)
def test_sliced_and_chunked_weights_are_those_of_their_rows(statuses, first, second):
    rows, weights = small_rows(statuses)
    column = zoo_table(SMALL, rows, weights).column("weights")
    expected = expected_matrix(weights)

    def check(got: np.ndarray, wanted: np.ndarray) -> None:
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, wanted)  # NaN equals NaN

    check(weight_matrix(column, SMALL.size), expected)
    (start, length), (again, rest) = first, second
    part = column.slice(start, length)
    check(weight_matrix(part, SMALL.size), expected[start : start + length])
    inner, wanted = part.slice(again, rest), expected[start : start + length][again : again + rest]
    check(weight_matrix(inner, SMALL.size), wanted)  # a slice of a slice
    check(weight_matrix(inner.combine_chunks(), SMALL.size), wanted)  # an array, not chunks
    joined = pa.chunked_array([*inner.chunks, *column.chunks, *part.chunks], type=column.type)
    pieces = [wanted, expected, expected[start : start + length]]
    check(weight_matrix(joined, SMALL.size), np.concatenate(pieces))
    order = list(reversed(range(len(expected))))
    check(weight_matrix(column.take(order), SMALL.size), expected[order])


@given(statuses=statuses, bounds=bounds)
def test_a_slice_of_a_table_survives_a_file(statuses, bounds):
    rows, weights = small_rows(statuses)
    table = zoo_table(SMALL, rows, weights)
    start, length = bounds
    part = table.slice(start, length)
    file = pa.BufferOutputStream()
    pq.write_table(part, file, use_dictionary=False, compression="none")
    back = pq.read_table(pa.BufferReader(file.getvalue()))
    assert back.schema.equals(zoo_schema(SMALL), check_metadata=True)
    assert back.drop_columns(["weights"]) == part.drop_columns(["weights"])
    np.testing.assert_array_equal(
        weight_matrix(back.column("weights"), SMALL.size),
        expected_matrix(weights[start : start + length]),
    )


@given(statuses=statuses)
def test_a_table_holds_rows_digests_and_weights(statuses):
    rows, weights = small_rows(statuses)
    table = zoo_table(SMALL, rows, weights)
    assert table.schema.equals(zoo_schema(SMALL), check_metadata=True)
    assert table.column("weights").is_null().to_pylist() == [not fine for fine in statuses]
    for row, one, back in zip(rows, weights, table.to_pylist(), strict=True):
        assert {name: back[name] for name in row} == row
        assert back["digest"] == row_digest(row, one) == row_digest(back, one)


def test_a_digest_sees_each_column_and_each_weight():
    (row,), (weights,) = small_rows([True])
    digests = {row_digest(row, weights), row_digest(row, None)}
    for name in row:
        digests.add(row_digest({**row, name: "other"}, weights))
    for place in range(SMALL.size):
        other = weights.copy()
        other[place] = np.nextafter(other[place], np.float32(9))
        digests.add(row_digest(row, other))
    assert len(digests) == 2 + len(row) + SMALL.size
    assert row_digest({**row, "digest": "x", "weights": [1]}, weights) in digests


def test_the_schema_says_where_each_tensor_is(tiny_zoo):
    schema = tiny_zoo.shards.read(tiny_zoo.names()[0]).schema
    described = json.loads(schema.metadata[METADATA_KEY])
    assert set(described) == {"format", "net", "layout"}
    assert read_shape(schema) == tiny_zoo.shape
    (row,) = tiny_zoo.shards.read(tiny_zoo.names()[0]).slice(1, 1).to_pylist()
    flat = np.array(row["weights"], dtype=np.float32)
    tensors = views(torch.from_numpy(flat)[None], tiny_zoo.shape.stored)
    assert [entry["name"] for entry in described["layout"]] == list(tensors)
    for entry in described["layout"]:
        stop = entry["offset"] + int(np.prod(entry["shape"]))
        tensor = flat[entry["offset"] : stop].reshape(entry["shape"])
        np.testing.assert_array_equal(tensor, tensors[entry["name"]][0].numpy())


def test_a_schema_that_is_no_zoos_is_refused():
    schema = zoo_schema(SMALL)
    with pytest.raises(StoreError, match="not a shard of a zoo"):
        read_shape(schema.remove_metadata())
    described = json.loads(schema.metadata[METADATA_KEY])
    for change, message in (
        ({"format": 1}, f"zoo format 1, this version reads {FORMAT}"),
        ({"net": {**described["net"], "classes": 3}}, f"not {SMALL.size + 2} numbers wide"),
    ):
        changed = {METADATA_KEY: json.dumps({**described, **change}).encode()}
        with pytest.raises(StoreError, match=message):
            read_shape(schema.with_metadata(changed))
    assert read_shape(schema) == SMALL
