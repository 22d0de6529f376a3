"""Published numbers: every file has the columns that a plan reads, and no cell twice."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fl.base.errors import ConfigError, Location
from fl.plan import config
from fl.plan.expand import expand
from fl.plan.published_cells import published_cells
from fl.plan.published_tables import read_table

FOLDER = Path(__file__).parents[2] / "config" / "published"
COLUMNS = ["table", "row", "column", "value", "sd", "note"]


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


PAPERS = sorted(FOLDER.glob("*.csv"))


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.name)
def test_every_cell_is_there_once_and_is_a_number(path):
    found = cells(path)
    names = [(c["table"], c["row"], c["column"]) for c in found]
    assert found and len(set(names)) == len(names)
    for cell in found:
        assert all(cell[key].strip() == cell[key] != "" for key in COLUMNS[:4])
        assert math.isfinite(float(cell["value"])) and (not cell["sd"] or float(cell["sd"]) >= 0)


def test_the_tables_of_ditto_with_adaptive_constraints():
    found = cells(FOLDER / "ditto-mmd.csv")
    data = ["CIFAR-10 0.1", "CIFAR-10 0.5", "CIFAR-10 5.0", "Synthetic 0.0", "Synthetic 0.5"]
    data += ["Fed-ISIC2019", "RxRx1"]
    rows: dict[str, dict[str, dict[str, float]]] = {"1": {}, "2": {}, "3": {}}
    for cell in found:
        row = rows[cell["table"]].setdefault(cell["row"], {})
        row[cell["column"]] = float(cell["value"])
    assert {table: len(names) for table, names in rows.items()} == {"1": 5, "2": 6, "3": 18}
    assert all(list(row) == data for table in rows.values() for row in table.values())
    assert rows["1"]["FedAvg"] == rows["2"]["FedAvg"]
    assert rows["1"]["MK-MMD -1"]["Synthetic 0.0"] == 91.418
    assert rows["2"]["Ditto + MMD-D"]["Fed-ISIC2019"] == 72.226
    best = {"lr": {0.01, 0.001, 0.0001}, "lambda": {0.01, 0.1, 0.5, 1}, "mu": {0.01, 0.1, 1}}
    for name, row in rows["3"].items():
        assert set(row.values()) <= best[name.split(": ")[1]], name
    # The paper marks its best values, and they are.
    for table, skipped in (("1", ["FedAvg"]), ("2", [])):
        for column in data:
            marked = [c for c in found if (c["table"], c["column"]) == (table, column)]
            [name] = [c["row"] for c in marked if c["note"] == "best"]
            known = {n: row[column] for n, row in rows[table].items() if n not in skipped}
            assert name == max(known, key=known.__getitem__), (table, column)


UNSEEN = {
    ("fedfa.csv", "segmentation"): (28, "methods that ask for class labels; no study of Swin-T"),
    ("fedfa.csv", "components"): (4, "Swin-T on ProstateMRI has no study"),
    ("fedlgd.csv", "7 figure"): (2, "LPIPS is not measured"),
    ("fedprox.csv", "1"): (16, "sizes of data sets, no results"),
    ("fedsac.csv", "6"): (4, "seconds of parts of a round, which are not taken apart"),
}
"""By file and table, how many cells stand in no study, and why."""


def test_published_cells_stand_beside_a_value_of_a_study_or_a_reason_says_why_not():
    named = set()
    for path in sorted((FOLDER.parent / "studies").rglob("*.yaml")):
        draft = config.read_draft(FOLDER.parent, path.stem, Location("studies"))
        study = draft.study
        if study.published:
            expansion = expand(FOLDER.parent, path.stem, draft, checked=False)
            compared = published_cells(expansion, FOLDER.parent)
            named |= {
                tuple(cell[k] for k in ("source", "table", "row", "column")) for cell in compared
            }
        if study.best is not None:
            for rows in study.best.rows.values():
                named |= {
                    (study.best.source, study.best.table, r, study.best.column)
                    for r in rows.values()
                }
    lines = [(path.name, cell) for path in PAPERS for cell in cells(path)]
    every = {(name, cell["table"], cell["row"], cell["column"]) for name, cell in lines}
    assert named <= every and len(named) == len(every) - sum(n for n, _ in UNSEEN.values())
    absent = Counter((source, table) for source, table, *_ in every - named)
    assert absent == {key: count for key, (count, _) in UNSEEN.items()}


# What is wrong in a file is one message about its line


HEAD = "table,row,column,value,sd,note\n"
AT = Location("study.yaml", "published.0")


def table(folder: Path, content: str | bytes, name: str = "a.csv") -> dict[Any, Any]:
    path = folder / "published" / "a.csv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_table(folder, name, "1", AT)


def test_columns_may_stand_in_any_order_and_after_a_byte_order_mark(tmp_path):
    text = "\ufeffnote,table,row,column,value,sd,page\n,1,A,B,71.2,0.5,3\n\n,1,A,C,-1e-3,,\n"
    found = table(tmp_path, text)
    assert {key: cell.value for key, cell in found.items()} == {
        ("A", "B"): 71.2,
        ("A", "C"): -0.001,
    }


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the first line is ''. Allowed: table,row,column,value,sd,note"),
        (HEAD + "1,A,B\n", "line 2: has 3 fields. Allowed: 6"),
        (HEAD + "1,A,B,1,,\n1,A,B,2,,\n", "line 3: the cell 1 / A / B is a duplicate of line 2"),
        (HEAD + "1,A,,1,,\n", "line 2: is '1, A, '. Allowed: a table, a row, a column"),
        (HEAD + "1,A,B,n/a,,\n", "line 2.value: is 'n/a'. Allowed: a finite number"),
        (HEAD + "1,A,B,1_000,,\n", "line 2.value: is '1_000'"),
        (HEAD + "1,A,B,1,-1,\n", "line 2.sd: is '-1'. Allowed: a number >= 0, or nothing"),
        (HEAD + f"1,A,B,1,,{'x' * 200_000}\n", "line 2: is no CSV: field larger than"),
        ((HEAD + "1,Ä,B,1,,\n").encode("latin-1"), "cannot be read: 'utf-8' codec"),
    ],
)
def test_a_file_that_is_wrong(tmp_path, content, problem):
    with pytest.raises(ConfigError) as caught:
        table(tmp_path, content)
    message = str(caught.value)
    assert "published/a.csv: " in message and problem in message
    assert len(message) < 400


@pytest.mark.parametrize("name", ["b.csv", "b" * 300, "b\0.csv", "."])
def test_a_source_that_is_no_file(tmp_path, name):
    with pytest.raises(ConfigError, match=r"published\.0\.source: unknown file"):
        table(tmp_path, HEAD, name)
