"""Analyses that a study asks for: what a plan says of them, and where their results are.

::

    results/analyses/<id>/   table.parquet, figure-1.svg, .pdf and .page.svg, ..., analysis.json

``analysis.json`` is sealed and written last, so an analysis is complete or does not exist. The id
follows from the settled spec, the code and the runs, so an existing result is never out of date.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fl.base.specs import ComponentSpec
from fl.plan.config import Execution

RECORD, TABLE = "analysis.json", "table.parquet"
SVG, PDF, PAGE = ".svg", ".pdf", ".page.svg"
"""Endings of a figure's files: two for print, and one with the colours and type of the page."""


@dataclass(frozen=True)
class PlannedAnalysis:
    """An analysis of all runs of a study, as the plan of the study has it.

    Attributes:
        analysis: The analysis' id.
        text: The analysis as the study writes it.
        title: Name in reports; empty if the study gives none.
        spec: Name and settings.
        code: Version of its code.
        execution: How it is computed; no part of its identity.
    """

    analysis: str
    text: str
    title: str
    spec: ComponentSpec
    code: str
    execution: Execution


def folder_of(results: Path, analysis: str) -> Path:
    """Return the folder of an analysis."""
    return results / "analyses" / analysis


def exists(results: Path, analysis: str) -> bool:
    """Whether an analysis exists; its files are not checked."""
    return (folder_of(results, analysis) / RECORD).is_file()
