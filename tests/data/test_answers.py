"""Features of a table that give the label or target away, which a note names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from own_data import dataset, prepared

from fl.data.datasets import table as table_module

ROWS = 120
NUMBERS = np.arange(ROWS)
KIND = np.array(["ant", "bee", "cow"])[NUMBERS % 3]
NOTE = (
    "the feature {!r} {} {!r}, so that nothing else need be learnt. Try: `drop: [{}]`, if it is "
    "not known beforehand"
)


def table(path: Path, **columns: Any) -> Path:
    size = np.random.default_rng(0).normal(size=ROWS)
    frame = {"size": size, "kind": KIND, "site": NUMBERS % 4, "number": NUMBERS, **columns}
    pd.DataFrame(frame).to_csv(path, index=False)
    return path


ANSWERS: dict[str, tuple[Any, list[str]]] = {
    "the number of the class": (np.array([7.5, 1.0, 3.0])[NUMBERS % 3], ["stands one to one for"]),
    "the class": (KIND, ["equals"]),
    "a class in other words": (np.char.add("x", KIND), ["stands one to one for"]),
    "two classes alike": (np.array(["1", "2", "2"])[NUMBERS % 3], []),
    "two values of a class": (np.where(NUMBERS == 119, "dog", KIND), []),
    "an exchange at the end": (np.where(NUMBERS == 119, "ant", KIND), []),
    "one value": (np.full(ROWS, "x"), []),
    "a value for each row": (NUMBERS + 0.5, []),
}


@pytest.mark.parametrize("column", ANSWERS)
@pytest.mark.parametrize("piece_rows", [7, 50_000])
def test_a_column_that_gives_the_class_away_is_named(
    tmp_path: Path,
    column: str,
    piece_rows: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The number of a row differs in all rows, and is no such column; nor is a client's."""
    monkeypatch.setattr("fl.data.readers.tables.PIECE_ROWS", piece_rows)
    table_module._survey.cache_clear()
    values, verbs = ANSWERS[column]
    path = table(tmp_path / "t.csv", copy=values, owner=KIND)
    keys = {"categorical": ["copy"]} if values.dtype.kind == "U" else {}
    made = dataset("table", path, label="kind", client="owner", **keys)
    expected = [NOTE.format("copy", verb, "kind", "copy") for verb in verbs]
    assert [*made.survey.notes] == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: {note}" for note in expected
    ]
    assert [*prepared(made, tmp_path).notes] == expected
    dropped = dataset("table", path, label="kind", client="owner", drop=["copy"])
    assert dropped.survey.notes == ()


def test_a_feature_that_equals_the_target_is_named(tmp_path: Path) -> None:
    """Columns of different numbers are one to one without telling each other."""
    target = np.random.default_rng(1).normal(size=ROWS)
    rounded = np.where(NUMBERS == 119, target + 1e-9, target)
    path = table(tmp_path / "t.csv", y=target, again=target, nearly=rounded)
    made = dataset("table", path, target="y", drop=["kind"])
    assert [*made.survey.notes] == [NOTE.format("again", "equals", "y", "again")]


def test_notes_stand_beside_that_on_rows_that_are_left_out(tmp_path: Path) -> None:
    gone = np.where(NUMBERS < 10, np.nan, NUMBERS % 5)
    path = table(tmp_path / "t.csv", gap=gone, copy=NUMBERS % 3)
    made = dataset("table", path, label="kind", missing="drop")
    note = NOTE.format("copy", "stands one to one for", "kind", "copy")
    left_out, *others = made.survey.notes
    assert left_out.startswith("10 of 120 rows are left out") and others == [note]
