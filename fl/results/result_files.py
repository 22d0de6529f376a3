"""A study's results as files: its tables, and the numbers and curves shown by version control.

`fl.results.tables` writes ``tables/<study>.parquet`` and ``.runs.parquet``. From them are made
``metrics/<study>.json``, the summary by setting and method, and ``plots/<study>.csv``, a line per
setting, method and round: plain enough for `dvc metrics` and `dvc plots`, and for `git diff`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fl import files
from fl.results import derived, tables
from fl.results.tables import SETTING

SHOWN = ("mean", "sd_seeds", "sd_clients", "worst", "n_seeds", "n_diverged", "n_missing")
GRID = ("n_points", "n_points_there")
"""What the metrics say of a method, see `fl.results.tables.summarise`; of its grid only if it has
one.
"""


def paths(results: Path, study: str) -> list[Path]:
    """The files of a study: both tables, the metrics, the plot's data."""
    return [
        *(results / "tables" / f"{study}{end}" for end in (".parquet", ".runs.parquet")),
        results / "metrics" / f"{study}.json",
        results / "plots" / f"{study}.csv",
    ]


def write(plan: Mapping[str, Any], store: Path, results: Path) -> list[Path]:
    """Write all `paths` of a study from what ``store`` holds."""
    *_, metrics, plot = written = paths(results, plan["study"])
    with files.disk_errors(results):
        for path in (metrics, plot):
            # Gone first: numbers of another plan never stand beside tables of this one.
            path.unlink(missing_ok=True)
        both = tables.write(plan, store, results / "tables")
        rows, runs = (pd.read_parquet(path, partitioning=None) for path in both)
        for path in (metrics, plot):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(metrics, _metrics(rows, runs, plan["metric"]))
        files.write_bytes(plot, _curves(rows, runs, plan["metric"]).encode())
    return written


def read(plan: Mapping[str, Any], store: Path, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables of a study as it is planned; incomplete ones are made again, but not written.

    Without a store, as in a copy, tables that lack runs are used as they are.
    """
    both = paths(results, plan["study"])[:2]
    stamps = {tables.read_plan_hash(path) for path in both}
    full = {(plan["hash"], True)}
    if stamps == full or (stamps == {(plan["hash"], False)} and not store.is_dir()):
        rows, runs = (pd.read_parquet(path, partitioning=None) for path in both)
        return rows, runs
    return tables.collect(plan, store)


def _metrics(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> dict[str, Any]:
    """``{setting: {method: {mean: 0.96, ...}}}``, without means of nothing."""
    found: dict[str, Any] = {}
    for row in tables.summarise(rows, runs, metric).to_dict("records"):
        shown = (*SHOWN, *GRID) if row["n_points"] > 1 else SHOWN
        told = {key: row[key] for key in shown if pd.notna(row[key])}
        found.setdefault(_place(row), {})[row["method"]] = told
    return found


def _curves(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> str:
    """CSV of `fl.results.derived.curves`, sorted by setting, method and round."""
    curves = derived.curves(rows, runs, metric)
    curves.insert(0, "setting", [_place(row) for row in curves.to_dict("records")])
    order = curves.sort_values(["setting", "method", "round"], kind="stable")
    return order.drop(columns=SETTING).to_csv(index=False, lineterminator="\n")


def _place(row: Mapping[Any, Any]) -> str:
    return " / ".join(str(row[key]) for key in SETTING)
