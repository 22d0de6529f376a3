from __future__ import annotations

import io
import random
import subprocess
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from fl.base.errors import DataError
from fl.data.readers.archives import iter_members, read_member

FILES = {"a/one.txt": b"one", "b.bin": bytes(range(256)) * 100, "a/none": b""}
KINDS = ["zip", "tar", "tar.gz", "tar.bz2", "tar.xz"]


def pack(path, files=FILES, special=()):
    """An archive of the kind that the name says, its members in the order of ``files``."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.mkdir("a") if "a/one.txt" in files else None
            for name, content in files.items():
                archive.writestr(name, content)
        return path
    kind = path.name.partition(".tar")[2].lstrip(".")
    with tarfile.open(path, f"w:{kind}") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in special:
            archive.addfile(info)
    return path


def read(archive, wanted=None):
    return {name: content.read() for name, content in iter_members(archive, wanted)}


@pytest.fixture(params=KINDS)
def archive(request, tmp_path):
    return pack(tmp_path / f"set.{request.param}")


def test_members_come_in_order_whether_they_are_read_or_not(archive):
    files = read(archive)
    assert list(files.items()) == list(FILES.items())
    assert [content.read(1) for _, content in iter_members(archive)] == [b"o", b"\0", b""]
    assert read(archive, lambda name: name.startswith("a/")) == {"a/one.txt": b"one", "a/none": b""}
    assert read_member(archive, "b.bin").read() == FILES["b.bin"]
    with pytest.raises(DataError, match=r"set\..*: has no member c"):
        read_member(archive, "c")


@pytest.mark.parametrize(("outer", "inner"), [("zip", "zip"), ("tar.gz", "zip"), ("zip", "tar")])
def test_archive_within_an_archive(tmp_path, outer, inner):
    content = pack(tmp_path / f"inner.{inner}").read_bytes()
    whole = pack(tmp_path / f"outer.{outer}", {"before": b"x", "in": content, "after": b"y"})
    files = {}
    for name, stream in iter_members(whole):
        files[name] = read(stream) if name == "in" else stream.read()
    assert files == {"before": b"x", "in": FILES, "after": b"y"}


def test_streaming_holds_no_member_in_memory(tmp_path):
    noise = np.random.default_rng(0).bytes(30_000_000)
    whole = pack(tmp_path / "s.tar.gz", {"x": noise, "y": noise})
    tracemalloc.start()
    for _, stream in iter_members(whole):
        while stream.read(1 << 16):
            pass
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()


# What is damaged


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_truncated_archive_is_named(archive, share):
    noise = np.random.default_rng(0).bytes(40_000)
    pack(archive, {f"{n}": noise for n in range(5)})
    content = archive.read_bytes().rstrip(b"\0")  # The end of a tar is padding.
    archive.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"set\..*is truncated, damaged or .*delete the file"):
        read(archive)


def test_error_names_archive_and_member(tmp_path):
    whole = pack(tmp_path / "set.zip", {"in": pack(tmp_path / "inner.tar.gz").read_bytes()[:-40]})
    with pytest.raises(DataError, match=r"set\.zip: in"):
        for _, stream in iter_members(whole):
            read(stream)


@pytest.mark.parametrize("content", [b"", b"<html>busy</html>", b"PK\3\4", bytes(100)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"set\.zip: is truncated, damaged or of an unexpected"):
        read(tmp_path / "set.zip")


def test_missing_and_encrypted_archives(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "none.zip")
    whole = pack(tmp_path / "set.zip")
    content = whole.read_bytes().replace(b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0")
    whole.write_bytes(content.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"))
    with pytest.raises(DataError, match=r"set\.zip: member a/one\.txt.*password"):
        read(whole)


# What is hostile: nothing is written, so a name leads nowhere, and what is no file is passed over.


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_passed_over(tmp_path, kind):
    info = tarfile.TarInfo("x")
    info.type, info.linkname = kind, "/etc/passwd"
    assert read(pack(tmp_path / "set.tar", {"a": b"1"}, special=[info])) == {"a": b"1"}


def test_a_file_with_holes_is_passed_over(tmp_path):
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    subprocess.run(["tar", "-Scf", "set.tar", "holes"], cwd=tmp_path, check=True)
    assert read(tmp_path / "set.tar") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_mutated_archives_are_an_error_or_files(tmp_path, kind):
    whole, draw, files = pack(tmp_path / f"set.{kind}"), random.Random(kind), 0
    content = whole.read_bytes()
    for _ in range(60):
        mutated = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            mutated[draw.randrange(len(mutated))] = draw.randrange(256)
        whole.write_bytes(mutated)
        try:
            files += len(read(whole))
        except DataError as error:
            assert str(error).startswith(str(whole))
    assert files < 180
