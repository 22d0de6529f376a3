"""A report as one page: in HTML, its outline filled into the template, and in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from fl.base.schema import MISSING, SETTING, StudySetting
from fl.blocks.plotting import with_unique_ids
from fl.plan import result_paths
from fl.report.cells import NOTHING, Table, decimal, number, transposed, unit
from fl.report.facts import Facts
from fl.report.figures import MARKERS, Panel
from fl.report.outline import Fold, Section
from fl.report.plots import series_of
from fl.report.summaries import final_rows

SHOWN = [
    *("method", "run", "seed", "point", "state", "selected"),
    *("stack", "rounds", "seconds", "backend", "device"),
]
"""Columns of the runs table that the page shows."""

TEMPLATES = Path(__file__).parent / "templates"

MOST_ROWS = 12
"""Largest number of rows of a table that is not folded, and that has no field to filter them."""

SHAPES = {
    "o": '<circle cx="14" cy="6" r="3.2"/>',
    "s": '<rect x="11" y="3" width="6" height="6"/>',
    "^": '<path d="M14 2 18 9H10Z"/>',
    "D": '<path d="M14 2 18 6 14 10 10 6Z"/>',
    "v": '<path d="M14 10 18 3H10Z"/>',
    "p": '<path d="M14 2.2 17.6 4.8 16.2 9.1H11.8L10.4 4.8Z"/>',
}


def table_html(table: Table, ours: str = "") -> str:
    """Return a table as a part of a page that has no style of its own, such as a notebook.

    Args:
        table: The table.
        ours: Head of the row of the user's own method.
    """
    return _environment().get_template("fragment.html.j2").render(shown=table, ours=ours)


def _environment() -> jinja2.Environment:
    """Return the environment of the templates, with the functions that they call."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "is_table": lambda block: isinstance(block, Table),
        "is_fold": lambda block: isinstance(block, Fold),
        "place": _placed,
        "transposed": transposed,
        "breakable": _breakable,
        "is_long": _is_long,
        "n_rows": _n_rows,
    }
    return environment


def title_of_own_method(facts: Facts) -> str:
    """Return the title of the user's own method; empty without one."""
    return facts.methods.get(facts.plan.ours or "", "")


def html(facts: Facts, sections: Sequence[Section]) -> str:
    """Return the HTML page, which needs no other file."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            facts=facts,
            plan=facts.plan,
            stamp=Markup(result_paths.stamp(facts.plan.hash, _is_complete(facts))),
            counts=facts.counts,
            absent=facts.absent,
            sections=sections,
            runs=runs_behind(facts),
            unit=unit(facts.metric),
            legend=_legend(facts),
            ours=title_of_own_method(facts),
            most_rows=MOST_ROWS,
        )
    )


def _is_complete(facts: Facts) -> bool:
    """Whether no run and no analysis is missing."""
    return not (facts.absent[MISSING] or any(analysis.problem for analysis in facts.analyses))


def runs_behind(facts: Facts) -> list[tuple[StudySetting, list[dict[str, Any]]]]:
    """Return the runs of each method by setting, with the method's title and anchor."""
    scores = (
        final_rows(facts.rows, facts.metric).groupby(["method", "run"])["value"].mean().to_dict()
    )
    runs: dict[StudySetting, dict[str, list[Mapping[Any, Any]]]] = {}
    for row in facts.runs[[*SETTING, *SHOWN]].to_dict("records"):
        setting, method = (row["dataset"], row["partition"], row["model"]), row["method"]
        shown = _shown(row, scores.get((method, row["run"]), float("nan")), facts.metric)
        runs.setdefault(setting, {}).setdefault(method, []).append({**row, **shown})
    return [
        (
            setting,
            [
                {
                    "method": method,
                    "title": facts.methods[method],
                    "anchor": facts.anchor(setting, method)[1:],
                    "runs": rows,
                }
                for method, rows in runs[setting].items()
            ],
        )
        for setting in facts.settings
    ]


