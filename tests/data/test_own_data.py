"""Data of the user's own, through the commands that users and jobs call: what is in it counts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from own_data import (
    HUGGING_FACE,
    OWN,
    READER,
    assembled,
    dataset,
    in_parquet,
    names,
    patients,
    photo,
    photos,
    prepared,
    rows,
    write,
)
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fl.base import files, hashes
from fl.base.errors import DataError
from fl.cli import main
from fl.data import partition_table
from fl.data.dataset import own_files_by_name
from fl.data.readers import image_lists, tables
from fl.plan import plan


def train(bundle: str) -> int:
    return main.main(["train", f"results/plan/bundles/{bundle}.json"])


def test_an_edit_of_the_file_renames_data_partition_and_runs(project: Path) -> None:
    before = names()
    (project / "own.csv").write_text(rows(-1))
    edited = names()
    assert all(not before[kind] & edited[kind] for kind in before)
    (project / "own.csv").write_text(rows(1))
    assert names() == before


def test_after_an_edit_everything_is_made_anew_from_the_new_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for sign in (1, -1):
        (project / "own.csv").write_text(rows(sign))
        assert main.main(["plan", "--write"]) == 0
        assert "1 run in 1 bundle; 1 to train" in capsys.readouterr().out
        [bundle] = names()["bundles"]
        assert train(bundle) == 0
        [dataset] = names()["datasets"]
        made.append(np.load(project / "data" / "prepared" / dataset / "x.npy"))
    assert np.array_equal(made[0][:, 1], -made[1][:, 1])
    assert len(list((project / "results" / "partitions").iterdir())) == 2
    assert not (project / "config" / "sources.lock.json").exists()


def test_a_job_that_was_planned_for_another_content_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["plan", "--write"]) == 0
    [dataset], [bundle] = names()["datasets"], names()["bundles"]
    (project / "own.csv").write_text(rows(-1))
    for command in (["download", dataset], ["prepare", dataset]):
        assert main.main(command) == 1
        assert (
            "own.csv: the file has changed since the study was planned" in capsys.readouterr().err
        )
    assert train(bundle) == 1


def test_a_run_that_is_planned_is_trained_where_the_file_is_not(project: Path) -> None:
    assert main.main(["plan", "--write"]) == 0
    [dataset], [bundle] = names()["datasets"], names()["bundles"]
    assert main.main(["prepare", dataset]) == 0
    (project / "own.csv").unlink()
    assert train(bundle) == 0


def changed_x(dataset: Path, partition: Path) -> Path:
    """The samples in reverse order."""
    np.save(dataset / "x.npy", np.load(dataset / "x.npy")[::-1])
    return dataset


def changed_scale(dataset: Path, partition: Path) -> Path:
    """Another normalisation, under a seal that fits."""
    record = files.read_sealed(dataset / "dataset.json")
    described = record.pop("files")
    record["normalisation"]["scale"] = 2.0
    files.write_described(dataset / "dataset.json", record, described)
    return dataset


def changed_clients(dataset: Path, partition: Path) -> Path:
    """Everybody holds what was the next one's."""
    table = partition_table.read(partition / "partition.parquet")
    table["client"] = np.roll(table["client"], 20)
    partition_table.write(table, partition / "partition.parquet")
    return partition


@pytest.mark.parametrize("change", [changed_x, changed_scale, changed_clients])
def test_data_that_changed_after_they_were_made_are_not_trained_on(
    project: Path, change: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["plan", "--write"]) == 0
    [bundle], [dataset], [partition] = (names()[k] for k in ("bundles", "datasets", "partitions"))
    assert train(bundle) == 0
    assert main.main(["store", "verify"]) == 0
    place = change(project / "data/prepared" / dataset, project / "results/partitions" / partition)
    capsys.readouterr()
    assert main.main(["store", "verify"]) == 1
    said = capsys.readouterr().out
    assert str(place.name) in said
    assert "1 run checked, 0 damaged" in said
    [run] = (project / "results" / "runs").glob("*/run.json")
    run.unlink()
    # A whole record with a fitting seal is another data set, which only the runs on it tell.
    assert train(bundle) == (0 if change is changed_scale else 1)


# What is remembered of a file


