"""A proxy between an S3 client and its server that does what networks do.

Kinds of faults:

    timeout     the request is not passed on, and no answer comes
    500, 503    an error of S3 instead of the answer; the request is not passed on
    reset       the connection is reset before the request is passed on
    torn        the server gets half of an upload, then both connections end
    lost        the server has done it, and the client sees a reset connection
    cut         half of an answer's body, then the connection ends
    short       half of an answer's body, and a Content-Length that fits it
"""

import http.client
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

KINDS = ("timeout", "500", "503", "reset", "torn", "lost", "cut", "short")
_CODES = {"500": "InternalError", "503": "SlowDown"}


class Proxy(ThreadingHTTPServer):
    """Passes requests on, some of them with a fault.

    Args:
        endpoint: The server.
        rate: Share of requests with a fault, of any kind that suits them.
        seed: Chooses them.
        hang: Seconds for which a `timeout` says nothing: longer than the client waits.

    Attributes:
        requests: How many came, by method.
        faults: How many were injected, by kind.
        sent: Bytes of the bodies that clients got.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, endpoint: str, *, rate: float = 0.0, seed: int = 0, hang: float = 5.0
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream, self.rate, self.hang = urlsplit(endpoint).netloc, rate, hang
        self.requests: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.sent = 0
        self.closing = threading.Event()
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._planned: list[tuple[str, str, str]] = []

    @property
    def url(self) -> str:
        """What clients take for the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def plan(self, kind: str, method: str, part: str = "", times: int = 1) -> None:
        """A fault for the next requests of a method with something in their path."""
        self._planned += [(kind, method, part)] * times

    def clear(self) -> None:
        """Forget all counts."""
        with self._lock:
            self.requests.clear()
            self.faults.clear()
            self.sent = 0

    def choose(self, method: str, path: str) -> str:
        """The fault of a request, or nothing; counts both."""
        with self._lock:
            self.requests[method] += 1
            kind = self._chosen(method, path)
            if kind:
                self.faults[kind] += 1
            return kind

    def _chosen(self, method: str, path: str) -> str:
        for number, (kind, wanted, part) in enumerate(self._planned):
            if method == wanted and part in path:
                del self._planned[number]
                return kind
        if self._random.random() >= self.rate:
            return ""
        suited = {"PUT": {"cut", "short"}, "GET": {"torn"}}.get(method, {"cut", "short", "torn"})
        return self._random.choice([kind for kind in KINDS if kind not in suited])

    def count(self, sent: int) -> None:
        """Bytes that went to a client."""
        with self._lock:
            self.sent += sent

    def handle_error(self, *_: object) -> None:
        """Clients that went away are no errors here."""


class _Handler(BaseHTTPRequestHandler):
    server: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _up: http.client.HTTPConnection | None = None

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.choose(self.command, self.path)
        if fault == "timeout":
            self.server.closing.wait(self.server.hang)
            self._hang_up()
        elif fault in _CODES:
            text = f"<Error><Code>{_CODES[fault]}</Code><Message>injected</Message></Error>"
            self._answer(int(fault), [("Content-Type", "application/xml")], text.encode())
        elif fault == "reset":
            self._hang_up()
        elif fault == "torn":
            self._ask(body[: len(body) // 2], torn=True)
            self._hang_up()
        else:
            status, headers, answer = self._ask(body)
            if fault == "lost":
                self._hang_up()
            else:
                self._answer(status, headers, answer, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _ask(self, body: bytes, torn: bool = False) -> tuple[int, list[tuple[str, str]], bytes]:
        if self._up is None:
            self._up = http.client.HTTPConnection(self.server.upstream, timeout=60)
        self._up.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():  # Host too: it is signed
            if name.lower() not in ("connection", "expect"):
                self._up.putheader(name, value)
        self._up.endheaders(body)
        if torn:
            self._up.close()
            self._up = None
            return 0, [], b""
        answer = self._up.getresponse()
        return answer.status, answer.getheaders(), answer.read()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, fault: str = ""
    ) -> None:
        given = dict(headers)
        part = body[: len(body) // 2] if fault in ("cut", "short") else body
        if self.command != "HEAD" and status != 204:
            given.pop("Transfer-Encoding", None)
            given["Content-Length"] = str(len(part if fault == "short" else body))
        if self.command == "HEAD" and status >= 500:
            part = b""
            given["Content-Length"] = "0"
        self.send_response_only(status)
        for name, value in given.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(part)
            self.server.count(len(part))
        if fault == "cut":
            self.close_connection = True

    def _hang_up(self) -> None:
        """Reset, which is less polite than closing."""
        self.close_connection = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def finish(self) -> None:
        if self._up is not None:
            self._up.close()
        with suppress(OSError, ValueError):  # hung up
            super().finish()

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def proxy(endpoint: str, *, rate: float = 0.0, seed: int = 0, hang: float = 5.0) -> Iterator[Proxy]:
    """A running proxy."""
    with Proxy(endpoint, rate=rate, seed=seed, hang=hang) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()