def _shown(row: Mapping[Any, Any], score: float, metric: str) -> dict[str, str]:
    stacked = 0 if pd.isna(row["stack"]) else len(row["stack"].split(", "))
    share = f" (a share of 1/{stacked})" if stacked > 1 else ""
    return {
        "shown": number(score, metric),
        "length": NOTHING if pd.isna(row["rounds"]) else str(row["rounds"]),
        "time": decimal(row["seconds"], 1) + share,
        "computed": NOTHING if pd.isna(row["backend"]) else f"{row['backend']}, {row['device']}",
    }


def _placed(panel: Panel, prefix: str) -> Markup:
    return Markup(with_unique_ids(panel.picture.svg, prefix, str(escape(panel.alt))))


def _is_long(table: Table) -> bool:
    """Whether a table is folded because of its many rows; the main table never is."""
    return not table.is_main and _n_rows(table) > MOST_ROWS


def _n_rows(table: Table) -> int:
    """Return the number of rows without headings."""
    return sum(row.kind != "heading" for row in table.rows)


def _breakable(text: str) -> Markup:
    """Return a text whose line can be broken after an opening bracket."""
    return escape(text).replace("(", Markup("(<wbr>"))


def _legend(facts: Facts) -> dict[str, Markup]:
    """Return the marker of every method that has a colour, as SVG."""
    series, keys = series_of(facts), {}
    for method in series.in_colour:
        number = series.colours[method] or 0
        shape = SHAPES[MARKERS[number % len(MARKERS)]]
        keys[method] = Markup(
            f'<svg viewBox="0 0 28 12" aria-hidden="true" style="fill:var(--s{number})">'
            f"{shape}</svg>"
        )
    return keys


def markdown(facts: Facts, tables: Sequence[Table]) -> str:
    """Return the report in Markdown: all tables under the study's title and question."""
    lines = [f"# {_literal(facts.plan.title)}\n"]
    if facts.plan.question:
        lines.append(f"{_literal(facts.plan.question)}\n")
    departures = facts.plan.departures
    if departures is not None:
        summary = (
            "Differs from the paper:"
            if departures
            else "Nothing is known to differ from the paper."
        )
        lines += [summary, *(f"- {_literal(departure)}" for departure in departures), ""]
    lines.append(f"{facts.status}\n")
    for state, runs in facts.absent.items():
        lines += [
            f"- {state}: {_literal(run.method)}, {_literal(run.setting)}, seed {run.seed}, "
            f"run `{run.run}`"
            for run in runs
        ]
    lines += [f"\n{to_markdown(table)}" for table in tables]
    lines += [f"- analysis {_literal(a.problem)}" for a in facts.analyses if a.problem]
    lines.append(f"\nPlan {facts.plan.hash}; `fedloom report {facts.plan.study}`\n")
    return "\n".join(lines)


def _literal(text: str) -> str:
    """Return a text with Markdown's special characters escaped, also for table cells."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text).replace("\n", "<br>")


def to_markdown(table: Table) -> str:
    """Return a table in Markdown, under its caption, with its note below."""
    number = f"**Table {table.number}.** " if table.number else ""
    lines = [
        number + _literal(table.caption),
        "",
        _pipes(_literal(column.name) for column in table.columns),
        _pipes(":---" if column.text else "---:" for column in table.columns),
    ]
    for row in table.rows:
        if row.kind == "heading":
            lines.append(_pipes([f"*{_literal(row.head)}*", *[""] * (len(table.columns) - 1)]))
            continue
        texts = [(_literal(cell.full_text), cell.best) for cell in row.cells]
        lines.append(_pipes([_literal(row.head), *(f"**{t}**" if b else t for t, b in texts)]))
    if table.full_note:
        lines += ["", _literal(table.full_note)]
    return "\n".join(lines) + "\n"


def _pipes(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
