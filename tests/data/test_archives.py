from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import subprocess
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fl.base.errors import DataError, FedloomError
from fl.data.archives import entries, member, unpack
from fl.data.unpacking import Room

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
    return {name: content.read() for name, content in entries(archive, wanted)}


def link(name, target, kind=tarfile.SYMTYPE):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.fixture(params=KINDS)
def archive(request, tmp_path):
    return pack(tmp_path / f"set.{request.param}")


def test_members_come_in_order(archive):
    found = read(archive)
    assert found == FILES
    assert list(found) == list(FILES)


def test_wanted_members_only(archive):
    assert read(archive, lambda name: name.startswith("a/")) == {"a/one.txt": b"one", "a/none": b""}
    assert member(archive, "b.bin").read() == FILES["b.bin"]
    with pytest.raises(DataError, match=r"set\..*: has no member c"):
        member(archive, "c")


def test_members_that_are_not_read_are_passed_over(archive):
    names = [name for name, _ in entries(archive)]
    assert names == list(FILES)
    halves = [content.read(1) for _, content in entries(archive)]
    assert halves == [b"o", b"\0", b""]


@pytest.mark.parametrize("name", ["./a/b", ".//a/b", "a//b", "././a/./b"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_dots_and_doubled_strokes_are_no_part_of_a_name(tmp_path, kind, name):
    assert list(read(pack(tmp_path / f"s.{kind}", {name: b"c"}))) == ["a/b"]


def test_unpacking(archive, tmp_path):
    folder = unpack(archive, tmp_path / "out" / "set")
    found = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert found == FILES
    archive.unlink()
    assert unpack(archive, folder) == folder
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["set"]


@pytest.mark.parametrize("outer", KINDS)
@pytest.mark.parametrize("inner", ["zip", "tar", "tar.gz"])
def test_archive_within_an_archive(tmp_path, outer, inner):
    content = pack(tmp_path / f"inner.{inner}").read_bytes()
    whole = pack(tmp_path / f"outer.{outer}", {"before": b"x", "in": content, "after": b"y"})
    found = {}
    for name, stream in entries(whole):
        found[name] = read(stream) if name == "in" else stream.read()
    assert found == {"before": b"x", "in": FILES, "after": b"y"}


@pytest.mark.parametrize(
    ("pack_bytes", "open_"),
    [(gzip.compress, gzip.open), (bz2.compress, bz2.open), (lzma.compress, lzma.open)],
)
def test_compressed_members_are_streams(tmp_path, pack_bytes, open_):
    whole = pack(tmp_path / "s.tar", {"x": pack_bytes(b"hello" * 1000)})
    [(_, stream)] = [(n, open_(s).read()) for n, s in entries(whole)]
    assert stream == b"hello" * 1000


def test_streaming_holds_no_member_in_memory(tmp_path):
    noise = np.random.default_rng(0).bytes(30_000_000)
    whole = pack(tmp_path / "s.tar.gz", {"x": noise, "y": noise})
    tracemalloc.start()
    for _, stream in entries(whole):
        while stream.read(1 << 16):
            pass
    assert tracemalloc.get_traced_memory()[1] < 3_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_a_head_of_any_length_is_not_held_in_memory(tmp_path, kind):
    head = tarfile.TarInfo("x")
    head.type, head.size = tarfile.XHDTYPE, 100_000_000
    text = head.tobuf() + bytes(40_000_000)
    whole = tmp_path / f"set.{kind}"
    whole.write_bytes(gzip.compress(text, 1) if kind == "tar.gz" else text)
    del text
    tracemalloc.start()
    with pytest.raises(DataError, match=r"set\..*a member's head is longer than 16,777,216 bytes"):
        read(whole)
    assert tracemalloc.get_traced_memory()[1] < 35_000_000
    tracemalloc.stop()


# What is damaged


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_archive_is_named(archive, tmp_path, share):
    noise = np.random.default_rng(0).bytes(40_000)
    pack(archive, {f"{n}": noise for n in range(5)})
    content = archive.read_bytes().rstrip(b"\0")  # The end of a tar is padding.
    archive.write_bytes(content[: int(share * len(content))])
    with pytest.raises(DataError, match=r"set\..*is truncated, damaged or .*delete the file"):
        read(archive)
    with pytest.raises(DataError, match=r"set\."):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == [archive.name]


def test_tar_cut_between_two_members_is_truncated(tmp_path):
    whole = pack(tmp_path / "set.tar", {"a": b"x" * 512, "b": b"y" * 512})
    whole.write_bytes(whole.read_bytes()[:1024])
    with pytest.raises(DataError, match=r"set\.tar: is truncated.*its end is missing"):
        read(whole)


@pytest.mark.parametrize("kind", [*KINDS[2:], "zip"])
def test_flipped_bit_is_found(tmp_path, kind):
    whole = pack(tmp_path / f"set.{kind}", {"x": np.random.default_rng(0).bytes(50_000)})
    content = bytearray(whole.read_bytes())
    content[len(content) // 2] ^= 1
    whole.write_bytes(content)
    with pytest.raises(DataError, match=r"set\."):
        read(whole)


def test_error_names_archive_and_member(tmp_path):
    whole = pack(tmp_path / "set.zip", {"in": pack(tmp_path / "inner.tar.gz").read_bytes()[:-40]})
    with pytest.raises(DataError, match=r"set\.zip: in"):
        for _, stream in entries(whole):
            read(stream)


@pytest.mark.parametrize("content", [b"", b"<html>busy</html>", b"PK\3\4", bytes(100)])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "set.zip").write_bytes(content)
    with pytest.raises(DataError, match=r"set\.zip: is truncated, damaged or of another"):
        read(tmp_path / "set.zip")


def test_missing_and_encrypted_archives(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        read(tmp_path / "none.zip")
    whole = pack(tmp_path / "set.zip")
    content = whole.read_bytes().replace(b"PK\3\4\x14\0\0\0", b"PK\3\4\x14\0\1\0")
    whole.write_bytes(content.replace(b"PK\1\2\x14\3\x14\0\0\0", b"PK\1\2\x14\3\x14\0\1\0"))
    with pytest.raises(DataError, match=r"set\.zip: member a/one\.txt.*password"):
        read(whole)


# What is hostile


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["../../x", "a/../../x", "/etc/x", "..\\x", "C:\\x"])
def test_names_that_lead_out_are_refused(tmp_path, kind, name):
    whole = pack(tmp_path / f"set.{kind}", {"good": b"1", name: b"evil"})
    for action in (read, lambda path: unpack(path, tmp_path / "deep" / "out")):
        with pytest.raises(DataError) as error:
            action(whole)
        assert f"set.{kind}: member {name!r}" in str(error.value)
    assert list((tmp_path / "deep").iterdir()) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["deep", whole.name]


@pytest.mark.parametrize(
    "special",
    [
        link("x", "/etc/passwd"),
        link("x", "../../y"),
        link("x", "/etc/passwd", tarfile.LNKTYPE),
        link("x", "", tarfile.CHRTYPE),
        link("x", "", tarfile.FIFOTYPE),
    ],
)
def test_links_and_devices_are_refused(tmp_path, special):
    whole = pack(tmp_path / "set.tar", special=[special])
    with pytest.raises(DataError, match=r"set\.tar: member 'x' is a link or a device"):
        unpack(whole, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("x")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match=r"set\.zip: member 'x' is a link or a device"):
        read(tmp_path / "set.zip")


@pytest.mark.parametrize("kind", KINDS)
def test_a_dot_does_not_hide_that_a_path_is_absolute(tmp_path, kind):
    outside = tmp_path / "outside"
    whole = pack(tmp_path / f"set.{kind}", {f"./{outside}": b"evil"})
    folder = unpack(whole, tmp_path / "out")
    assert not outside.exists()
    assert (folder / outside.relative_to("/")).read_bytes() == b"evil"


def test_a_file_with_holes_is_refused(tmp_path):
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 40)
    subprocess.run(["tar", "-Scf", "set.tar", "holes"], cwd=tmp_path, check=True)
    with pytest.raises(DataError, match=r"set\.tar: member 'holes' has holes"):
        read(tmp_path / "set.tar")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "problem"), [("a" * 300, "cannot be a file here"), ("a", "")])
