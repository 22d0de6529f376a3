"""Settings are told apart by the plan's columns, never by texts: from a call to its page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fl
from fl.report.cells import Table
from fl.report.facts import Facts, gather
from fl.report.outline import blocks, outline

CALL: dict[str, Any] = {
    "model": {"mlp": {"hidden": [4]}},
    "methods": ["fedavg", "local"],
    "baseline": "fedavg",
    "rounds": 1,
    "progress": False,
}


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def facts_and_tables(result: fl.Result) -> tuple[Facts, dict[str, Table]]:
    facts = gather("notebook", Path("results"), Path("results/runs"), result.study)
    drawn = blocks(outline(facts))
    return facts, {block.name: block for block in drawn if isinstance(block, Table)}


def heads(table: Table) -> list[str]:
    return [column.name for column in table.columns][1:]


def means(table: Table, method: str) -> list[str]:
    [row] = [row for row in table.rows if row.head == method]
    return [cell.text.split(" ± ")[0] for cell in row.cells]


def percent(frame: pd.DataFrame, places: pd.Series) -> str:
    runs = frame[places].groupby("run")["value"].mean()
    return f"{100 * runs.mean():.1f}"


def test_titles_that_differ_in_their_last_digits_are_two_settings_of_two_draws_each() -> None:
    versions = [
        {"synthetic": {"clients": 3, "samples": n, "alpha": 1.0, "title": f"digits v{n - 30}"}}
        for n in (40, 41)
    ]
    dirichlet = {"clients": 3, "alpha": 0.5, "min_samples": 5, "seed": [0, 1]}
    result = fl.run(datasets=versions, partition={"dirichlet": dirichlet}, **CALL)
    assert len(result.study.runs) == 2 * 2 * 2
    facts, tables = facts_and_tables(result)
    assert heads(tables["draws"]) == heads(tables["differences"]) == ["digits v10", "digits v11"]
    each_draw = [f"digits v{n}\npartition seed {draw}" for n in (10, 11) for draw in (0, 1)]
    assert heads(tables["settings"]) == each_draw
    rows = facts.rows.query("metric == 'accuracy' and split == 'test' and method == 'fedavg'")
    rows = rows[rows["round"] == 1]
    expected = [percent(rows, rows["dataset"].str.contains(f"samples={n}")) for n in (40, 41)]
    assert means(tables["draws"], "FedAvg") == expected
    assert set(facts.claims["n"]) == {2} and set(facts.claims["unit"]) == {"draw"}
    page = result.report().read_text()
    assert ">digits v10<" in page and ">digits v11<" in page and ">digits v1<" not in page


def test_a_path_that_looks_like_a_seed_is_part_of_its_setting(tmp_path: Path) -> None:
    """Two folders ``runs, seed=3`` and ``runs, seed=4`` are no draws of one setting."""
    generator, tables = np.random.default_rng(0), []
    for number in (3, 4):
        folder = tmp_path / f"runs, seed={number}"
        folder.mkdir()
        frame = pd.DataFrame(generator.normal(size=(60, 2)), columns=["a", "b"])
        frame["y"] = (frame["a"] * (1 if number == 3 else -1) > 0).astype(int)
        frame.to_csv(folder / "a.csv", index=False)
        tables.append({"table": {"path": str(folder / "a.csv"), "label": "y"}})
    partition = {"homogeneous": {"clients": 3}}
    result = fl.run(datasets=tables, partition=partition, seeds=2, **CALL)
    facts, shown = facts_and_tables(result)
    assert facts.merged_draws is None, "there are seeds, and no draws"
    paths = [f"path={tmp_path / f'runs, seed={number}' / 'a.csv'}" for number in (3, 4)]
    assert heads(shown["settings"]) == paths
    assert [facts.short_name(setting) for setting in facts.settings] == paths
    assert set(facts.claims["unit"]) == {"seed"} and len(facts.claims) == 2
    rows = facts.rows.query("metric == 'accuracy' and split == 'test' and method == 'fedavg'")
    rows = rows[rows["round"] == 1]
    expected = [percent(rows, rows["dataset"].str.contains(f"seed={number}")) for number in (3, 4)]
    assert means(shown["settings"], "FedAvg") == expected
    page = result.report().read_text()
    assert all(f"runs, seed={number}" in page for number in (3, 4))
    markdown = Path("results/report/notebook.md").read_text()
    assert all(f"seed={number}/a.csv" in markdown for number in (3, 4))
