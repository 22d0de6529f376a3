from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from sources.server import serving

from fl.base.errors import DataError
from fl.data.dataset import raw_folder_name
from fl.data.download import Lock, Source
from fl.data.preparation import SourcePolicy, prepare_folder
from fl.data.prepared import Prepared, Writer

META = {"name": "toy", "params": {"a": 1}, "sources": [{"name": "raw.csv", "sha256": "0" * 64}]}
X = np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2)
Y = np.arange(10) % 3


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write(folder, meta=META, **arrays):
    with Writer(folder) as writer:
        for name, array in ({"x": X, "y": Y} | arrays).items():
            writer.save(name, array)
        writer.describe(["a", "b", "c"], normalisation={"scale": 0.5, "mean": [1.0], "sd": [2.0]})
        writer.finish(meta)
    return Path(folder)


def test_round_trip(tmp_path):
    client = np.array([0, 0, 0, 1, 1, 1, 4, 4, 4, 4], "int32")
    folder = write(tmp_path / "toy", client=client)
    data = Prepared.open(folder)
    assert np.array_equal(data.x, X)
    assert data.x.dtype == np.uint8
    assert np.array_equal(data.y, Y)
    assert np.array_equal(data.client, client)
    assert data.domain is None
    assert (data.name, data.params, data.classes) == ("toy", {"a": 1}, ("a", "b", "c"))
    assert data.normalisation == {"scale": 0.5, "mean": [1.0], "sd": [2.0]}
    assert data.sources == ({"name": "raw.csv", "sha256": "0" * 64},)
    data.verify()


def test_splits_may_be_named(tmp_path):
    expected = [0, 1, 2, 0, 0, 1, 2, 0, 0, 0]
    texts = [("train", "test", "val")[number] for number in expected]
    for place, given in enumerate((texts, np.array(texts), np.array(texts, object))):
        split = Prepared.open(write(tmp_path / str(place), split=given)).split
        assert split.dtype == np.int8
        assert split.tolist() == expected
    with Writer(tmp_path / "grown") as writer:
        for x, y, split in zip(X, Y, texts, strict=True):
            writer.add(x=x, y=y, split=split)
        writer.describe(["a", "b", "c"])
        writer.finish(META)
    assert Prepared.open(tmp_path / "grown").split.tolist() == expected


