"""Over a real connection: a small server that gives ranges and ETags."""

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.hub.nets import some_nets
from transformer_nfn.hub import Bulk, FingerprintTask, Results, stored_index
from transformer_nfn.jobs import InProcess
from transformer_nfn.kinship import Index, fingerprint

pytest.importorskip("aiohttp", reason="fsspec reads http with it")


#: Names of files that are answered by an error.
REFUSED = {"refused": 403, "teapot": 418}


class Server(ThreadingHTTPServer):
    """Files of a folder, and how many bytes of them were sent."""

    def __init__(self, home: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.home, self.sent = home, 0


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.server.home / self.path.strip("/")
        if path.stem in REFUSED:
            self.send_error(REFUSED[path.stem])
            return
        if path.is_dir():
            names = [f"{one.name}/" if one.is_dir() else one.name for one in path.iterdir()]
            data, kind = "".join(f'<a href="{n}">{n}</a>' for n in names).encode(), "text/html"
        elif path.is_file():
            data, kind = path.read_bytes(), "application/octet-stream"
        else:
            self.send_error(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        part = data[int(wanted[1]) : int(wanted[2]) + 1] if wanted else data
        self.send_response(206 if wanted else 200)
        if wanted:
            place = f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(data)}"
            self.send_header("Content-Range", place)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", hashlib.sha256(data).hexdigest())
        self.end_headers()
        if body:
            self.wfile.write(part)
            self.server.sent += len(part)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    home = tmp_path / "nets"
    home.mkdir()
    with Server(home) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(server: Server, out: Path, blocks: str = "all") -> Bulk:
    bulk = Bulk(FingerprintTask(blocks), [f"http://127.0.0.1:{server.server_port}/"], str(out))
    bulk.run(InProcess())
    return bulk


def test_a_folder_on_the_web(server: Server, tmp_path: Path) -> None:
    some_nets(server.home)
    (server.home / "broken.safetensors").write_bytes(b"no")
    first = run(server, tmp_path / "out")
    assert first.standing()[0] == {"ok": 3, "broken": 1}
    found = stored_index(first.results)
    local = [fingerprint(server.home / path.split("/", 3)[3]) for path in found.paths]
    assert found.keys() == Index.of(local).keys()
    assert run(server, tmp_path / "out").tally.files == 0
    made.zoo_net(server.home / "0" / "0.safetensors", "residual", 9)  # same size, other ETag
    assert run(server, tmp_path / "out").tally.files == 1


def test_of_a_large_file_only_some_is_sent(server: Server, tmp_path: Path) -> None:
    sizes = {"n_embd": 192, "n_inner": 768, "n_layer": 6, "vocab_size": 20_000}
    made.save(made.model("gpt2", **sizes), server.home / "gpt2")
    bulk = run(server, tmp_path / "out", "last")
    assert bulk.standing() == ({"ok": 1}, {})
    row = Results(str(tmp_path / "out")).rows().to_pylist()[0]
    assert row["bytes_read"] < 0.25 * row["size"]
    assert server.sent < 1.1 * row["bytes_read"] + 50_000  # and listings, and config.json
