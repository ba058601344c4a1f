"""A server in a thread that serves one file and can misbehave."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nmln.molecules.datasets import DIRECTORY
from nmln.molecules.downloads import (
    CACHE,
    MIRROR,
    SOURCES,
    PublicSource,
    cache_folder,
)

CONTENT = b"smiles,y\n" + b"".join(b"C%s,%d\n" % (b"C" * (i % 7), i) for i in range(2000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """Serves one file and remembers what it was asked; the fields make it misbehave."""

    content: bytes = CONTENT
    version: str | None = '"first"'
    cut: int | None = None  # bytes after which it hangs up
    ranges: bool = True
    lengths: bool = True
    status: int = 200
    redirect: str | None = None
    says: bytes | None = None  # in place of an answer
    pause: Callable[[], None] | None = None  # called when half of the bytes are on their way
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(dict(handler.headers))
        if self.says is not None:
            handler.wfile.write(self.says)
            return None
        if self.redirect is not None:
            handler.send_response(302)
            handler.send_header("Location", self.redirect)
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        if self.status != 200:
            return handler.send_error(self.status)
        wanted, begin = handler.headers.get("Range"), 0
        same = handler.headers.get("If-Range") in (None, self.version)
        if wanted and self.ranges and same:
            begin = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if begin and begin >= len(self.content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(self.content)}")
            handler.send_header("Content-Length", "0")
            return handler.end_headers()
        handler.send_response(206 if begin else 200)
        body = self.content[begin:]
        if begin:
            span = f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}"
            handler.send_header("Content-Range", span)
        if self.version is not None:
            handler.send_header("ETag", self.version)
        if self.lengths:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        body = body if self.cut is None else body[: self.cut]
        half = len(body) // 2
        handler.wfile.write(body[:half])
        if self.pause is not None:
            self.pause()
        handler.wfile.write(body[half:])
        return None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.answer(self)

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_address[1]}/small.csv"
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.delenv(MIRROR, raising=False)
    monkeypatch.delenv(DIRECTORY, raising=False)
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> PublicSource:
    found = PublicSource("small", "a small set", server.url, SHA256, 0, "none")
    monkeypatch.setitem(SOURCES, "small", found)
    return found


def left_over() -> set[str]:
    """What is in the cache, but for the empty files that are only there to be locked."""
    names = {file.name for file in cache_folder().glob("*")}
    return {name for name in names if not name.endswith(".lock")}