def test_a_name_that_no_file_can_have_is_named(tmp_path, kind, name, problem):
    whole = pack(tmp_path / f"set.{kind}", {name: b"1"})
    if not problem:
        assert (unpack(whole, tmp_path / "out") / name).read_bytes() == b"1"
        return
    with pytest.raises(DataError, match=rf"set\.{kind}: member 'a+\.\.\.' {problem}"):
        unpack(whole, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == [whole.name]


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_is_allowed_is_not_unpacked(tmp_path, kind):
    whole = pack(tmp_path / f"set.{kind}", {"a": bytes(600), "b": bytes(500)})
    problem = r"member 'b' makes it 1,100 bytes; allowed: 1,099 in all"
    with pytest.raises(DataError, match=rf"set\.{kind}: {problem}"):
        unpack(whole, tmp_path / "out", limit=1099)
    assert [p.name for p in tmp_path.iterdir()] == [whole.name]
    assert len(list(unpack(whole, tmp_path / "out", limit=1100).iterdir())) == 2


def test_a_size_that_an_archive_states_is_believed_no_more_than_its_bytes(tmp_path):
    room = Room(tmp_path, tmp_path / "set.tar", limit=100)
    with pytest.raises(DataError, match=r"set\.tar: member 'a' makes it 101 bytes"):
        room.put("a", io.BytesIO(b"x"), stated=101)
    with pytest.raises(DataError, match=r"set\.tar: member 'b' makes it 150 bytes"):
        room.put("b", io.BytesIO(bytes(150)), stated=1)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "", ".", "link/x", "a\0b"])
