"""The report of a study: one offline HTML page, and its tables in Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.base import files
from fl.base.schema import COMPLETE, DIVERGED, MISSING
from fl.report import figure_files, page
from fl.report.analysis import load as load
from fl.report.cells import Table
from fl.report.facts import Facts, gather
from fl.report.latex import preamble, to_latex
from fl.report.outline import Section, blocks, outline
from fl.report.plain import markdown, to_markdown


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
        figure_files.write(folder / study, blocks(sections))
    return [*paths, folder / study]


def texts(facts: Facts, sections: Sequence[Section]) -> dict[str, str]:
    """The report in each of its forms, by the end of its file's name."""
    return {
        ".html": page.html(facts, sections),
        ".md": _markdown(facts, sections),
        ".tex": latex_tables(facts, sections),
    }


def _tables(sections: Sequence[Section]) -> list[Table]:
    """What stands beside the page: all tables except those of single clients."""
    return [b for b in blocks(sections) if isinstance(b, Table) and b.name != "holdings"]


def _status(facts: Facts) -> str:
    states = facts.runs["state"]
    counts = [f"{int((states == s).sum())} {s}" for s in (COMPLETE, DIVERGED, MISSING)]
    return f"{len(states)} runs: {', '.join(counts)}."


def _markdown(facts: Facts, sections: Sequence[Section]) -> str:
    parts = [f"# {markdown(facts.plan['title'])}\n"]
    if facts.plan.get("question"):
        parts.append(f"{markdown(facts.plan['question'])}\n")
    parts.append(f"{_status(facts)}\n")
    parts += [
        "".join(
            f"- {state}: {markdown(r['what'])}, {markdown(r['where'])}, seed {r['seed']}, "
            f"run `{r['id']}`\n"
            for r in runs
        )
        for state, runs in page.absent(facts).items()
        if runs
    ]
    parts += [to_markdown(table) for table in _tables(sections)]
    lacking = [one.trouble for one in facts.analyses if one.trouble]
    parts += ["".join(f"- analysis {markdown(line)}\n" for line in lacking)] if lacking else []
    parts.append(f"Plan {facts.plan['hash']}; `python -m fl report {facts.plan['study']}`\n")
    return "\n".join(parts)


def latex_tables(facts: Facts, sections: Sequence[Section]) -> str:
    """All tables in LaTeX, under a comment that says what they need."""
    study = facts.plan["study"]
    head = f"% {facts.plan['hash']}: python -m fl report {study}; needs {preamble()}\n"
    tables = [to_latex(table, f"{study}-{table.name}") for table in _tables(sections)]
    status = f"% {_status(facts)}\n"
    return "\n".join([head + status, *tables])
