"""Published numbers: every file has the columns that a plan reads, and no cell twice."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "config" / "published"
COLUMNS = ["table", "row", "column", "value", "sd", "note"]


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.csv")), ids=lambda path: path.name)
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