def test_where_a_file_lands_is_asked_when_it_is_written(tmp_path, name):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"set\.tar: member .*(outside|cannot be a file here)"):
        Room(folder, tmp_path / "set.tar", limit=100).put(name, io.BytesIO(b"evil"))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["in", "link"]


PIECES = [
    *("/", "//", "./", ".//", "../", "..", ".", "\\", "..\\", "C:", "C:\\", "\0", "\n", "\x1b[2J"),
    *("a", "b", "a" * 300, "\u202e", "\u00e4", " ", "~", "dev/zero", "CON", "*"),
]
TYPES = [
    *(tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE),
    *(tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE),
]


def strange(path, draw):
    """An archive of one to three members of strange names and kinds."""
    names = ["".join(draw.choices(PIECES, k=draw.randint(1, 4))) for _ in range(3)]
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name in names[: draw.randint(1, 3)]:
                info = zipfile.ZipInfo("x")
                info.filename, info.create_system = name, 3
                info.external_attr = draw.choice([0, 0o100644, 0o120777, 0o020666, 0o010644]) << 16
                archive.writestr(info, b"evil")
        return
    with tarfile.open(path, "w", format=draw.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])) as t:
        for name in names[: draw.randint(1, 3)]:
            info = link(name, draw.choice(names), draw.choice([*TYPES, *[tarfile.REGTYPE] * 8]))
            info.size = 4 if info.type == tarfile.REGTYPE else 0
            t.addfile(info, io.BytesIO(b"evil"))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_strange_members_are_inside_or_an_error(tmp_path, kind):
    deep, draw, unpacked = tmp_path / "1" / "2" / "3" / "4", random.Random(0), 0
    deep.mkdir(parents=True)
    roots = {p.name for p in Path("/").iterdir()}
    for n in range(200):
        whole, folder = tmp_path / f"{n}.{kind}", deep / f"{n}"
        strange(whole, draw)
        try:
            unpack(whole, folder)
        except DataError as error:
            assert str(error).startswith(str(whole))
        unpacked += folder.exists()
        assert not any(p.is_symlink() or not (p.is_dir() or p.is_file()) for p in deep.rglob("*"))
        whole.unlink()
    assert 10 < unpacked < 190
    assert {p.name for p in deep.iterdir()} <= {str(n) for n in range(200)}
    above = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("[!4]*/**/[!0-9]*"))
    assert [p for p in above if not p.startswith("1/2/3/4/")] == []
    assert {p.name for p in Path("/").iterdir()} == roots


def test_full_disk_leaves_nothing(tmp_path, small_disk):
    whole = pack(tmp_path / "set.tar", {"x": bytes(1_000_000)})
    with pytest.raises(FedloomError, match="the disk is full"):
        unpack(whole, small_disk / "out")
    assert list(small_disk.iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert (unpack(whole, small_disk / "out") / "x").stat().st_size == 1_000_000
