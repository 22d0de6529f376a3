"""The report of a study: one offline HTML page, and its tables in Markdown and LaTeX.

`load` and `curves` give the same numbers as data frames, for notebooks and scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.base import files
from fl.base.schema import COMPLETE, DIVERGED, MISSING
from fl.report import figures, page
from fl.report.cells import Table
from fl.report.facts import Facts, gather
from fl.report.figures import Figure
from fl.report.frames import curves as curves
from fl.report.frames import load as load
from fl.report.latex import FITTED, PREAMBLE, to_latex
from fl.report.markdown import markdown, to_markdown
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
    return {
        ".html": page.html(facts, sections),
        ".md": _markdown(facts, sections),
        ".tex": _latex(facts, sections),
    }


def _tables(sections: Sequence[Section]) -> list[Table]:
    return [block for block in blocks(sections) if isinstance(block, Table)]


def _status(facts: Facts) -> str:
    states = facts.runs["state"]
    counts = [f"{int((states == s).sum())} {s}" for s in (COMPLETE, DIVERGED, MISSING)]
    return f"{len(states)} runs: {', '.join(counts)}."


def _markdown(facts: Facts, sections: Sequence[Section]) -> str:
    lines = [f"# {markdown(facts.plan['title'])}\n"]
    if facts.plan.get("question"):
        lines.append(f"{markdown(facts.plan['question'])}\n")
    lines.append(f"{_status(facts)}\n")
    for state, runs in page.absent(facts).items():
        lines += [
            f"- {state}: {markdown(r['what'])}, {markdown(r['where'])}, seed {r['seed']}, "
            f"run `{r['id']}`"
            for r in runs
        ]
    lines += [f"\n{to_markdown(table)}" for table in _tables(sections)]
    lines += [f"- analysis {markdown(a.trouble)}" for a in facts.analyses if a.trouble]
    lines.append(f"\nPlan {facts.plan['hash']}; `python -m fl report {facts.plan['study']}`\n")
    return "\n".join(lines)


def _latex(facts: Facts, sections: Sequence[Section]) -> str:
    """All tables, under a comment that says what they need."""
    study = facts.plan["study"]
    head = [
        f"% {facts.plan['hash']}: python -m fl report {study}; needs {PREAMBLE}",
        f"% {_status(facts)}",
        f"{FITTED}\n",
    ]
    tables = [to_latex(table, f"{study}-{table.name}") for table in _tables(sections)]
    return "\n".join([*head, *tables])
