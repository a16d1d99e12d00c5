import csv
import io
import json
import math
import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from transformer_nfn.group import relative_error
from transformer_nfn.jobs import InProcess, ShardFolder
from transformer_nfn.space import apply_paper_net, sine_positions
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.finished.verification import verify
from transformer_nfn.zoo.format.schema import FORMAT, read_shape, row_digest, weight_matrix
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.published import metadata as published_metadata
from transformer_nfn.zoo.published import nets as published_nets
from transformer_nfn.zoo.published.importing import (
    SHAPES,
    Imported,
    ImportJob,
    PublishedImport,
    import_job,
    published_row,
)
from transformer_nfn.zoo.runs import Hyperparameters, content_hash
from transformer_nfn.zoo.tasks import patches

ACCURACY = {"mnist": "test_top1_accuracy", "ag_news": "test_accuracy"}
SMALL = NetShape(tokens=9, inputs=4, D=6, heads=3, D_A=11, blocks=3, hidden=5, classes=7)


# ------------------------------------------------------- nets as plain modules, published names


class PlainAttention(nn.Module):
    def __init__(self, D: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries, self.keys, self.values, self.out_projection = (
            nn.Linear(D, D, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, t, D = x.shape
        q, k, v = (
            layer(x).reshape(b, t, self.heads, D // self.heads).permute(0, 2, 1, 3)
            for layer in (self.queries, self.keys, self.values)
        )
        weights = (q @ k.transpose(-1, -2) / math.sqrt(D // self.heads)).softmax(-1)
        return self.out_projection((weights @ v).permute(0, 2, 1, 3).reshape(b, t, D))


class PlainEncoder(nn.Module):
    def __init__(self, shape: NetShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.D, elementwise_affine=False)
        self.attention = PlainAttention(shape.D, shape.heads)
        self.norm2 = nn.LayerNorm(shape.D, elementwise_affine=False)
        self.fc1, self.fc2 = nn.Linear(shape.D, shape.D_A), nn.Linear(shape.D_A, shape.D)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(self.norm2(self.attention(self.norm1(x)))).relu())


class PlainNet(nn.Module):
    def __init__(self, shape: NetShape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        if shape.inputs:
            side = math.isqrt(shape.inputs)
            self.embedding = nn.Module()
            self.embedding.conv1 = nn.Conv2d(1, shape.D, side, stride=side)
        self.encoder = nn.ModuleList(PlainEncoder(shape) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.D, elementwise_affine=False)
        self.classifier = nn.Module()
        self.classifier.fc1 = nn.Linear(shape.D, shape.hidden)
        self.classifier.fc2 = nn.Linear(shape.hidden, shape.classes)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        if self.shape.inputs:  # b 1 height width
            x = self.embedding.conv1(x).flatten(2).transpose(1, 2)
        x = x + sine_positions(x.shape[1], self.shape.D).to(x)
        for block in self.encoder:
            x = block(x)
        return self.classifier.fc2(self.classifier.fc1(self.norm(x).mean(1)).relu())


def positions_in_float32(tokens: int, D: int) -> Tensor:
    """As the published nets compute the positions that they keep in their files."""
    angles = torch.arange(tokens)[:, None] * torch.exp(
        torch.arange(0, D, 2) * (-math.log(10000.0) / D)
    )
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


# ------------------------------------------------------------------------ a published folder


def line(number: int = 0, **changes: object) -> dict[str, object]:
    """A row of the CSV; each fourth begins a run, named as the published files are."""
    run, epoch = number // 4, ("1", "50", "100", "best1")[number % 4]
    return {
        "ckpt_epoch": epoch,
        "ckpt_file": f"mnist/run{run:05d}_{epoch}_{9000 + number}.pt",
        "accuracy": 0.9 + number / 10000,
        "optimizer": ("adam", "sgd", "sgd_momentum", "rmsprop")[run % 4],
        "lr": 0.001 * (1 + run // 4),
        "w_init_std": 0.1,
        "l2_regularize": 1e-08,
        "dropout": 0,
        "train_fraction": 1.0,
        "seed": 3,
        "is_cuda": True,
        **changes,
    }


def write_csv(source: Path, rows: list[dict[str, object]], task: str = "mnist") -> Path:
    path = source / "metadata" / f"{task}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    renamed = [
        {ACCURACY[task] if name == "accuracy" else name: value for name, value in row.items()}
        for row in rows
    ]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(renamed[0]))
        writer.writeheader()
        writer.writerows(renamed)
    return path


def save(path: Path, content: object, *, legacy: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # The published files are pickles: the import is tested on what it will meet.
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)  # noqa: TID251
    return path


def state_of(task: str = "mnist", seed: int = 0) -> dict[str, Tensor]:
    return PlainNet(SHAPES[task], seed).state_dict()


def import_all(source: Path, out: Path, task: str = "mnist", **options: int) -> list[dict]:
    """Import, and give the rows of all shards in order."""
    assert PublishedImport(source, task, out, **options).run(InProcess()) == []
    shards = ShardFolder(out / "data")
    return [row for name in sorted(shards.names()) for row in shards.read(name).to_pylist()]


def statuses(source: Path, out: Path) -> list[str]:
    return [row["status"] for row in import_all(source, out)]


# ------------------------------------------------------------------------------- the weights


def images(shape: NetShape, side: int) -> Tensor:
    return torch.randn(4, 1, side, side, generator=torch.Generator().manual_seed(8))


@pytest.mark.parametrize(("shape", "side"), [(SHAPES["mnist"], 28), (SMALL, 6)])
@pytest.mark.parametrize("with_positions", [False, True])
def test_an_image_net_computes_the_same_logits(shape, side, with_positions):
    net = PlainNet(shape)
    state = net.state_dict()
    if with_positions:
        state["embedding.pos_embedding"] = positions_in_float32(shape.tokens, shape.D)
    row = published_row(state, shape)
    assert row.shape == (shape.size,)
    batch = shape.net_batch(row.expand(4, -1).contiguous())
    pixels = images(shape, side)
    ours = apply_paper_net(batch, patches(pixels[:, 0], side // math.isqrt(shape.tokens)))
    assert relative_error(ours, net(pixels).detach()) < 1e-5


def test_imported_image_nets_compute_the_same_logits(tmp_path):
    shape, rows = SHAPES["mnist"], [line(number) for number in range(5)]
    nets = [PlainNet(shape, seed) for seed in range(5)]
    for number, (row, net) in enumerate(zip(rows, nets, strict=True)):
        save(tmp_path / row["ckpt_file"], net.state_dict(), legacy=number == 2)
    write_csv(tmp_path, rows)
    zoo = tmp_path / "zoo"
    assert {row["status"] for row in import_all(tmp_path, zoo)} == {"ok"}
    shards = ShardFolder(zoo / "data")
    (name,) = shards.names()
    table = shards.read(name)
    assert read_shape(table.schema) == shape
    weights = torch.from_numpy(weight_matrix(table["weights"], shape.size))
    pixels = images(shape, 28)[:1].expand(5, -1, -1, -1)
    ours = apply_paper_net(shape.net_batch(weights), patches(pixels[:, 0], 4))
    theirs = torch.cat([net(pixels[:1]).detach() for net in nets])
    assert relative_error(ours, theirs) < 1e-5
    for row, one in zip(table.to_pylist(), weights.numpy(), strict=True):
        assert row["digest"] == row_digest(row, one)


def test_imported_text_nets_compute_the_same_logits(tmp_path):
    shape, rows = SHAPES["ag_news"], [line(number) for number in range(3)]
    nets = [PlainNet(shape, seed) for seed in range(3)]
    for row, net in zip(rows, nets, strict=True):
        save(tmp_path / row["ckpt_file"], net.state_dict())
    write_csv(tmp_path, rows, "ag_news")
    imported = import_all(tmp_path, tmp_path / "zoo", "ag_news")
    assert [(row["task"], row["status"]) for row in imported] == [("ag_news", "ok")] * 3
    vectors = torch.randn(3, 12, 32, generator=torch.Generator().manual_seed(8))
    batch = shape.net_batch(torch.tensor([row["weights"] for row in imported]))
    theirs = torch.stack([net(x[None])[0] for net, x in zip(nets, vectors, strict=True)])
    assert relative_error(apply_paper_net(batch, vectors), theirs.detach()) < 1e-5


def test_exchanged_heads_are_seen():
    """Negative control: were the heads cut otherwise, the logits would differ."""
    net = PlainNet(SMALL)
    state = net.state_dict()
    key = "encoder.0.attention.queries.weight"
    state[key] = state[key].flip(0)
    batch = SMALL.net_batch(published_row(state, SMALL).expand(4, -1).contiguous())
    pixels = images(SMALL, 6)
    assert relative_error(apply_paper_net(batch, patches(pixels[:, 0], 2)), net(pixels)) > 1e-3


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if name != key}


WRONG = {
    "missing": (lambda s: without(s, "classifier.fc2.bias"), r"missing \['classifier.fc2.bias'\]"),
    "unexpected": (lambda s: s | {"extra": torch.ones(2)}, r"missing \[\], unexpected \['extra'\]"),
    "shape": (
        lambda s: s | {"encoder.1.fc1.weight": torch.ones(32, 64)},
        r"encoder.1.fc1.weight: expected floats of shape \(64, 32\), got .* shape \(32, 64\)",
    ),
    "dtype": (
        lambda s: s | {"encoder.1.fc1.bias": torch.ones(64, dtype=torch.int64)},
        r"expected floats of shape \(64,\), got torch.int64",
    ),
    "float8": (
        lambda s: s | {"encoder.1.fc1.bias": torch.ones(64).to(torch.float8_e5m2)},
        r"expected floats of shape \(64,\), got torch.float8_e5m2",
    ),
    "positions": (
        lambda s: s | {"embedding.pos_embedding": sine_positions(49, 32).roll(1, 0).float()},
        "not the fixed sine positions",
    ),
    "task": (lambda s: state_of("ag_news"), "missing .*embedding.conv1.weight"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_state_dict_of_another_net_is_refused_and_named(wrong, tmp_path):
    change, message = WRONG[wrong]
    state = change(state_of())
    with pytest.raises(StoreError, match=message):
        published_row(state, SHAPES["mnist"])
    write_csv(tmp_path, [line(0)])
    save(tmp_path / line(0)["ckpt_file"], state)
    assert statuses(tmp_path, tmp_path / "zoo") == ["unreadable"]


def test_only_the_papers_block_is_published():
    with pytest.raises(StoreError, match="residual"):
        published_row(state_of(), NetShape(block="residual", tokens=49, inputs=16))


# ----------------------------------------------------------------------------- the other columns


def test_the_columns_of_a_row(tmp_path):
    rows = [line(number) for number in range(9)]
    for row in rows:
        save(tmp_path / row["ckpt_file"], state_of())
    write_csv(tmp_path, rows)
    imported = import_all(tmp_path, tmp_path / "zoo")
    h = Hyperparameters(
        optimizer="sgdm", lr=0.001, l2=1e-8, dropout=0, init_std=0.1, train_fraction=1
    )
    expected = {
        "run": 2,
        "run_id": content_hash(["small-transformer-zoo", "mnist", h.model_dump(), 3])[:32],
        "checkpoint": "1",
        "epoch": 1,
        "status": "ok",
        "task": "mnist",
        "block": "paper",
        **h.model_dump(),
        "seed": 3,
        "twins": h.twins,
        "fold": h.fold,
        "train_loss": None,
        "train_accuracy": None,
        "validation_accuracy": None,
        "test_accuracy": pytest.approx(0.9008),
    }
    assert {name: imported[8][name] for name in expected} == expected
    assert [row["run"] for row in imported] == [0] * 4 + [1] * 4 + [2]
    assert [row["checkpoint"] for row in imported[:4]] == ["1", "50", "100", "best"]
    assert [row["epoch"] for row in imported[:4]] == [1, 50, 100, 0]  # the best one's is unknown
    assert len({row["run_id"] for row in imported}) == 3


@pytest.mark.parametrize(
    ("epoch", "file", "name"),
    [
        ("75", "mnist/abcbest7_75_9000.pt", "75"),  # a run's random name
        ("75.0", "mnist/x.pt", "75"),
        ("80", "mnist/abc_best_9000.pt", "best"),
        ("80", "mnist/Best.pt", "best"),
        ("best", "mnist/x.pt", "best"),
    ],
)
def test_what_counts_as_best(epoch, file, name, tmp_path):
    write_csv(tmp_path, [line(0, ckpt_epoch=epoch, ckpt_file=file)])
    (checkpoint,) = published_metadata.read_metadata(tmp_path, "mnist").checkpoints
    assert checkpoint.name == name


@pytest.mark.parametrize("name", ["SGDm", "sgd_momentum", "Momentum", "SGDM"])
def test_names_of_optimizers(name, tmp_path):
    write_csv(tmp_path, [line(0, optimizer=name)])
    (checkpoint,) = published_metadata.read_metadata(tmp_path, "mnist").checkpoints
    assert checkpoint.hyperparameters.optimizer == "sgdm"


@pytest.mark.parametrize(("values", "expected"), [
    ([0.5, 1.0, ""], [0.5, 1.0, None]),
    ([50, 97.5, 0.5], [0.5, 0.975, 0.005]),
])  # fmt: skip
def test_accuracies_are_fractions_or_percents_as_a_whole(values, expected, tmp_path):
    rows = [line(number, accuracy=value) for number, value in enumerate(values)]
    for row in rows:
        save(tmp_path / row["ckpt_file"], state_of())
    write_csv(tmp_path, rows)
    # The first line alone could not tell: the limit does not change what it means.
    first = import_all(tmp_path, tmp_path / "first", limit=1)
    assert [row["test_accuracy"] for row in first] == expected[:1]
    imported = import_all(tmp_path, tmp_path / "zoo")
    assert [row["test_accuracy"] for row in imported] == expected


def test_a_configuration_that_was_trained_twice_is_two_runs(tmp_path):
    again = line(0, ckpt_file="mnist/another_1_9100.pt")
    write_csv(tmp_path, [line(0), line(1), again])
    checkpoints = published_metadata.read_metadata(tmp_path, "mnist").checkpoints
    assert [c.run for c in checkpoints] == [0, 0, 1]
    assert checkpoints[0].run_id != checkpoints[2].run_id
    assert checkpoints[0].hyperparameters.fold == checkpoints[2].hyperparameters.fold


def test_two_lines_of_one_checkpoint_are_named(tmp_path):
    write_csv(tmp_path, [line(0), line(1), line(2), line(1, accuracy=0.1)])
    with pytest.raises(StoreError, match="lines 3 and 5 are both checkpoint '50'"):
        PublishedImport(tmp_path, "mnist", tmp_path / "zoo")
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lion"}, "line 3, optimizer: .*'lion'"),
        ({"lr": -1}, "line 3, lr: .*greater than 0.*'-1'"),
        ({"lr": "inf"}, "line 3, lr: expected a finite number"),
        ({"l2_regularize": ""}, "line 3, l2_regularize: expected a finite number, got ''"),
        ({"w_init_std": "x"}, "line 3, w_init_std"),
        ({"l2_regularize": -1}, "line 3, l2_regularize: .*'-1'"),
        ({"seed": "3.5"}, "line 3, seed: expected an integer"),
        ({"seed": 2**63}, "line 3, seed"),
        ({"ckpt_epoch": "worst"}, "line 3, ckpt_epoch"),
        ({"ckpt_epoch": 2**31}, "line 3, ckpt_epoch"),
        ({"accuracy": "high"}, "line 3, test_top1_accuracy"),
        ({"accuracy": 101}, "test_top1_accuracy: expected fractions or percents"),
        ({"accuracy": -0.1}, "test_top1_accuracy: expected fractions or percents"),
    ],
)
def test_a_wrong_cell_is_named(changes, message, tmp_path):
    write_csv(tmp_path, [line(0), line(1, **changes)])
    with pytest.raises(StoreError, match=rf"mnist\.csv, {message}"):
        PublishedImport(tmp_path, "mnist", tmp_path / "zoo")


def test_missing_columns_are_listed(tmp_path):
    row = {name: value for name, value in line(0).items() if name not in ("seed", "lr")}
    write_csv(tmp_path, [row])
    with pytest.raises(StoreError, match=r"has no columns seed, lr$"):
        PublishedImport(tmp_path, "mnist", tmp_path / "zoo")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no file"),
        (b"", "has no columns"),
        (b"\xff\xfe", "UTF-8"),
        (b'"', "no CSV"),
        (b"x" * 200, "more than 100 bytes"),
    ],
)
def test_what_is_no_table_is_refused(content, message, tmp_path, monkeypatch):
    monkeypatch.setattr(published_metadata, "MAX_CSV", 100)
    (tmp_path / "metadata").mkdir()
    if content is not None:
        (tmp_path / "metadata" / "mnist.csv").write_bytes(content)
    with pytest.raises(StoreError, match=message):
        PublishedImport(tmp_path, "mnist", tmp_path / "zoo")


def test_a_short_line_is_named(tmp_path):
    with write_csv(tmp_path, [line(0)]).open("a") as file:
        file.write("1,2\n")
    with pytest.raises(StoreError, match="line 3: 2 cells, the header has 11"):
        PublishedImport(tmp_path, "mnist", tmp_path / "zoo")


# --------------------------------------------------------------------------------- hostile files


class Malicious:
    """Its pickle makes a folder when it is loaded without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Bytes:
    def __reduce__(self):
        return bytearray, (1000,)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_is_a_program_is_not_run(legacy, tmp_path):
    rows, trap = [line(0), line(1)], tmp_path / "trap"
    harmful = state_of() | {"classifier.fc2.bias": Malicious(trap)}
    path = save(tmp_path / rows[0]["ckpt_file"], harmful, legacy=legacy)
    save(tmp_path / rows[1]["ckpt_file"], state_of())
    write_csv(tmp_path, rows)
    assert statuses(tmp_path, tmp_path / "zoo") == ["unreadable", "ok"]
    assert not trap.exists()
    # The trap works: here it is the test's own.
    torch.load(path, weights_only=False)  # noqa: TID251
    assert trap.exists()


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_asks_for_memory_is_refused(legacy, tmp_path):
    path = save(tmp_path / "a.pt", {"x": Bytes()}, legacy=legacy)
    # torch allows it, whatever the number: this is why the import does not.
    assert len(torch.load(path, weights_only=True)["x"]) == 1000  # noqa: TID251
    with pytest.raises(StoreError, match="bytearray"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")


def test_a_path_that_leaves_the_source_is_not_read(tmp_path):
    source = tmp_path / "source"
    outside = save(tmp_path / "outside" / "net.pt", state_of())
    (source / "mnist").mkdir(parents=True)
    (source / "mnist" / "link.pt").symlink_to(outside)
    (source / "mnist" / "folder").symlink_to(outside.parent)
    (source / "mnist" / "loop.pt").symlink_to("loop.pt")
    inside = save(source / "elsewhere" / "net.pt", state_of())
    (source / "mnist" / "inner.pt").symlink_to(inside)
    files = [
        "../outside/net.pt",
        str(outside),
        "mnist/link.pt",
        "mnist/folder/net.pt",
        "mnist/loop.pt",
        "mnist/../../outside/net.pt",
        "mnist",
        "",
        "mnist/\0.pt",
        "n" * 5000,
        "mnist/inner.pt",
        "mnist/../elsewhere/net.pt",
    ]
    write_csv(source, [line(4 * n, ckpt_file=file) for n, file in enumerate(files)])
    assert statuses(source, tmp_path / "zoo") == ["unreadable"] * 10 + ["ok"] * 2


def test_a_file_with_the_authors_folders_before_it_is_found_by_its_name(tmp_path):
    save(tmp_path / "mnist" / "ab12_best1_9731.pt", state_of())
    save(tmp_path / "mnist" / "net.pt", state_of())
    files = ["mnist/model/mnist/ab12_best1_9731.pt", "/model/ab12_best1_9731.pt", "model/net.pt"]
    write_csv(tmp_path, [line(4 * n, ckpt_file=file) for n, file in enumerate(files)])
    assert statuses(tmp_path, tmp_path / "zoo") == ["ok", "ok", "unreadable"]


def test_a_fifo_does_not_stop_the_import(tmp_path):
    os.mkfifo(tmp_path / "a.pt")
    with pytest.raises(StoreError, match="no readable file"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")


def test_a_file_that_is_too_large_is_not_loaded(tmp_path):
    save(tmp_path / "a.pt", {"x": torch.zeros(published_nets.MAX_FILE // 4)})
    with pytest.raises(StoreError, match="more than 4000000 bytes"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")


def rezipped(path: Path, method: int) -> bytes:
    """The archive with another compression."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return buffer.getvalue()


def test_a_zip_bomb_is_not_unpacked(tmp_path):
    path = save(tmp_path / "big.pt", {"x": torch.zeros(published_nets.MAX_FILE // 4)})
    bomb = rezipped(path, zipfile.ZIP_DEFLATED)
    assert len(bomb) < published_nets.MAX_FILE / 100
    (tmp_path / "a.pt").write_bytes(bomb)
    with pytest.raises(StoreError, match="declares more than"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")
    # Under the limit, but what is in it cannot be seen.
    small = rezipped(save(tmp_path / "small.pt", state_of()), zipfile.ZIP_DEFLATED)
    (tmp_path / "a.pt").write_bytes(small)
    with pytest.raises(StoreError, match="is compressed"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")
    # The control: the same archive, stored, is read.
    (tmp_path / "a.pt").write_bytes(rezipped(tmp_path / "small.pt", zipfile.ZIP_STORED))
    published_nets.read_state(tmp_path, "mnist", "a.pt")


def test_an_archive_whose_entries_share_their_bytes_is_refused(tmp_path):
    data = save(tmp_path / "a.pt", state_of()).read_bytes()
    end = data.rindex(b"PK\x05\x06")
    size, start = struct.unpack("<II", data[end + 12 : end + 20])
    listing = data[start : start + size] * 60
    entries = struct.unpack("<H", data[end + 10 : end + 12])[0] * 60
    tail = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, entries, entries, len(listing), start, 0)
    (tmp_path / "a.pt").write_bytes(data[:start] + listing + tail)
    with pytest.raises(StoreError, match="declares more than"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")


@pytest.mark.parametrize(
    "content",
    [
        [1, 2, 3],
        {"state_dict": {"x": torch.ones(2)}},
        {1: torch.ones(2)},
        torch.ones(2),
        {"x": torch.ones(2, 2).to_sparse()},
        {"x": torch.ones(2, device="meta")},
    ],
    ids=["list", "nested", "number", "tensor", "sparse", "meta"],
)
def test_what_is_no_state_dict_is_refused(content, tmp_path):
    save(tmp_path / "a.pt", content)
    with pytest.raises(StoreError, match=r"not a dict of dense tensors|cannot be loaded"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")


@pytest.mark.parametrize("data", [b"", b"text", b"PK\x03\x04", b"PK\x03\x04" + b"\0" * 500])
def test_broken_files_are_refused(data, tmp_path):
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(StoreError, match="cannot be loaded"):
        published_nets.read_state(tmp_path, "mnist", "a.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_files_that_were_cut_are_refused(legacy, tmp_path):
    data = save(tmp_path / "whole.pt", state_of(), legacy=legacy).read_bytes()
    for length in range(0, len(data), len(data) // 23):
        (tmp_path / "a.pt").write_bytes(data[:length])
        with pytest.raises(StoreError, match="cannot be loaded"):
            published_nets.read_state(tmp_path, "mnist", "a.pt")


def test_bad_rows_have_neither_weights_nor_figures(tmp_path):
    rows = [line(number) for number in range(4)]
    save(tmp_path / rows[0]["ckpt_file"], state_of())
    for row, value in zip(rows[1:3], (math.nan, 1e300), strict=True):
        state = {key: tensor.double() for key, tensor in state_of().items()}
        state["encoder.1.fc2.bias"][7] = value  # 1e300 is infinite in float32
        save(tmp_path / row["ckpt_file"], state)
    write_csv(tmp_path, rows)
    imported = import_all(tmp_path, tmp_path / "zoo")
    assert [row["status"] for row in imported] == ["ok", "diverged", "diverged", "unreadable"]
    assert [row["weights"] is None for row in imported] == [False, True, True, True]
    assert [row["test_accuracy"] is None for row in imported] == [False, True, True, True]
    (checked,) = verify(Zoo(tmp_path / "zoo"))
    assert (checked.rows, checked.problems) == (4, [])


# -------------------------------------------------------------------------------------- the import


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """600 lines, of which the files of 3 are there."""
    rows = [line(number) for number in range(600)]
    for number in (0, 256, 599):
        save(tmp_path / "source" / rows[number]["ckpt_file"], state_of(seed=number))
    write_csv(tmp_path / "source", rows)
    return tmp_path / "source"


class Counting(InProcess):
    """Remembers its outcomes, and runs only some jobs."""

    def __init__(self, most: int = 100) -> None:
        self.most, self.outcomes = most, []

    def run(self, function, jobs):
        for outcome in super().run(function, list(jobs)[: self.most]):
            self.outcomes.append(outcome)
            yield outcome


def test_an_import_goes_on_where_it_ended(source, tmp_path):
    begun = PublishedImport(source, "mnist", tmp_path / "zoo")
    assert (begun.missing, begun.total) == (600, 600)
    assert begun.run(Counting(1)) == []
    names = ShardFolder(tmp_path / "zoo" / "data").names()
    assert [name.rsplit("-", 1)[0] for name in names] == ["published-mnist-000000-000256"]
    again = PublishedImport(source, "mnist", tmp_path / "zoo")
    assert (again.missing, again.total) == (344, 600)
    executor = Counting()
    assert again.run(executor) == []
    results = [outcome.result for outcome in executor.outcomes]
    assert [(r.committed, r.rows, r.ok, r.diverged, r.unreadable) for r in results] == [
        (True, 256, 1, 0, 255),
        (True, 88, 1, 0, 87),
    ]
    assert results[0].problems[0].startswith("line 259: there is no readable file 'mnist/run")
    assert len(results[0].problems) == 3
    done = PublishedImport(source, "mnist", tmp_path / "zoo")
    assert (done.missing, done.jobs) == (0, [])
    ok = [n for n, r in enumerate(import_all(source, tmp_path / "zoo")) if r["status"] == "ok"]
    assert ok == [0, 256, 599]


def test_a_limit_may_be_raised(source, tmp_path):
    for limit, missing in ((3, 3), (300, 297), (300, 0), (10_000, 300), (5, 0)):
        begun = PublishedImport(source, "mnist", tmp_path / "zoo", limit=limit)
        assert (begun.missing, begun.total) == (missing, min(limit, 600))
        assert begun.run(InProcess()) == []
    names = sorted(ShardFolder(tmp_path / "zoo" / "data").names())
    assert [name.split("-")[2:4] for name in names] == [
        ["000000", "000003"],
        ["000003", "000256"],
        ["000256", "000300"],
        ["000300", "000512"],
        ["000512", "000600"],
    ]
    limited = import_all(source, tmp_path / "zoo")
    whole = import_all(source, tmp_path / "whole")
    assert limited == whole


def test_a_limit_of_nothing_is_refused(source, tmp_path):
    with pytest.raises(StoreError, match="at least one row"):
        PublishedImport(source, "mnist", tmp_path / "zoo", limit=0)


def test_both_workers_of_a_job_write_the_same_shard(source, tmp_path):
    (job, *_) = PublishedImport(source, "mnist", tmp_path / "zoo", limit=2).jobs
    assert isinstance(job, ImportJob)
    first, second = import_job(job), import_job(job)
    assert isinstance(first, Imported)
    assert (first.committed, second.committed) == (True, False)
    other = PublishedImport(source, "mnist", tmp_path / "other", limit=2)
    other.run(InProcess())
    names = [job.name]
    assert [*other.shards.names()] == names
    assert other.shards.read_bytes(names[0]) == ShardFolder(job.url).read_bytes(names[0])


def test_what_fails_is_returned(source, tmp_path):
    begun = PublishedImport(source, "mnist", tmp_path / "zoo", limit=2)
    (tmp_path / "zoo" / "data").write_bytes(b"not a folder")
    (failed,) = begun.run(InProcess())
    assert failed.job == begun.jobs[0]


def test_zoo_json_says_where_the_nets_come_from(source, tmp_path):
    begun = PublishedImport(source, "mnist", tmp_path / "zoo")
    described = json.loads((tmp_path / "zoo" / "zoo.json").read_text())
    assert described["format"] == FORMAT
    assert described["source"] == {
        "name": "small-transformer-zoo",
        "task": "mnist",
        "metadata_sha256": begun.metadata.sha256,
    }
    assert set(described["versions"]) == {"transformer-nfn", "torch", "python"}


def test_another_table_or_zoo_in_the_same_folder_is_refused(source, tmp_path):
    PublishedImport(source, "mnist", tmp_path / "zoo")
    write_csv(source, [line(number) for number in range(599)])
    with pytest.raises(StoreError, match="holds another zoo"):
        PublishedImport(source, "mnist", tmp_path / "zoo")
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "zoo.json").write_text('{"format": 2, "recipe": {}}')
    with pytest.raises(StoreError, match="holds another zoo"):
        PublishedImport(source, "mnist", tmp_path / "built")


def test_a_foreign_shard_is_refused(source, tmp_path):
    begun = PublishedImport(source, "mnist", tmp_path / "zoo", limit=2)
    begun.run(InProcess())
    (tmp_path / "zoo" / "data" / "other.parquet").write_bytes(b"")
    with pytest.raises(StoreError, match=r"shard 'other.parquet' in .* is not of this import"):
        PublishedImport(source, "mnist", tmp_path / "zoo")


def test_shards_that_overlap_are_refused(source, tmp_path):
    few = PublishedImport(source, "mnist", tmp_path / "zoo", limit=2)
    more = PublishedImport(source, "mnist", tmp_path / "zoo", limit=4)
    few.run(InProcess())
    more.run(InProcess())
    with pytest.raises(StoreError, match="repeats rows"):
        PublishedImport(source, "mnist", tmp_path / "zoo")
