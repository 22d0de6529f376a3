"""The contract of every reader of published files, on generated ones served over HTTP."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sources
from generated import WHERE, make, prepared, written

from fl.base import registry
from fl.base.errors import DataError, FedloomError
from fl.data import preparation
from fl.data.preparation import SourcePolicy
from fl.data.prepared import SPLIT_NAMES, Prepared, Writer

ALL = pytest.mark.parametrize("name", sources.names())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """``whole(name)``: the folder of a set's files, written once, and what must come out."""

    @cache
    def make_once(name):
        folder = tmp_path_factory.mktemp(name)
        return folder, written(name, folder)

    return make_once


def assert_nothing_half_made(root):
    assert sorted(p.name for p in root.iterdir() if p.name not in ("raw", "lock.json")) == []


@ALL
def test_values_come_out_as_they_went_in(name, whole, tmp_path):
    (files, made), dataset = whole(name), make(name)
    named = sorted(source.name for source in dataset.sources)
    assert sorted(path.name for path in files.iterdir()) == named
    data = prepared(name, files, tmp_path / "root")
    assert data.x.shape == (made.samples, *made.shape)
    assert made.shape == dataset.shape
    assert np.array_equal(data.y, made.y)
    assert data.classes == made.classes
    assert len(made.classes) == dataset.classes
    assert data.domains == made.domains == tuple(getattr(dataset, "domains", ()))
    for array in ("domain", "client", "block", "split"):
        expected = getattr(made, array)
        assert (expected is None) == (getattr(data, array) is None), array
        assert expected is None or np.array_equal(getattr(data, array), expected), array
    assert (data.client is not None) == (dataset.natural_clients is not None)
    there = set() if made.split is None else {SPLIT_NAMES[int(i)] for i in np.unique(made.split)}
    assert {*dataset.published_splits} == there
    assert made.x
    rows = {array: getattr(made, array) or {} for array in ("x", "mask", "text")}
    for array, known in {**rows, **(made.inputs or {})}.items():
        for row, expected in known.items():
            kept = data.inputs if array in data.inputs else vars(data)
            assert np.array_equal(kept[array][row], expected), f"{array} {row}"
    assert set(data.inputs) == set(made.inputs or {})
    kinds = getattr(dataset, "modalities", ())
    assert [data.array(kind.array).shape[1:] for kind in kinds] == [kind.shape for kind in kinds]
    data.verify()
    again = prepared(name, files, tmp_path / "again").folder
    for path in data.folder.iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


@ALL
def test_set_is_documented(name):
    entry = registry.find("data set", name, WHERE)
    text = entry.file.read_text()
    assert entry.citation
    assert "icence" in text
    assert not [s.name for s in make(name).sources if s.url is None and not s.note]


@ALL
def test_a_truncated_file_is_named_and_nothing_half_made_is_left(name, whole, tmp_path):
    files = shutil.copytree(whole(name)[0], tmp_path / "files")
    path = max(files.iterdir(), key=lambda path: path.stat().st_size)
    os.truncate(path, path.stat().st_size * 6 // 10)
    with pytest.raises(DataError) as error:
        prepared(name, files, tmp_path / "root")
    assert path.name in str(error.value)
    assert_nothing_half_made(tmp_path / "root")


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
def test_subset_is_not_taken_for_the_whole(name, whole, tmp_path):
    published = make(name, complete=True)
    assert published.size is None or published.size > 0
    with Writer(tmp_path / "out") as writer, pytest.raises(DataError, match=r"expected|lacks"):
        published.read(whole(name)[0], writer)
        writer.finish({"name": name, "params": {}, "sources": []})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["cifar10", "cinic10"])
def test_full_disk_leaves_nothing_half_made(name, whole, tmp_path, small_disk):
    """Both where space is reserved at once and where an array grows."""
    supply = SourcePolicy(str(whole(name)[0]))
    raw, filler = tmp_path / "raw", small_disk / "filler"
    filler.write_bytes(bytes(200_000))
    with pytest.raises(FedloomError, match=r"No space left|the disk is full"):
        preparation.prepare_folder(make(name), name, raw, small_disk / "prepared", supply)
    assert [p.name for p in small_disk.iterdir()] == ["filler"]
    filler.unlink()
    preparation.prepare_folder(make(name), name, raw, small_disk / "prepared", supply)
    Prepared.open(small_disk / "prepared").verify()


def test_every_published_set_has_a_generator():
    without_files = {"arrays", "digits", "digits-domains", "images", "leaf", "synthetic", "table"}
    published = set(registry.names("data set")) - without_files
    assert published == set(sources.names())
    assert Path(sources.__file__).parent.name == "sources"