def test_arrays_are_mapped_and_read_only(tmp_path):
    data = Prepared.open(write(tmp_path / "toy"))
    assert isinstance(data.x, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        data.x[0] = 1


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("y", Y[:9], r"array y is int64 \[9\]. Allowed: one whole number for"),
        ("y", np.arange(10) % 4, "labels run from 0 to 3. Allowed: 0 to 2"),
        ("client", np.zeros(10), r"array client is float64 \[10\]"),
        ("split", np.full(10, 3, np.int8), "array split has unknown numbers. Allowed: 0 to 2"),
        ("split", ["train", "dev"] * 5, "array split has 'dev'. Allowed: train, test, val"),
        ("mask", np.zeros((10, 3), np.uint8), r"array mask is uint8 \[10, 3\]. Allowed: a mask of"),
        ("text", np.zeros((10, 4)), r"array text is float64 \[10, 4\]. Allowed: a text of whole"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(tmp_path, name, array, problem):
    with pytest.raises(DataError, match=problem):
        write(tmp_path / "toy", **{name: array})
    assert names(tmp_path) == []


def test_place_that_is_taken_stays_as_it_is(tmp_path):
    folder = write(tmp_path / "toy")
    write(folder, y=Y * 0)
    assert np.array_equal(Prepared.open(folder).y, Y)
    assert names(tmp_path) == ["toy"]


def test_place_without_a_description_is_taken_over_and_who_reads_it_goes_on_reading(tmp_path):
    folder = write(tmp_path / "toy")
    reader = Prepared.open(folder)
    (folder / "dataset.json").unlink()
    write(folder, y=Y * 0)
    assert np.array_equal(Prepared.open(folder).y, Y * 0)
    assert np.array_equal(reader.y, Y)
    assert names(tmp_path) == ["toy"]


# What is damaged


def assert_refused(folder, message):
    with pytest.raises(DataError) as error:
        Prepared.open(folder)
    assert message in str(error.value)
    assert f"delete the folder {folder} and prepare it again" in str(error.value)


def test_folder_without_description_is_refused(tmp_path):
    folder = write(tmp_path / "toy")
    (folder / "dataset.json").unlink()
    assert_refused(folder, "dataset.json: the file is missing")
    assert_refused(tmp_path / "none", "dataset.json: the file is missing")


@pytest.mark.parametrize("keep", [None, 0, -1])
def test_a_truncated_or_missing_array_is_refused(tmp_path, keep):
    folder = write(tmp_path / "toy")
    path = folder / "x.npy"
    content = path.read_bytes()
    path.unlink()
    if keep is not None:
        path.write_bytes(content[:keep])
    assert_refused(folder, "x.npy: the array is missing or its size")


# Preparing


@dataclass(frozen=True)
class Toy:
    origin: str
    shift: int = 0
    fail: str = ""

    title: ClassVar[str] = "Toy"
    citation: ClassVar[str] = "none"
    licence: ClassVar[str] = "none"

    @property
    def sources(self):
        return (Source("raw.txt", self.origin),)

    def read(self, raw, writer):
        writer.save("x", X + np.uint8(self.shift))
        if self.fail == "disk":
            raise OSError(28, "No space left on device")
        if self.fail == "bug":
            raise RuntimeError("bug")
        labels = np.array((raw / "raw.txt").read_text().split(), int)
        writer.save("y", labels)
        writer.describe(["a", "b", "c"])


@pytest.fixture
def origin(tmp_path):
    (tmp_path / "labels.txt").write_text("0 1 2 0 1 2 0 1 2 0")
    return (tmp_path / "labels.txt").as_uri()


def test_prepare_twice_does_nothing(tmp_path, origin):
    folder = tmp_path / "prepared" / "toy"
    prepare_folder(Toy(origin), "toy", tmp_path / "raw", folder)
    before = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    (tmp_path / "labels.txt").unlink()
    (tmp_path / "raw" / "raw.txt").unlink()
    prepare_folder(Toy(origin), "toy", tmp_path / "raw", folder)
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == before


def test_prepared_from_other_files_than_the_lock_says_is_refused(tmp_path, origin):
    """Of an address: a file of the user's own is held to what the spec says, not to the lock."""
    folder, lock = tmp_path / "prepared" / "toy", Lock(tmp_path / "lock.json", "toy")
    supply = SourcePolicy(lock=lock)
    with serving(tmp_path) as server:
        toy = Toy(f"{server.url}/labels.txt")
        prepare_folder(toy, "toy", tmp_path / "raw", folder, supply)
        prepare_folder(toy, "toy", tmp_path / "raw", folder, supply)
    digest = hashlib.sha256((tmp_path / "labels.txt").read_bytes()).hexdigest()
    assert json.loads(lock.path.read_text()) == {"toy": {"raw.txt": digest}}
    lock.path.write_text(json.dumps({"toy": {"raw.txt": "0" * 64}}))
    with pytest.raises(
        DataError, match=rf"from a file raw\.txt with sha256 {digest}, but .*lock\.json"
    ):
        prepare_folder(toy, "toy", tmp_path / "raw", folder, supply)


def test_files_of_a_subset_are_not_held_to_the_checksums_of_the_whole(tmp_path, origin):
    class Published(Toy):
        complete = True
        sources = (Source("raw.txt", origin, "0" * 64),)

    whole = Published(origin)
    with pytest.raises(DataError, match="expected 0000"):
        prepare_folder(whole, "toy", tmp_path / "raw", tmp_path / "a")
    subset = Published(origin)
    object.__setattr__(subset, "complete", False)
    prepare_folder(subset, "toy", tmp_path / "raw", tmp_path / "a")
    assert np.array_equal(Prepared.open(tmp_path / "a").y, Y)
    assert raw_folder_name({"name": "toy", "complete": False}) == "toy-subset"
    assert (
        raw_folder_name({"name": "toy", "complete": True})
        == raw_folder_name({"name": "toy"})
        == "toy"
    )


@pytest.mark.parametrize(("fail", "error"), [("disk", DataError), ("bug", RuntimeError)])
def test_failing_preparation_leaves_nothing(tmp_path, origin, fail, error):
    folder = tmp_path / "prepared" / "toy"
    with pytest.raises(error, match=r"No space left|bug"):
        prepare_folder(Toy(origin, fail=fail), "toy", tmp_path / "raw", folder)
    assert names(tmp_path / "prepared") == []
    prepare_folder(Toy(origin), "toy", tmp_path / "raw", folder)
    assert np.array_equal(Prepared.open(folder).y, Y)


def test_killed_preparation_does_not_look_complete(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        import numpy as np
        from fl.data.prepared import Writer
        with Writer(sys.argv[1]) as writer:
            writer.save("x", np.zeros((10, 2)))
            writer.save("y", np.zeros(10, int))
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    folder = tmp_path / "toy"
    command = [sys.executable, "-c", script, str(folder)]
    killed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert_refused(folder, "is missing")
    (left,) = names(tmp_path)
    assert left.startswith(".toy.")
    write(folder)
    assert np.array_equal(Prepared.open(folder).y, Y)
