"""The report in Markdown: what is missing, and all tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fl.report.cells import Table
from fl.report.facts import Facts


def document(facts: Facts, tables: Sequence[Table]) -> str:
    """All tables under the study's title and question."""
    lines = [f"# {literal(facts.plan.title)}\n"]
    if facts.plan.question:
        lines.append(f"{literal(facts.plan.question)}\n")
    departures = facts.plan.departures
    if departures is not None:
        summary = (
            "Differs from the paper:"
            if departures
            else "Nothing is known to differ from the paper."
        )
        lines += [summary, *(f"- {literal(departure)}" for departure in departures), ""]
    lines.append(f"{facts.status}\n")
    for state, runs in facts.absent.items():
        lines += [
            f"- {state}: {literal(run.method)}, {literal(run.setting)}, seed {run.seed}, "
            f"run `{run.run}`"
            for run in runs
        ]
    lines += [f"\n{to_markdown(table)}" for table in tables]
    lines += [f"- analysis {literal(a.trouble)}" for a in facts.analyses if a.trouble]
    lines.append(f"\nPlan {facts.plan.hash}; `fedloom report {facts.plan.study}`\n")
    return "\n".join(lines)


def literal(text: str) -> str:
    """``text`` as Markdown shows it literally, in a table cell too."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text).replace("\n", "<br>")


def to_markdown(table: Table) -> str:
    """A pipe table under its caption, with its note below."""
    number = f"**Table {table.number}.** " if table.number else ""
    lines = [
        number + literal(table.caption),
        "",
        _pipes(literal(column.name) for column in table.columns),
        _pipes(":---" if column.text else "---:" for column in table.columns),
    ]
    for row in table.rows:
        if row.kind == "heading":
            lines.append(_pipes([f"*{literal(row.head)}*", *[""] * (len(table.columns) - 1)]))
            continue
        texts = [(literal(cell.full_text), cell.best) for cell in row.cells]
        lines.append(_pipes([literal(row.head), *(f"**{t}**" if b else t for t, b in texts)]))
    if table.full_note:
        lines += ["", literal(table.full_note)]
    return "\n".join(lines) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
