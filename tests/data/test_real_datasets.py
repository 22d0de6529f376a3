"""The contract of every reader of published files, on generated ones served over HTTP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import sources
from sources.server import serving

from fl import data
from fl.base import registry
from fl.base.errors import DataError, FedloomError, Where
from fl.data import Supply
from fl.data.lock import Lock
from fl.data.prepared import SPLIT, Prepared, Writer

ALL = pytest.mark.parametrize("name", sources.names())
WHERE = Where("the test")


def make(name, **params):
    """The data set as a config with these keys makes it."""
    entry = registry.find("data set", name, WHERE)
    return entry.make(entry.parse({**sources.generator(name).PARAMS, **params}, WHERE))


def prepared(name, files, root, **params):
    """The set, fetched from a server of ``files`` and prepared below ``root``."""
    root.mkdir(exist_ok=True)
    with serving(files) as server:
        supply = Supply(server.url, Lock(root / "lock.json", name))
        data.prepare(make(name, **params), name, root / "raw", root / "prepared", supply)
    return Prepared.open(root / "prepared")


def written(name, folder, **broken):
    folder.mkdir(exist_ok=True)
    return sources.generator(name).write(folder, **broken)


def assert_nothing_half_made(root):
    assert sorted(p.name for p in root.iterdir() if p.name not in ("raw", "lock.json")) == []


@ALL
def test_generator_writes_the_files_that_the_set_names(name, tmp_path):
    written(name, tmp_path)
    named = [source.name for source in make(name).sources]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(named)


@ALL
def test_values_come_out_as_they_went_in(name, tmp_path):
    made, dataset = written(name, tmp_path / "files"), make(name)
    found = prepared(name, tmp_path / "files", tmp_path / "root")
    assert found.x.shape == (made.samples, *made.shape)
    assert made.shape == dataset.shape
    assert np.array_equal(found.y, made.y)
    assert found.classes == made.classes
    assert len(made.classes) == dataset.classes
    assert found.domains == made.domains == tuple(getattr(dataset, "domains", ()))
    for array in ("domain", "client", "split"):
        expected = getattr(made, array)
        assert (expected is None) == (getattr(found, array) is None), array
        assert expected is None or np.array_equal(getattr(found, array), expected), array
    assert (found.client is not None) == (dataset.natural is not None)
    there = set() if made.split is None else {SPLIT[int(i)] for i in np.unique(made.split)}
    assert {*dataset.published_splits} == there
    assert made.x
    rows = {array: getattr(made, array) or {} for array in ("x", "mask", "text")}
    for array, known in {**rows, **(made.inputs or {})}.items():
        for row, expected in known.items():
            kept = found.inputs if array in found.inputs else vars(found)
            assert np.array_equal(kept[array][row], expected), f"{array} {row}"
    assert set(found.inputs) == set(made.inputs or {})
    kinds = getattr(dataset, "modalities", ())
    assert [found.array(kind.array).shape[1:] for kind in kinds] == [kind.shape for kind in kinds]
    found.verify()


@ALL
def test_preparing_twice_gives_equal_bytes(name, tmp_path):
    written(name, tmp_path / "files")
    once, twice = (prepared(name, tmp_path / "files", tmp_path / r).folder for r in "ab")
    for path in once.iterdir():
        assert path.read_bytes() == (twice / path.name).read_bytes(), path.name
    before = {path.name: path.stat().st_mtime_ns for path in once.iterdir()}
    assert prepared(name, tmp_path / "files", tmp_path / "a").folder == once
    assert {path.name: path.stat().st_mtime_ns for path in once.iterdir()} == before


@ALL
def test_set_is_documented(name):
    entry = registry.find("data set", name, WHERE)
    text = entry.file.read_text()
    assert entry.citation
    assert "icence" in text
    assert not [s.name for s in make(name).sources if s.url is None and not s.note]


@ALL
def test_truncated_files_are_named_and_nothing_half_made_is_left(name, tmp_path):
    written(name, tmp_path / "files")
    for i, path in enumerate(sorted((tmp_path / "files").iterdir())):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) * 6 // 10])
        with pytest.raises(DataError) as error:
            prepared(name, tmp_path / "files", tmp_path / f"{i}")
        assert path.name in str(error.value)
        assert_nothing_half_made(tmp_path / f"{i}")
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "fault"),
    [(name, fault) for name in sources.names() for fault in sources.generator(name).BROKEN],
)
def test_faults_are_named_and_nothing_half_made_is_left(name, fault, tmp_path):
    arguments, message = sources.generator(name).BROKEN[fault]
    written(name, tmp_path / "files", **arguments)
    with pytest.raises(DataError, match=message):
        prepared(name, tmp_path / "files", tmp_path / "root")
    assert_nothing_half_made(tmp_path / "root")


@pytest.mark.parametrize(
    "name", [name for name in sources.names() if "complete" in sources.generator(name).PARAMS]
)
def test_subset_is_not_taken_for_the_whole(name, tmp_path):
    written(name, tmp_path / "files")
    whole = make(name, complete=True)
    assert whole.size is None or whole.size > 0
    with Writer(tmp_path / "out") as writer, pytest.raises(DataError, match=r"expected|lacks"):
        whole.read(tmp_path / "files", writer)
        writer.finish({"name": name, "params": {}, "sources": []})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["cifar10", "cinic10"])
def test_full_disk_leaves_nothing_half_made(name, tmp_path, small_disk):
    """Both where space is reserved at once and where an array grows."""
    written(name, tmp_path / "files")
    supply = Supply(str(tmp_path / "files"))
    raw, filler = tmp_path / "raw", small_disk / "filler"
    filler.write_bytes(bytes(200_000))
    with pytest.raises(FedloomError, match=r"No space left|the disk is full"):
        data.prepare(make(name), name, raw, small_disk / "prepared", supply)
    assert [p.name for p in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    data.prepare(make(name), name, raw, small_disk / "prepared", supply)
    Prepared.open(small_disk / "prepared").verify()


def test_every_published_set_has_a_generator():
    own = {"digits", "digits-domains", "images", "synthetic", "table"}
    published = set(registry.names("data set")) - own
    assert published == set(sources.names())
    assert Path(sources.__file__).parent.name == "sources"
