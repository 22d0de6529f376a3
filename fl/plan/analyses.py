"""Analyses that a study asks for: what a plan says of them, and where their results are.

::

    results/analyses/<id>/   table.parquet, figure-1.svg, .pdf and .page.svg, ..., analysis.json

``analysis.json`` is sealed and written last, so an analysis is complete or does not exist. The id
follows from the settled spec, the code and the runs, so an existing result is never out of date.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base import identity

if TYPE_CHECKING:
    from fl.plan.components import Choice
    from fl.plan.config import Execution
    from fl.plan.expand import Expansion


RECORD, TABLE = "analysis.json", "table.parquet"
SVG, PDF, PAGE = ".svg", ".pdf", ".page.svg"
"""Of each figure: for print, and with the colours and type of the page that it is put into."""
OF_A_RUN = ("run", "method", "dataset", "partition", "model", "seed")
"""What is part of an analysis' identity, of a run that it reads; titles are none."""


def folder_of(results: Path, analysis: str) -> Path:
    """The folder of an analysis."""
    return results / "analyses" / analysis


def exists(results: Path, analysis: str) -> bool:
    """Whether an analysis is made; its files are not checked."""
    return (folder_of(results, analysis) / RECORD).is_file()


def planned_analyses(
    expansion: Expansion, runs: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """What a plan says of each analysis of a study.

    Args:
        runs: The study's, as the plan has them.
    """
    study = expansion.study
    for choice in expansion.analyses:
        code = identity.code(identity.entry("analysis", choice.entry.name))
        read = [[run[key] for key in OF_A_RUN] for run in runs]
        digest = identity.digest([choice.spec, code, study.metric, read])
        yield {
            "analysis": f"{choice.entry.name}-{digest}",
            "text": choice.text,
            "title": choice.title,
            "spec": choice.spec,
            "code": code,
            "study": expansion.name,
            "metric": study.metric,
            "runs": list(runs),
            "bundles": sorted({run["bundle"] for run in runs}),
            "execution": asdict(_execution(expansion, choice)),
        }


def _execution(expansion: Expansion, choice: Choice) -> Execution:
    """How an analysis is computed, which is no part of its identity: as the study says, by one
    process.

    Only an analysis that reads weights computes models, and so needs a GPU.
    """
    if getattr(choice.entry.target, "weights", False):
        return replace(expansion.execution, processes=1)
    return replace(expansion.execution, processes=1, device="cpu", gpus=0)