def test_a_file_is_hashed_again_only_when_it_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, known = tmp_path / "a.csv", hashes.ContentCache(tmp_path / "memory")
    path.write_text("1")
    monkeypatch.setattr(hashes, "SETTLING_SECONDS", 0.0)
    first = known.hash_of([path])
    with monkeypatch.context() as patch:
        patch.setattr(hashes, "content_hash", lambda _: pytest.fail("was read again"))
        assert known.hash_of([path]) == first
    of = path.stat()
    path.write_text("2")
    os.utime(path, ns=(of.st_atime_ns, of.st_mtime_ns))
    assert known.hash_of([path]) != first, "of the same size and modification time"


def test_a_file_that_has_just_changed_is_not_trusted(tmp_path: Path) -> None:
    path, known = tmp_path / "a.csv", hashes.ContentCache(tmp_path / "memory")
    path.write_text("1")
    known.hash_of([path])
    assert not (tmp_path / "memory").exists()


def test_a_folder_is_its_names_and_contents_wherever_it_lies(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "a.png").write_text("a")
    (folder / "cat" / "b.png").write_text("b")
    first = hashes.content_hash([folder])
    (folder / ".DS_Store").write_text("")
    folder.rename(tmp_path / "moved")
    folder = tmp_path / "moved"
    assert hashes.content_hash([folder]) == first
    (folder / "cat").rename(folder / "dog")
    assert hashes.content_hash([folder]) != first


# A table


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_comes_out_as_it_went_in(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", 7)
    split = np.array(["train", "test", "val"])[np.arange(60) % 7 % 3]
    table = patients(tmp_path / f"patients{suffix}", split=split)
    made = dataset("table", tmp_path / f"patients{suffix}", **OWN, split="split")
    assert (made.size, made.shape, made.classes, made.natural_clients) == (60, (3,), 2, 3)
    found = prepared(made, tmp_path)
    assert np.array_equal(found.x, table[["age", "height", "smokes"]].to_numpy(float))
    assert found.classes == ("ill", "well")
    assert np.array_equal(found.y, table["diagnosis"] == "well")
    assert found.client is not None
    assert np.array_equal(found.client, table["hospital"] - 8), "10 comes after 8 and 9"
    assert found.split is not None
    assert np.array_equal(found.split, pd.Series(split).map({"train": 0, "test": 1, "val": 2}))


TABLES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an empty cell": (
        {"height": [1.5] * 41 + [None] + [1.5] * 18},
        OWN,
        r"column 'height', row 42: an empty cell is no number",
    ),
    "a number that is too large": (
        {"height": [1.5] * 41 + [1e300] + [1.5] * 18},
        OWN,
        r"column 'height', row 42: '1e\+300' is no number from -3.4e\+38 to 3.4e\+38",
    ),
    "no label": ({}, {**OWN, "label": "dx"}, r"label is 'dx', .* there are: age, height, smokes"),
    "a row without label": (
        {"diagnosis": ["ill", "well", ""] * 20},
        OWN,
        r"column 'diagnosis', row 3: is empty",
    ),
    "one class": ({"diagnosis": ["ill"] * 60}, OWN, r"has one value only, 'ill'"),
    "a number to predict": (
        {"diagnosis": list(range(60))},
        OWN,
        r"'diagnosis' has 60 different values in 60 rows",
    ),
    "another split": (
        {"split": ["train", "dev"] * 30},
        {**OWN, "split": "split"},
        r"column 'split', row 2: is 'dev'. Allowed: train, test, val",
    ),
    "no separator": ({}, {**OWN, "separator": ""}, "cannot be read as a table"),
    "no feature": ({}, {**OWN, "drop": ["name", "age", "height", "smokes"]}, r"no column is left"),
}


