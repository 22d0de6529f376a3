"""Analyses that a study asks for: what a plan says of them, and where their results are.

::

    results/analyses/<id>/   table.parquet, figure-1.svg, .pdf and .page.svg, ..., analysis.json

``analysis.json`` is sealed and written last, so an analysis is complete or does not exist. The id
follows from the settled spec, the code and the runs, so an existing result is never out of date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base import identity
from fl.base.specs import ComponentSpec
from fl.plan.config import Execution

if TYPE_CHECKING:
    from fl.plan.components import Choice
    from fl.plan.expand import Expansion

RECORD, TABLE = "analysis.json", "table.parquet"
SVG, PDF, PAGE = ".svg", ".pdf", ".page.svg"
"""Endings of a figure's files: two for print, and one with the colours and type of the page."""
IDENTIFYING = ("run", "method", "dataset", "partition", "model", "seed")
"""Fields of the runs that an analysis reads that are part of its identity; titles are not."""


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


def planned_analyses(expansion: Expansion) -> list[PlannedAnalysis]:
    """Return the analyses of a study."""
    metric = expansion.study.metric
    assert metric is not None, "`fl.plan.expand` settles it"
    analyses: list[PlannedAnalysis] = []
    for choice in expansion.analyses:
        code = identity.root_code(identity.entry("analysis", choice.component.name))
        identifying = [[getattr(run, key) for key in IDENTIFYING] for run in expansion.runs]
        digest = identity.digest([choice.spec, code, metric, identifying])
        analyses.append(
            PlannedAnalysis(
                analysis=f"{choice.component.name}-{digest}",
                text=choice.text,
                title=choice.title,
                spec=choice.spec,
                code=code,
                execution=_execution(expansion, choice),
            )
        )
    return analyses


def _execution(expansion: Expansion, choice: Choice) -> Execution:
    """Execution of an analysis: the study's, by one process.

    Only an analysis that reads weights computes models, and so needs a GPU.
    """
    if getattr(choice.component.target, "weights", False):
        return replace(expansion.execution, processes=1)
    return replace(expansion.execution, processes=1, device="cpu", gpus=0)
