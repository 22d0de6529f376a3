"""A file server on 127.0.0.1 that misbehaves as real ones do.

::

    with serving(folder) as server:
        server.cut_after = 1000          # bytes of a body, then the connection ends; each answer
        fetch(Source("a.bin", f"{server.url}/a.bin"), raw)
        server.asked                     # [("/a.bin", "bytes=1000-"), ...]
"""

from __future__ import annotations

import contextlib
import http.server
import re
import threading
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote


class Server(http.server.ThreadingHTTPServer):
    """Serves the files of ``folder``; the attributes are its switches, and may change any time.

    cut_after: bytes of every body after which the connection ends; cuts: for how many answers.
    ranges: honours Range and If-Range; conditions: honours If-Range. etags: sends an ETag (of the
    content). refusals: how many requests are answered with 503 first. seconds: pause before every
    body. kind: content type. asked: path and Range of every request.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.cut_after: int | None = None
        self.cuts = 10**9
        self.ranges = self.conditions = self.etags = True
        self.refusals = 0
        self.seconds = 0.0
        self.kind = "application/octet-stream"
        self.asked: list[tuple[str, str | None]] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        path = server.folder / unquote(self.path).lstrip("/")
        if server.refusals > 0:
            server.refusals -= 1
            self.send_response(503)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif not path.is_file():
            self.send_error(404)
        else:
            self._send(path.read_bytes())

    def _send(self, whole: bytes) -> None:
        server, start = self.server, 0
        etag = f'"{sha256(whole).hexdigest()[:16]}"'
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        same = not server.conditions or self.headers.get("If-Range") in (None, etag)
        if asked and server.ranges and same:
            start = int(asked[1])
        if start >= len(whole) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(whole)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = whole[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        if server.etags:
            self.send_header("ETag", etag)
        self.send_header("Content-Type", server.kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        time.sleep(server.seconds)
        if server.cut_after is not None and server.cuts > 0:
            server.cuts -= 1
            body = body[: server.cut_after]
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A running server of the files in ``folder``."""
    with Server(folder) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
