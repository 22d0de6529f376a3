"""Tables of the user's own: empty cells, spellings, indices, dates, separators."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_data import OWN, dataset, patients, prepared

from fl.base.errors import DataError
from fl.data.readers import tables
from fl.data.readers.spellings import check_spellings

WARD = {**OWN, "categorical": ["ward"]}


def thirds(*cells: Any) -> list[Any]:
    """Three values in turn, in 60 rows."""
    return [*cells] * (60 // len(cells))


@pytest.mark.parametrize("text", ["NA", "NaN", "nan", "NULL", "None", "?", "<NA>", "n/a", " NA "])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("column", ["diagnosis", "hospital", "ward"])
def test_a_text_for_a_missing_value_is_no_name(
    tmp_path: Path, text: str, suffix: str, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", 2)
    path = tmp_path / f"p{suffix}"
    cells = {"ward": thirds("a", "b", "c"), column: thirds("a", "b", text)}
    patients(path, **cells)
    message = rf"column '{column}', row 3: '{text.strip().replace('?', '.')}' means an empty cell"
    with pytest.raises(DataError, match=message):
        _ = dataset("table", path, **WARD).shape
    found = prepared(dataset("table", path, **WARD, missing="drop"), tmp_path)
    assert len(found.y) == 40
    assert found.notes[0].startswith("20 of 60 rows are left out") and "20 of" in found.notes[0]
    assert (found.x[:, 3:].sum(axis=1) == 1).all()


def test_an_empty_category_is_one_value_however_it_is_written(tmp_path: Path) -> None:
    ward = thirds("a", "", "NA", "?", None, "b")
    patients(tmp_path / "p.csv", ward=ward)
    made = dataset("table", tmp_path / "p.csv", **WARD, missing="category")
    assert made.survey.values["ward"] == ["", "a", "b"]


def test_an_image_table_refuses_a_missing_label(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("path,label\n1.png,a\n2.png,NA\n")
    with pytest.raises(DataError, match=r"column 'label', row 2: 'NA' means an empty cell"):
        _ = dataset("images", tmp_path / "t.csv").shape


@pytest.mark.parametrize("labels", [[0, 1, -1], ["well", "ill", "-1"], [1.0, 2.0, -999.0]])
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("missing", [None, "drop"])
@pytest.mark.parametrize("column", ["diagnosis", "hospital"])
def test_a_number_for_a_missing_label_is_no_class(
    tmp_path: Path,
    labels: list[Any],
    suffix: str,
    missing: str | None,
    column: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", 2)
    path = tmp_path / f"p{suffix}"
    patients(path, **{column: thirds(*labels)})
    code = str(labels[2]).removesuffix(".0" if suffix == ".parquet" else "")
    place = rf"p\{suffix}, column '{column}', row 3\. Allowed"
    with pytest.raises(DataError, match=rf"p\{suffix}: .*'{column}' has {code}, .*{place}"):
        _ = dataset("table", path, **OWN, missing=missing).shape


def test_two_numbers_are_two_classes_also_below_0(tmp_path: Path) -> None:
    patients(tmp_path / "p.csv", diagnosis=thirds(-1, 1), hospital=thirds(-1, 0))
    assert dataset("table", tmp_path / "p.csv", **OWN).survey.values["diagnosis"] == ["-1", "1"]


def test_a_target_or_a_category_may_be_below_0(tmp_path: Path) -> None:
    patients(tmp_path / "p.csv", diagnosis=thirds(-1, 0, 1), ward=thirds("a", "b", "-1"))
    keys = {"target": "diagnosis", "client": "hospital", "drop": ["name"], "categorical": ["ward"]}
    assert dataset("table", tmp_path / "p.csv", **keys).survey.values["ward"] == ["-1", "a", "b"]


@pytest.mark.parametrize("key", ["label", "client", "group"])
def test_an_image_table_refuses_a_number_for_a_missing_name(tmp_path: Path, key: str) -> None:
    cells = {"label": [*"ab"] * 3, "client": [*"cde"] * 2, "group": [*"fgh"] * 2}
    cells[key] = [cells[key][0], "-1", cells[key][2]] * 2
    files = [f"{n}.png" for n in range(6)]
    for file in files:
        (tmp_path / file).touch()
    pd.DataFrame({"path": files, **cells}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=rf"the {key} has -1, .*t\.csv, column '{key}', row 2"):
        _ = dataset("images", tmp_path / "t.csv", client="client", group="group").shape


SPELLINGS: dict[str, tuple[str, list[str], str]] = {
    "numbers": ("diagnosis", ["0", "0.0", "1", "1.0"], "'0' and '0.0', '1' and '1.0'"),
    "truths": ("diagnosis", ["True", "TRUE", "False"], "'TRUE' and 'True'"),
    "truths and numbers": ("diagnosis", ["True", "1", "0"], "'1' and 'True'"),
    "clients": ("hospital", ["North", "north", "south"], "'North' and 'north'"),
    "client numbers": ("hospital", ["01", "1", "2"], "'01' and '1'"),
    "categories": ("ward", ["a  b", "a b", "c"], "'a  b' and 'a b'"),
    "invisible characters": ("ward", ["ab", "a\u200bb", "c"], "'ab' and 'a\\u200bb'"),
    "characters": ("ward", ["\u00e9a", "e\u0301a", "c"], r"'e\u0301a' and '\xe9a'"),
}


@pytest.mark.parametrize("fault", SPELLINGS)
def test_one_value_in_two_spellings_is_refused_by_name(tmp_path: Path, fault: str) -> None:
    column, cells, message = SPELLINGS[fault]
    patients(tmp_path / "p.csv", **{"ward": thirds("a", "b", "c"), column: thirds(*cells)})
    with pytest.raises(DataError) as caught:
        _ = dataset("table", tmp_path / "p.csv", **WARD).shape
    assert f"one value in several spellings: {message}. Try: write the value" in str(caught.value)


def test_spellings_that_print_alike_are_shown_as_escapes() -> None:
    with pytest.raises(DataError, match="label") as caught:
        check_spellings("t.csv", "label", ["caf\u00e9", "cafe\u0301", "tea"])
    assert all(ascii(text) in str(caught.value) for text in ("caf\u00e9", "cafe\u0301"))


def test_a_column_is_found_by_what_it_prints_as(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with pytest.raises(DataError) as caught:
        tables.require_column(path, ["caf\u00e9", "tea"], "label", "cafe\u0301")
    assert r"did you mean 'caf\xe9'?" in str(caught.value)


def test_values_that_differ_in_more_than_spelling_are_different() -> None:
    check_spellings("t.csv", "label", ["10e1", "0100", "0e1", "0e2"])  # Hexadecimal ids.
    with pytest.raises(DataError, match=r"'1e\+02' and '100'"):
        check_spellings("t.csv", "label", ["1e+02", "100"])
    check_spellings("t.csv", "label", ["a", "A", "aZ3x", "Az3x", "1", "-1", "1e", "", "one"])


@pytest.mark.parametrize("place", ["index", "two indices", "Unnamed: 0"])
def test_an_index_that_pandas_stored_is_a_feature_only_where_a_key_names_it(
    tmp_path: Path, place: str
) -> None:
    path = tmp_path / ("p.csv" if place == "Unnamed: 0" else "p.parquet")
    table = patients(path)
    if place == "Unnamed: 0":
        table.to_csv(path)
        pd.read_csv(path).to_csv(path)
        pd.read_csv(path).to_csv(path, index=False)
    else:
        table["row_id"] = np.arange(60) % 5
        table["visit"] = np.arange(60) * 7
        index = ["row_id"] if place == "index" else ["row_id", "visit"]
        table.set_index(index).to_parquet(path)
    made = dataset("table", path, **OWN)
    assert {"row_id", "Unnamed: 0", "Unnamed: 0.1"}.isdisjoint(made.column_types)
    assert ("visit" in made.column_types) == (place == "index")
    if place == "two indices":
        made = dataset("table", path, label="diagnosis", client="row_id", drop=["name"])
        assert (made.natural_clients, made.shape) == (5, (4,))
        keys = {**OWN, "categorical": ["row_id"], "drop": ["name", "visit"]}
        made = dataset("table", path, **keys)
        assert made.shape == (8,)


@pytest.mark.parametrize("keys", [{}, {"dates": ["seen"]}])
@pytest.mark.parametrize(
    ("cell", "is_date"),
    [("01.01.2024", True), ("1/31/24", True), ("24-1-31 18:30", True), ("1.2-3", False)],
)
def test_how_to_write_a_date_is_told(
    tmp_path: Path, keys: dict[str, Any], cell: str, is_date: bool
) -> None:
    (tmp_path / "t.csv").write_text(f"seen,y\n{cell},a\n{cell},b\n")
    with pytest.raises(DataError) as caught:
        _ = dataset("table", tmp_path / "t.csv", label="y", **keys).shape
    hint = " (columns under `dates` have dates, written 2024-12-31)" if is_date else ""
    said = f"is no number{hint}. Try: correct the cells"
    if keys:
        said = "is no date. Allowed: year-month-day, such as 2024-12-31, from 1678 to 2261. Try"
    assert f"t.csv: column 'seen', row 1: {cell!r} {said}" in str(caught.value)


DATES: dict[str, tuple[Any, str]] = {
    "now": (["2024-02-29", "now"], "'now' is no date"),
    "today": (["2024-02-29", "today"], "'today' is no date"),
    "old": (["2024-02-29", "1601-01-01"], "'1601-01-01' is no date"),
    "old days": ([datetime.date(2024, 2, 29), datetime.date(1601, 1, 1)], "'1601-01-01T"),
    "far": (pa.array([0, 2**30], pa.date32()), "'2941775-04-07T"),
    "old times": (pa.array([0, -(10**13)], pa.timestamp("ms")), "'1653-02-10T"),
}


@pytest.mark.parametrize("fault", DATES)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_date_that_is_none_is_named_by_its_row(tmp_path: Path, fault: str, suffix: str) -> None:
    cells, message = DATES[fault]
    path = tmp_path / f"t{suffix}"
    table = pa.table({"seen": cells, "y": ["a", "b"]})
    if suffix == ".parquet":
        pq.write_table(table, path)
    elif fault in ("now", "today", "old"):
        table.to_pandas().to_csv(path, index=False)
    else:
        pytest.skip("as text, the same as another case")
    with pytest.raises(DataError) as caught:
        _ = dataset("table", path, label="y", dates=["seen"]).shape
    assert f"t{suffix}: column 'seen', row 2: {message}" in str(caught.value)
    allowed = "is no date. Allowed: year-month-day, such as 2024-12-31, from 1678 to 2261"
    assert allowed in str(caught.value)


def test_dates_of_every_type_of_parquet_are_days(tmp_path: Path) -> None:
    days = [datetime.date(1680, 1, 1), datetime.date(1970, 1, 2), None] * 20
    for kind in (pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("us", "UTC")):
        seen = pa.array(days, pa.date32()).cast(kind)
        pq.write_table(pa.table({"seen": seen, "y": ["a", "b", "a"] * 20}), tmp_path / "t.parquet")
        made = dataset("table", tmp_path / "t.parquet", label="y", dates=["seen"], missing="drop")
        [piece] = made.read_pieces(made.column_types)
        assert piece["seen"].tolist() == [-105920.0, 1.0] * 20, kind


def test_views_of_strings_are_texts(tmp_path: Path) -> None:
    views = pa.array(["a", "b"] * 30, pa.string_view())
    days = pa.array(["2024-02-29", "2024-03-01"] * 30, pa.string_view())
    pq.write_table(pa.table({"y": views, "who": views, "seen": days}), tmp_path / "t.parquet")
    made = dataset("table", tmp_path / "t.parquet", label="y", client="who", dates=["seen"])
    assert (made.shape, made.classes, made.natural_clients) == ((1,), 2, 2)


def test_a_folder_is_named_as_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r": is a folder. Allowed: a CSV file with a header, or P"):
        _ = dataset("table", tmp_path, label="y").shape


@pytest.mark.parametrize(("mark", "text"), [(";", '";"'), ("\t", r'"\\t"'), ("|", r'"\|"')])
@pytest.mark.parametrize("cell", ["1", "1,5"])
def test_another_separator_is_advised(tmp_path: Path, mark: str, text: str, cell: str) -> None:
    rows = [f"{cell}{mark}{n % 2}" for n in range(8)]
    (tmp_path / "t.csv").write_text("\n".join([f"age{mark}y", *rows]))
    with pytest.raises(DataError, match=rf"separates no columns .*Try: write `separator: {text}`"):
        _ = dataset("table", tmp_path / "t.csv", label="y").shape
    if cell == "1":
        assert dataset("table", tmp_path / "t.csv", label="y", separator=mark).shape == (1,)
    with pytest.raises(DataError, match=r", or commas in the file"):
        _ = dataset("images", tmp_path / "t.csv", label="y").shape


STRANGE_FILES: dict[str, tuple[bytes, str]] = {
    "gzip": (
        b"\x1f\x8b\x08",
        "is compressed by gzip.* Try: unpack it",
    ),
    "workbook": (b"PK\x03\x04", "is a ZIP archive, as Excel's workbooks are"),
    "parquet": (b"PAR1", r"is Parquet.* Try: give it the ending \.parquet"),
    "utf-16": ("a,y\n1,b\n".encode("utf-16"), "is text in UTF-16.* Try: save it as UTF-8"),
    "nul": (b"a,y\n1,b\n2,b\0\n", "line 3 has a NUL character"),
    "latin-1": (
        "a,y\n1,b\n2,\u00e4\n".encode("latin-1"),
        "line 3 .* no UTF-8, such as 0xe4.*UTF-8",
    ),
    "a row too long": (b"a,y\n1,b\n2,c,d\n", "fields in line 3.* Try: correct the file"),
    "an open quote": (b'a,y\n1,b\n"2,c\n', "inside string.* Try: correct the file"),
    "no name": (b"a,,y\n1,2,b\n3,4,c\n", "column 2 has no name in the header. Try: name it"),
    "no last name": (b"a,y,\n1,b,2\n3,c,4\n", "column 3 has no name in the header"),
    "a label of numbers": (b"a,y\n1,1.5\n2,2.5\n", "Try: `target: y` in place of `label`"),
    "cases": (b"a, Y\n1,b\n2,c\n", "no such column .did you mean ' Y'"),
    "blanks": (b"a, y\n1,b\n2,c\n", "no such column .did you mean ' y'"),
    "gaps": (
        b"a,y\n,b\n,c\n",
        "each of the 2 rows has an empty cell",
    ),
}


@pytest.mark.parametrize("kind", STRANGE_FILES)
def test_a_file_that_is_no_table_says_what_it_is(tmp_path: Path, kind: str) -> None:
    content, message = STRANGE_FILES[kind]
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        _ = dataset("table", tmp_path / "t.csv", label="y", missing="drop").shape


def test_a_column_without_any_value_has_no_mean(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,y\n1,,u\n2,,v\n1,,u\n2,,v\n")
    with pytest.raises(DataError, match=r"no row has a value of 'b'\. Try: name it"):
        _ = dataset("table", tmp_path / "t.csv", label="y", missing="mean").shape


def test_an_address_is_no_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist.* Try: download the file"):
        _ = dataset("table", "https://example.org/t.csv", label="y").shape
