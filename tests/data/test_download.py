from __future__ import annotations

import hashlib
import http.server
import importlib.util
import threading
from pathlib import Path

import pytest

from fl.data.download import Source, fetch
from fl.errors import DataError

BODY = bytes(range(256)) * 5000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests += 1
        if self.path == "/gone":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY[:1000] if self.path == "/short" else BODY)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.requests = 0
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def names(folder):
    return sorted(p.name for p in Path(folder).iterdir())


def test_http_is_fetched_once(server, tmp_path):
    source = Source("a.bin", f"{server.url}/a", DIGEST)
    path = fetch(source, tmp_path / "raw")
    assert path == tmp_path / "raw" / "a.bin"
    assert path.read_bytes() == BODY
    assert fetch(source, tmp_path / "raw") == path
    assert server.requests == 1
    assert names(tmp_path / "raw") == ["a.bin"]


def test_damaged_copy_is_fetched_again(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(BODY[:-1])
    fetch(Source("a.bin", f"{server.url}/a", DIGEST), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == BODY


def test_wrong_checksum_names_file_expected_and_found_and_keeps_nothing(server, tmp_path):
    with pytest.raises(DataError) as error:
        fetch(Source("a.bin", f"{server.url}/a", "0" * 64), tmp_path)
    for part in ("a.bin", f"{server.url}/a", "0" * 64, DIGEST):
        assert part in str(error.value)
    assert names(tmp_path) == []


def test_wrong_checksum_leaves_what_was_there(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(DataError):
        fetch(Source("a.bin", f"{server.url}/a", "0" * 64), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"old"


def test_connection_that_breaks_off_is_an_error_even_without_checksum(server, tmp_path):
    with pytest.raises(DataError, match=r"a\.bin: cannot be fetched .*1279000 bytes early"):
        fetch(Source("a.bin", f"{server.url}/short"), tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize("url", ["{}/gone", "http://127.0.0.1:1/x"])
def test_no_answer_is_an_error(server, tmp_path, url):
    with pytest.raises(DataError, match=r"a\.bin: cannot be fetched from http"):
        fetch(Source("a.bin", url.format(server.url)), tmp_path)


def test_file(tmp_path, monkeypatch):
    (tmp_path / "with space").write_bytes(b"hello")
    urls = [
        (tmp_path / "with space").as_uri(),
        f"file:{tmp_path}/with%20space",
        "file:with%20space",
    ]
    monkeypatch.chdir(tmp_path)
    for i, url in enumerate(urls):
        assert fetch(Source(f"{i}", url), tmp_path / "raw").read_bytes() == b"hello"
    with pytest.raises(DataError, match="No such file"):
        fetch(Source("b", f"file:{tmp_path}/none"), tmp_path / "raw")


def test_package_file_and_missing_package(tmp_path):
    found = fetch(Source("init.py", "package:fl/__init__.py"), tmp_path)
    expected = Path(importlib.util.find_spec("fl").origin).read_bytes()
    assert found.read_bytes() == expected
    with pytest.raises(DataError, match="not_there is not installed; do: pip install not_there"):
        fetch(Source("x", "package:not_there/a.csv"), tmp_path)


def test_missing_scikit_learn_is_called_as_pip_calls_it(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="sklearn is not installed; do: pip install scikit-learn"):
        fetch(Source("x", "package:sklearn/datasets/data/digits.csv.gz"), tmp_path)


def test_unknown_kind_of_address(tmp_path):
    with pytest.raises(DataError, match=r"url is 'ftp://a/b'; allowed: http:, https:, file:, pack"):
        fetch(Source("x", "ftp://a/b"), tmp_path)