@pytest.mark.parametrize("fault", TABLES)
def test_a_table_of_which_no_data_set_can_be_made_is_refused_by_column_and_row(
    tmp_path: Path, fault: str
) -> None:
    changed, keys, message = TABLES[fault]
    patients(tmp_path / "patients.csv", **changed)
    with pytest.raises(DataError, match=rf"patients\.csv: .*{message}"):
        _ = dataset("table", tmp_path / "patients.csv", **keys).shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as a table"),
        ("\na,y\n1,2\n", "0 columns in the header, 2 cells in the first row"),
        ("a,a,y\n1,2,3\n", "column 'a' occurs twice"),
        ("a,y\n1,2\n1,2,3\n", r"cannot be read as a table \(.*[Ee]xpected 2 fields in line 3"),
        ("a,y\n", "has no rows"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DataError, match=rf"t\.csv: .*{message}"):
        _ = dataset("table", path, label="y").shape


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_an_index_that_pandas_wrote_is_no_feature(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p{suffix}"
    table = patients(path).set_index(np.arange(60) * 7)
    table.to_csv(path) if suffix == ".csv" else table.to_parquet(path)
    made = dataset("table", path, **OWN)
    assert [*made.column_types] == ["age", "height", "smokes", "diagnosis", "hospital"]
    assert prepared(made, tmp_path).x.shape == (60, 3)


CELLS: dict[str, tuple[str, list[Any], str]] = {
    "labels above 2^53": ("diagnosis", [0.0, 1e19], r"'diagnosis', row 2: 1e\+19 is no class"),
    "labels of bytes": ("diagnosis", [b"a", b"b"], r"'diagnosis' is of type binary"),
    "texts": ("age", ["12"] * 2, r"'age' is of type (large_)?string. Allowed: numbers"),
    "lists": ("age", [[1, 2]] * 2, r"'age' is of type list"),
}


@pytest.mark.parametrize("kind", CELLS)
def test_cells_of_parquet_that_are_neither_classes_nor_numbers_are_refused(
    tmp_path: Path, kind: str
) -> None:
    column, cells, message = CELLS[kind]
    patients(tmp_path / "p.parquet", **{column: cells * 30})
    with pytest.raises(DataError, match=rf"p\.parquet: column {message}"):
        _ = dataset("table", tmp_path / "p.parquet", **OWN).shape


def test_numbers_and_truths_in_one_column_are_refused_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", 20)
    patients(tmp_path / "p.csv", age=["1"] * 40 + ["True"] * 20)
    with pytest.raises(DataError, match=r"p\.csv: column 'age': numbers and True .* from row 41"):
        _ = dataset("table", tmp_path / "p.csv", **OWN).shape


@pytest.mark.parametrize("name", ["table", "images"])
@pytest.mark.parametrize("place", ["x" * 300, "circle"])
def test_what_no_system_reads_is_named(
    project: Path, name: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "circle").symlink_to("circle")
    write(project, [{name: {"path": place, "label": "y"}}])
    assert main.main(["plan"]) == 1
    assert f"datasets.0.{name}: {place}: cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("lacking", ["size", "natural_clients"])
def test_a_class_that_lacks_what_a_data_set_has_is_refused(
    project: Path, lacking: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [reader] = project.glob("lab_*/datasets/measured.py")
    lines = READER.splitlines(keepends=True)
    reader.write_text("".join(line for line in lines if f"    {lacking}:" not in line))
    assert main.main(["plan"]) == 1
    assert f"data set measured: its class has no `{lacking}`" in capsys.readouterr().err


def test_classes_in_parquet_are_whole_numbers_in_order_of_their_values(tmp_path: Path) -> None:
    patients(tmp_path / "p.parquet", diagnosis=[2.0, 10.0, 1.0] * 20)
    found = prepared(dataset("table", tmp_path / "p.parquet", **OWN), tmp_path)
    assert found.classes == ("1", "2", "10")
    assert np.array_equal(found.y, [1, 2, 0] * 20)
    assert tables.sort_texts(["2", "1" * 5000]) == ["1" * 5000, "2"], "too long for a number"


def test_a_study_on_a_table_needs_a_config_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARD", str(project))
    patients(project / "patients.csv")
    entry = {"table": {"path": "$WARD/patients.csv", **OWN}}
    write(project, [entry], partitions=["natural"])
    assert main.main(["plan", "--write"]) == 0
    [bundle] = names()["bundles"]
    assert train(bundle) == 0
    assert len(list((project / "results" / "runs" / "").glob("*/run.json"))) == 1
    patients(project / "patients.csv", age=[3, "?"] * 30)
    capsys.readouterr()
    assert main.main(["plan"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: config/studies/tiny.yaml: datasets.0.table: ")
    assert "patients.csv: column 'age', row 2: '?' is no number" in error


def test_test_rows_do_not_decide_how_a_table_is_standardised(project: Path) -> None:
    seconds = np.arange(60) % 2 + 1e8
    seconds[45:] = 7e9
    split = np.where(np.arange(60) < 45, "train", "test")
    patients(project / "patients.csv", height=seconds, split=split)
    entry = {"table": {"path": "patients.csv", **OWN, "split": "split"}}
    write(project, [entry], partitions=[{"natural": {"test": "published", "unseen": 1}}])
    simulation, table = assembled()
    rows = table[(table["split"] == "train") & ~table["unseen"]]["sample"].to_numpy()
    x = simulation.arrays.inputs(torch.from_numpy(rows.copy())).numpy()
    assert x.dtype == np.float32
    assert np.allclose(x.mean(0), 0, atol=1e-6)
    assert np.allclose(x.std(0), 1, atol=1e-6)
    assert len(np.unique(x[:, 1])) == 2, "1e8 and 1e8 + 1 are two numbers"


# Columns that are no numbers, cells that are empty


def visits(path: Path) -> pd.DataFrame:
    """60 rows with a ward that no training row has, dates, and gaps in numbers and names."""
    day = pd.Timestamp("2024-02-27") + pd.to_timedelta(np.arange(60) * 12, unit="h")
    changed: dict[str, Any] = {
        "height": [None if i % 7 == 3 else 150.5 + i for i in range(60)],
        "ward": [("a", "b", None)[i % 3] if i < 45 else "c" for i in range(60)],
        "seen": [None if i == 5 else when for i, when in enumerate(day)],
        "split": ["train"] * 45 + ["test"] * 15,
    }
    return patients(path, **changed)


VISITS = {**OWN, "split": "split", "categorical": ["ward"], "dates": ["seen"]}


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("standardise", [True, False])
def test_means_in_place_of_empty_cells_are_those_of_training_rows_as_scikit_learn_has_them(
    project: Path, suffix: str, standardise: bool
) -> None:
    table = visits(project / f"visits{suffix}")
    keys = {**VISITS, "missing": "mean", "standardise": standardise}
    entry = {"table": {"path": f"visits{suffix}", **keys}}
    write(project, [entry], partitions=[{"natural": {"test": "published"}}])
    simulation, dealt = assembled()
    x = simulation.arrays.inputs(torch.arange(60)).numpy()
    names = table["ward"].fillna("")
    columns_ = [table["age"], table["height"], table["smokes"].astype(float)]
    columns_ += [names == value for value in ("", "a", "b", "c")]
    columns_ += [(table["seen"] - pd.Timestamp("1970-01-01")) / pd.Timedelta("1D")]
    # The ward stands after the columns of `patients`, the dates after it.
    raw = np.stack([column.to_numpy(float) for column in columns_], axis=1)
    rows = dealt[dealt["split"] == "train"]["sample"].to_numpy()
    steps = [SimpleImputer(), *([StandardScaler()] if standardise else [])]
    expected = make_pipeline(*steps).fit(raw[rows]).transform(raw)
    assert np.isnan(raw[rows]).any()
    assert np.allclose(x, expected, rtol=1e-6, atol=1e-5)
    assert (expected[rows, 6] == 0).all() and expected[-1, 6] == 1, "a ward of test rows alone"


def test_dates_are_days_and_rows_with_an_empty_cell_may_be_dropped(tmp_path: Path) -> None:
    text = "seen,age,y\n1970-01-02,1,a\n2024-02-29T12:00:00Z,2,b\n2024-03-01,NA,a\n"
    text += "1969-12-31 18:00+06:00,?,b\n2024-03-01,4,\n2024-03-01 06:00,5,a\n1970-01-01,6, b\n"
    (tmp_path / "t.csv").write_text(text)
    keys = {"label": "y", "dates": ["seen"], "missing": "drop"}
    found = prepared(dataset("table", tmp_path / "t.csv", **keys), tmp_path)
    leap = (pd.Timestamp("2024-02-29") - pd.Timestamp("1970-01-01")).days
    assert leap == 54 * 365 + 13 + 31 + 28, "13 leap years have passed, then January and February"
    expected = [[1.0, 1.0], [leap + 0.5, 2.0], [leap + 1.25, 5.0], [0.0, 6.0]]
    assert found.x.tolist() == expected
    assert found.y.tolist() == [0, 1, 0, 1], "blanks around a name do not count"


def test_all_columns_that_cannot_be_read_are_named_in_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", 7)
    visits(tmp_path / "v.csv")
    with pytest.raises(DataError) as caught:
        _ = dataset("table", tmp_path / "v.csv", label="diagnosis", split="hospital").shape
    for said in (
        "column 'height', row 4: an empty cell is no number",
        "column 'name', row 1: 'Ann' is no number",
        "column 'ward', row 1: 'a' is no number",
        "column 'seen', row 1: '2024-02-27 00:00:00' is no number",
        "column 'hospital', row 1: is '8'. Allowed: train, test, val",
        "`categorical`, `dates`, `text` or `drop`, or write the key `missing`",
    ):
        assert said in str(caught.value)
    pd.read_csv(tmp_path / "v.csv", parse_dates=["seen"]).to_parquet(tmp_path / "v.parquet")
    with pytest.raises(DataError) as caught:
        _ = dataset("table", tmp_path / "v.parquet", label="diagnosis").shape
    assert "column 'seen' is of type timestamp" in str(caught.value)
    assert "column 'height', row 4: an empty cell" in str(caught.value)


UNREAD: dict[str, tuple[dict[str, Any], str]] = {
    "mean of a label": (
        {"missing": "mean", "label": "ward", "categorical": ["diagnosis"]},
        "'ward', row 3: is empty.*`drop`, or write `missing: drop`, which leaves out rows",
    ),
    "no category": ({"missing": "category"}, "'height', row 4: an empty cell is no number"),
    "no date": ({"dates": ["ward"], "categorical": []}, "'ward', row 1: 'a' is no date"),
    "a label that is left out": ({"drop": ["diagnosis"]}, "'diagnosis' is named by 2 keys"),
    "two meanings": ({"dates": ["ward"]}, "column 'ward' is named by 2 keys"),
    "no column": (
        {"categorical": ["wards"]},
        r"no such column \(did you mean 'ward'\?\); there are: ",
    ),
    "a value for each row": (
        {"categorical": ["ward", "height"], "missing": "category", "drop": ["name", "seen"]}
        | {"dates": []},
        "column 'height' has 52 different values in 60 rows",
    ),
}


@pytest.mark.parametrize("fault", UNREAD)
def test_what_missing_and_kinds_of_columns_do_not_cover_is_refused(
    tmp_path: Path, fault: str
) -> None:
    changed, message = UNREAD[fault]
    visits(tmp_path / "v.csv")
    with pytest.raises(DataError, match=message):
        _ = dataset("table", tmp_path / "v.csv", **{**VISITS, **changed}).shape


# Images


@pytest.mark.parametrize(("mode", "colours"), [("L", 1), ("RGB", 3)])
def test_a_folder_of_classes_comes_out_as_it_went_in(
    tmp_path: Path, mode: str, colours: int
) -> None:
    expected = np.array(photos(tmp_path / "photos", mode)).reshape(6, 6, 5, colours)
    (tmp_path / "photos" / ".DS_Store").write_text("left by a program")
    (tmp_path / "photos" / "cat" / "notes.txt").write_text("of the photographer's")
    (tmp_path / "photos" / "notes.parquet").write_text("beside images")
    made = dataset("images", tmp_path / "photos")
    assert (made.size, made.shape, made.classes) == (6, (colours, 6, 5), 2)
    assert made.natural_clients is None
    found = prepared(made, tmp_path)
    assert np.array_equal(found.x, expected.transpose(0, 3, 1, 2))
    assert np.array_equal(found.y, [0, 0, 0, 1, 1, 1])
    assert found.classes == ("cat", "dog")


def test_folders_named_as_splits_are_the_published_split(tmp_path: Path) -> None:
    for name in ("Train", "VALIDATION", "Test"):
        photos(tmp_path / "photos" / name)
    made = prepared(dataset("images", tmp_path / "photos"), tmp_path)
    assert made.classes == ("cat", "dog")
    assert made.split is not None
    assert np.array_equal(made.split, np.repeat([0, 1, 2], 6))


@pytest.mark.parametrize("names", [("train", "dev"), ("valid", "test"), ("train", "val", "valid")])
def test_folders_of_which_some_are_splits_are_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        photos(tmp_path / "photos" / name)
    with pytest.raises(DataError, match=r"photos: has the folders .*. Allowed: .* train"):
        _ = dataset("images", tmp_path / "photos").shape


def test_a_table_says_what_images_show_and_whose_they_are(tmp_path: Path) -> None:
    expected = photos(tmp_path / "scans")
    rows = "file,dx,site\nscans/dog/1.png,ill,b\nscans/cat/1.png,well,a\nscans/cat/2.png,well,b\n"
    (tmp_path / "scans.csv").write_text(rows + "scans/dog/2.bmp,ill,a\n")
    keys = {"image": "file", "label": "dx", "client": "site"}
    made = dataset("images", tmp_path / "scans.csv", **keys)
    assert (made.size, made.shape, made.classes, made.natural_clients) == (4, (1, 6, 5), 2, 2)
    found = prepared(made, tmp_path)
    assert np.array_equal(found.x[:, 0], [expected[3], expected[0], expected[1], expected[4]])
    assert np.array_equal(found.y, [0, 1, 1, 0])
    assert found.client is not None
    assert np.array_equal(found.client, [1, 0, 1, 0])
    before = {n: hashes.content_hash(files) for n, files in own_files_by_name(made, None).items()}
    photo(tmp_path / "scans" / "dog" / "3.tif", 1)
    assert {
        n: hashes.content_hash(files) for n, files in own_files_by_name(made, None).items()
    } == before
    photo(tmp_path / "scans" / "dog" / "2.bmp", 1)
    assert {
        n: hashes.content_hash(files) for n, files in own_files_by_name(made, None).items()
    } != before


def test_images_of_different_sizes_and_kinds_are_brought_to_one(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    photo(tmp_path / "photos" / "dog" / "9.png", 7, (8, 9), "RGB")
    with pytest.raises(DataError, match=r"9\.png: has 8 x 9 pixels, but .*1\.png has 6 x 5.*pixel"):
        _ = dataset("images", tmp_path / "photos").shape
    made = dataset("images", tmp_path / "photos", pixels=4)
    assert made.shape == (3, 4, 4)
    found = prepared(made, tmp_path)
    grey, colour = found.x[0], found.x[6]
    assert np.array_equal(grey[0], grey[1])
    assert not np.array_equal(colour[0], colour[1])


PICTURES: dict[str, tuple[str, bytes | None, str]] = {
    "no folders": ("", None, r"photos: has no folders. Allowed: a folder for each class"),
    "an image of no class": ("9.png", b"?", r"9\.png: the image is in no folder of a class"),
    "an empty class": (
        "fox/a.txt",
        b"",
        r"fox: contains no image. Allowed: images, files that end in \.bmp",
    ),
    "no picture": ("dog/9.png", b"?", r"dog/9\.png: cannot be read as an image"),
}


@pytest.mark.parametrize("fault", PICTURES)
def test_a_folder_of_which_no_data_set_can_be_made_is_refused(tmp_path: Path, fault: str) -> None:
    name, content, message = PICTURES[fault]
    (tmp_path / "photos").mkdir()
    if content is not None:
        photos(tmp_path / "photos")
        (tmp_path / "photos" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        _ = dataset("images", tmp_path / "photos").shape


def test_images_that_a_table_names_wrongly_are_refused_by_row(tmp_path: Path) -> None:
    photos(tmp_path)
    twice = "occurs twice"
    wrong = [("cat/9.png", "does not exist"), ("cat/1.png", twice), ("dog/../cat/1.png", twice)]
    for row, message in wrong:
        (tmp_path / "t.csv").write_text(
            f"path,label\ncat/1.png,a\n{row},b\ndog/1.png,a\ncat/2.png,b"
        )
        with pytest.raises(DataError, match=rf"t\.csv: column 'path', row 2: .*{row} {message}"):
            _ = dataset("images", tmp_path / "t.csv").shape
    with pytest.raises(DataError, match=r"client is 'site', but there is no such column"):
        _ = dataset("images", tmp_path / "t.csv", client="site").shape
    with pytest.raises(DataError, match=r"none: the file does not exist.*or a folder of images"):
        _ = dataset("images", tmp_path / "none").shape
    with pytest.raises(DataError, match=r"none: the file does not exist. .*, or Parquet$"):
        _ = dataset("table", tmp_path / "none", label="y").shape


def test_a_picture_that_its_reader_chokes_on_is_named(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    text = PngInfo()
    text.add_text("a", "x" * 100_000_000, zip=True)
    Image.fromarray(np.zeros((6, 5), np.uint8)).save(tmp_path / "photos/dog/9.png", pnginfo=text)
    with pytest.raises(DataError, match=r"9\.png: cannot be read as an image"):
        _ = prepared(dataset("images", tmp_path / "photos"), tmp_path)


def test_a_picture_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    exif = Image.Exif()
    exif[0x0112] = 6  # To the right.
    for path in sorted((tmp_path / "photos").rglob("*.*")):
        with Image.open(path) as image:
            image.save(path.with_suffix(".jpg"), exif=exif, quality=100)
        path.unlink()
    made = dataset("images", tmp_path / "photos")
    assert made.shape == (1, 5, 6)
    x = prepared(made, tmp_path).x[0, 0].astype(int)
    assert (np.diff(x[:, 0]) > 0).all(), "it gets lighter downwards"


def test_links_to_folders_are_followed_and_no_image_counts_twice(tmp_path: Path) -> None:
    photos(tmp_path / "photos")
    photos(tmp_path / "elsewhere")
    link = tmp_path / "photos" / "dog" / "more"
    link.symlink_to(tmp_path / "elsewhere" / "cat")
    made = dataset("images", tmp_path / "photos")
    assert made.size == 9
    before = hashes.content_hash(made.files)
    photo(tmp_path / "elsewhere" / "cat" / "1.png", 99)
    assert hashes.content_hash(made.files) != before
    for place in ("photos", "photos/cat"):
        link.unlink()
        link.symlink_to(tmp_path / place)
        with pytest.raises(DataError, match=r"1\.png: a link adds the image to .*photos a second"):
            _ = dataset("images", tmp_path / "photos").shape


def test_a_table_may_name_images_by_their_whole_paths(tmp_path: Path) -> None:
    expected = photos(tmp_path / "scans")
    names = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.bmp"]
    (tmp_path / "tables").mkdir()
    rows = "".join(f"{tmp_path}/scans/{name},{name[0]}\n" for name in names)
    (tmp_path / "tables" / "t.csv").write_text(f"path,label\n{rows}")
    made = dataset("images", tmp_path / "tables" / "t.csv")
    assert np.array_equal(prepared(made, tmp_path).x[:, 0], [expected[i] for i in (0, 1, 3, 4)])


def test_test_images_do_not_decide_how_images_are_normalised(project: Path) -> None:
    for n in range(30):
        photo(project / "photos" / "train" / f"{'cd'[n % 2]}" / f"{n}.png", n, mode="RGB")
    for n in range(6):
        photo(project / "photos" / "test" / f"{'cd'[n % 2]}" / f"{n}.png", 200, mode="RGB")
    scheme = {"homogeneous": {"clients": 2, "test": "published"}}
    write(project, [{"images": {"path": "photos"}}], partitions=[scheme])
    simulation, table = assembled()
    rows = table[table["split"] == "train"]["sample"].to_numpy()
    x = simulation.arrays.inputs(torch.from_numpy(rows.copy())).numpy()
    assert np.allclose(x.mean((0, 2, 3)), 0, atol=1e-6)
    assert np.allclose(x.std((0, 2, 3)), [1, 1, 0], atol=1e-6), "the third colour never changes"


def test_a_study_on_a_folder_of_images_notices_a_new_one(project: Path) -> None:
    photos(project / "photos")
    for n in range(4, 12):
        photo(project / "photos" / "cat" / f"{n}.png", n)
        photo(project / "photos" / "dog" / f"{n}.png", n)
    entry = {"images": {"path": "photos"}}
    write(project, [entry], partitions=[{"homogeneous": {"clients": 2}}])
    first = plan.read_index(Path("config"))
    [bundle] = first.bundles
    assert train(bundle) == 0
    photo(project / "photos" / "cat" / "99.png", 99)
    assert bundle not in plan.read_index(Path("config")).bundles


# Images in Parquet


def test_a_file_that_hugging_face_wrote_comes_out_as_it_went_in(tmp_path: Path) -> None:
    made = dataset("images", HUGGING_FACE, image="image")
    assert (made.size, made.shape, made.classes, made.natural_clients) == (6, (1, 4, 5), 2, None)
    assert made.files == [HUGGING_FACE]
    found = prepared(made, tmp_path)
    assert found.classes == ("zebra", "ant"), "in the order of the file's names"
    assert found.y.tolist() == [0, 1] * 3
    assert np.array_equal(found.x[:, 0], np.arange(6)[:, None, None] * np.ones((4, 5)))


@pytest.mark.parametrize(
    "place", ["{}-00000-of-00001.parquet", "{}.parquet", "{}/0000.parquet"], ids=str
)
def test_files_of_hugging_face_are_the_published_split(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_lists, "PARQUET_BATCH", 2)
    folder = tmp_path / "data"
    in_parquet(folder / place.format("train"), [0, 1, 1, 0, 1], who=[*"aabbc"])
    in_parquet(folder / place.format("validation"), [1, 0], who=[*"cc"])
    in_parquet(folder / place.format("test"), [1, 0, 0], who=[*"dda"])
    found = prepared(dataset("images", folder, image="image", client="who"), tmp_path)
    assert found.split is not None and found.client is not None
    by_split = {0: ([0, 1, 1, 0, 1], "aabbc"), 1: ([1, 0, 0], "dda"), 2: ([1, 0], "cc")}
    for split, (labels, who) in by_split.items():
        rows = found.split == split
        assert found.y[rows].tolist() == labels
        assert found.client[rows].tolist() == ["abcd".index(name) for name in who]
        assert found.x[rows, 0, 0, 0].tolist() == [*range(len(labels))]


def test_parquet_without_pictures_or_with_labels_of_no_class_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    in_parquet(path, [0, 1, -1, 0])
    with pytest.raises(DataError, match=r"t\.parquet: has the label -1, .* 0 to 1"):
        _ = dataset("images", path, image="image").shape
    gone: list[Any] = [{"bytes": None, "path": "cat.png"}] * 4
    in_parquet(path, [0, 1, 1, 0], image=gone)
    with pytest.raises(DataError, match=r"t\.parquet: row 1: the cell contains no image"):
        _ = dataset("images", path, image="image").shape
    in_parquet(path, [0, 1, 1, 0], image=[{"bytes": b"?", "path": None}] * 4)
    with pytest.raises(DataError, match=r"t\.parquet: row 1: cannot be read as an image"):
        _ = dataset("images", path, image="image").shape
    with pytest.raises(DataError, match=r"images are in 'image'. Try: `image: image`"):
        _ = dataset("images", path).shape
    folder = tmp_path / "data"
    in_parquet(folder / "train.parquet", [0, 1, 1, 0])
    in_parquet(folder / "dev.parquet", [0, 1, 1, 0])
    with pytest.raises(DataError, match=r"dev\.parquet: the file name does not say the split"):
        _ = dataset("images", folder, image="image").shape
    (folder / "dev.parquet").unlink()
    with pytest.raises(DataError, match=r"column 'label' contains no images"):
        _ = dataset("images", folder, image="label").shape


def test_a_study_on_images_in_parquet_needs_a_config_alone(project: Path) -> None:
    in_parquet(project / "ants" / "train-00000-of-00001.parquet", [0, 1, 1, 0, 0, 1])
    in_parquet(project / "ants" / "test-00000-of-00001.parquet", [0, 1])
    entry = {"images": {"path": "ants", "image": "image"}}
    write(project, [entry], partitions=[{"homogeneous": {"clients": 1, "test": "published"}}])
    simulation, _ = assembled()
    assert simulation.classes == 2
    [bundle] = names()["bundles"]
    assert train(bundle) == 0
