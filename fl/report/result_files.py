"""A study's results as files: its tables, and the numbers and curves shown by version control.

``tables/<study>.parquet`` and ``.runs.parquet`` are the tables of `fl.report.tables`.
``metrics/<study>.json`` has the means by setting and method, and ``plots/<study>.csv`` a line per
setting, method and round, as texts for `dvc metrics`, `dvc plots` and `git diff`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from fl.base import files
from fl.base.schema import SETTING
from fl.plan.result_paths import paths
from fl.plan.study_plan import StudyPlan
from fl.report import summaries, tables

MeanByMethod = dict[str, float]


def write(plan: StudyPlan, store: Path, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write all `fl.plan.result_paths.paths` of a study from the runs in a store.

    Returns:
        Both tables, as they are read from the files.
    """
    contents = tables.encode(plan, store)
    # Not read from the disk, where another Snakemake may write the same tables.
    rows, runs = (pd.read_parquet(io.BytesIO(content)) for content in contents)
    table, runs_table, metrics, plot = paths(results, plan.study)
    with files.disk_errors(results):
        for path in (table, metrics, plot):
            path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(metrics, _metrics(rows, runs, plan.metric))
        files.write_bytes(plot, _curves(rows, runs, plan.metric).encode())
        # The long table comes last: if it is of this plan, so are the other files.
        files.write_bytes(runs_table, contents[1])
        files.write_bytes(table, contents[0])
    return rows, runs


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write the figures and tables of a report into its folder; files of older reports are removed.

    Args:
        folder: The folder.
        contents: Content of each file, by its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        files.write_bytes(folder / name, content)
    for path in folder.iterdir():
        if path.suffix in (".pdf", ".svg", ".tex") and path.name not in contents:
            path.unlink()


def read(plan: StudyPlan, store: Path, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return both tables of a study; incomplete ones are made again, but not written.

    Without a store, as in a copy of results, tables without some runs are used as they are.
    """
    table_pair = read_current(plan, results, allow_incomplete=not store.is_dir())
    return table_pair or tables.collect(plan, store)


def read_current(
    plan: StudyPlan, results: Path, allow_incomplete: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return both tables of a study if the files are readable and of the same plan, else None.

    Args:
        plan: The study's plan.
        results: Folder of the results.
        allow_incomplete: Whether tables without some of the runs are read, too.
    """
    table_pair = paths(results, plan.study)[:2]
    stamps = {tables.read_plan_hash(path) for path in table_pair}
    is_incomplete = stamps == {(plan.hash, False)}
    if stamps != {(plan.hash, True)} and not (allow_incomplete and is_incomplete):
        return None
    try:
        rows, runs = (pd.read_parquet(path, partitioning=None) for path in table_pair)
        if "simulated_before" not in runs:  # Tables of earlier versions.
            first = runs["rounds_before"].fillna(-1) == 0
            runs["simulated_before"] = first.map({True: 0.0}).astype("float64")
        return rows, runs
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        # Only the ends of the files were read before: the rest may be damaged, or another
        # Snakemake may have removed the files to make them again.
        return None


def _metrics(
    rows: pd.DataFrame, runs: pd.DataFrame, metric: str
) -> MeanByMethod | dict[str, MeanByMethod]:
    """Return ``{method: 0.96}``, or ``{setting: {method: 0.96}}`` for several settings.

    A setting is named by the keys in which settings differ; methods without a mean are left out.
    """
    summary = summaries.summarise(rows, runs, metric)
    distinct_keys = [key for key in SETTING if summary[key].nunique() > 1]
    by_setting: dict[str, MeanByMethod] = {}
    for row in summary[summary["mean"].notna()].to_dict("records"):
        place = " / ".join(str(row[key]) for key in distinct_keys)
        by_setting.setdefault(place, {})[row["method"]] = row["mean"]
    return by_setting if distinct_keys else by_setting.get("", {})


def _curves(rows: pd.DataFrame, runs: pd.DataFrame, metric: str) -> str:
    """Return `fl.report.summaries.mean_curves` as CSV, sorted by setting, method and round."""
    curves = summaries.mean_curves(rows, runs, metric)
    curves.insert(0, "setting", [_place(row) for row in curves.to_dict("records")])
    order = curves.sort_values(["setting", "method", "round"], kind="stable")
    return order.drop(columns=SETTING).to_csv(index=False, lineterminator="\n")


def _place(row: Mapping[Any, Any]) -> str:
    return " / ".join(str(row[key]) for key in SETTING)
