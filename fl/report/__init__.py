"""The report of a study: one offline HTML page, and its tables in Markdown and LaTeX.

`load` and `curves` give the same numbers as data frames, for notebooks and scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.base import files
from fl.report import figures, latex, markdown, page
from fl.report.cells import Table
from fl.report.facts import Facts, gather
from fl.report.figures import Figure
from fl.report.frames import curves as curves
from fl.report.frames import load as load
from fl.report.outline import Section, blocks, outline


def build(
    study: str, results: Path, store: Path, plan: Mapping[str, Any] | None = None
) -> list[Path]:
    """Write ``results/report/<study>.html``, ``.md`` and ``.tex`` from the runs that are there.

    Every figure is an SVG and a PDF file in ``results/report/<study>/``. Missing and diverged runs
    are named. Incomplete tables of the study are made again first.

    Args:
        plan: The study's, if not the one in ``results/plan``.

    Returns:
        The three paths and that of the folder.

    Raises:
        DataError: For a study that is not planned or a file that cannot be read.
    """
    facts = gather(study, results, store, plan)
    sections = outline(facts)
    folder = results / "report"
    paths = []
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for end, text in texts(facts, sections).items():
            paths.append(folder / f"{study}{end}")
            files.write_bytes(paths[-1], text.encode())
        drawn = [block for block in blocks(sections) if isinstance(block, Figure)]
        figures.write(folder / study, drawn)
    return [*paths, folder / study]


def texts(facts: Facts, sections: Sequence[Section]) -> dict[str, str]:
    """The report in each of its forms, by the end of its file's name."""
    tables = [block for block in blocks(sections) if isinstance(block, Table)]
    return {
        ".html": page.html(facts, sections),
        ".md": markdown.document(facts, tables),
        ".tex": latex.document(facts, tables),
    }
