"""A study's results as files: its tables, and the numbers and curves shown by version control.

`fl.report.tables` writes ``tables/<study>.parquet`` and ``.runs.parquet``. From them are made
``metrics/<study>.json``, the means by setting and method, and ``plots/<study>.csv``, a line per
setting, method and round: plain enough for `dvc metrics` and `dvc plots`, and for `git diff`.
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
from fl.plan.study_plan import StudyPlan
from fl.report import over_rounds, summaries, tables

HEAD_CHARACTERS = 500
"""Length of the beginning of a report's page that contains its `stamp`."""

MeanByMethod = dict[str, float]


def paths(results: Path, study: str) -> list[Path]:
    """The files of a study: both tables, the metrics, the plot's data."""
    return [
        *(results / "tables" / f"{study}{end}" for end in (".parquet", ".runs.parquet")),
        results / "metrics" / f"{study}.json",
        results / "plots" / f"{study}.csv",
    ]


def write(plan: StudyPlan, store: Path, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Write all `paths` of a study from what ``store`` holds.

    Returns:
        Both tables as a reader of the files finds them.
    """
    contents = tables.encode(plan, store)
    # Not read from the disk, where another Snakemake may be about to make the same tables.
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
    """Write the figures and tables of a report into its folder; those of older reports go.

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


def page(results: Path, study: str) -> Path:
    """Return the page of a study's report."""
    return results / "report" / f"{study}.html"


def stamp(plan_hash: str, is_complete: bool) -> str:
    """Return the line of a report's page that says of which plan it is, and whether it is whole."""
    return f'<meta name="fedloom-plan" content="{plan_hash}{"" if is_complete else " incomplete"}">'


def page_problem(results: Path, study: str, plan_hash: str) -> str:
    """Return why a report's page must be made again: `out of date` or `incomplete`; else empty.

    Args:
        results: Folder of the results.
        study: Name of the study.
        plan_hash: Hash of the study's plan.
    """
    try:
        with page(results, study).open(encoding="utf-8", errors="replace") as file:
            head = file.read(HEAD_CHARACTERS)
    except OSError:
        return ""
    if stamp(plan_hash, is_complete=True) in head:
        return ""
    return "incomplete" if stamp(plan_hash, is_complete=False) in head else "out of date"


def read(plan: StudyPlan, store: Path, results: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables of a study as it is planned; incomplete ones are made again, but not written.

    Without a store, as in a copy, tables that lack runs are used as they are.
    """
    table_pair = read_current(plan, results, lacking=not store.is_dir())
    return table_pair or tables.collect(plan, store)


def read_current(
    plan: StudyPlan, results: Path, lacking: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame] | None:
    """Return both tables of a study if the files are readable and of the same plan, else None.

    Args:
        plan: The study's plan.
        results: Folder of the results.
        lacking: Whether tables that lack runs will do.
    """
    table_pair = paths(results, plan.study)[:2]
    stamps = {tables.read_plan_hash(path) for path in table_pair}
    if stamps != {(plan.hash, True)} and not (lacking and stamps == {(plan.hash, False)}):
        return None
    try:
        rows, runs = (pd.read_parquet(path, partitioning=None) for path in table_pair)
        return rows, runs
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        # Only their ends were looked at, which say whose they are: the rest may be damaged, and
        # another Snakemake may have removed them since, to make them anew.
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
    """CSV of `fl.report.over_rounds.over_seeds`, sorted by setting, method and round."""
    curves = over_rounds.over_seeds(rows, runs, metric)
    curves.insert(0, "setting", [_place(row) for row in curves.to_dict("records")])
    order = curves.sort_values(["setting", "method", "round"], kind="stable")
    return order.drop(columns=SETTING).to_csv(index=False, lineterminator="\n")


def _place(row: Mapping[Any, Any]) -> str:
    return " / ".join(str(row[key]) for key in SETTING)
