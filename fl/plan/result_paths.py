"""Paths of a study's tables and report, and the plan of a report, for what starts without pandas.

`fl.report.result_files` says what is in the tables.
"""

from __future__ import annotations

from pathlib import Path

HEAD_CHARACTERS = 500
"""Length of the beginning of a report's page that contains its `stamp`."""


def paths(results: Path, study: str) -> list[Path]:
    """Return the files of a study: both tables, the metrics, the data of plots."""
    return [
        *(results / "tables" / f"{study}{end}" for end in (".parquet", ".runs.parquet")),
        results / "metrics" / f"{study}.json",
        results / "plots" / f"{study}.csv",
    ]


def report_folder(results: Path) -> Path:
    """Return the folder of the reports."""
    return results / "report"


def page(results: Path, study: str) -> Path:
    """Return the page of a study's report."""
    return report_folder(results) / f"{study}.html"


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
