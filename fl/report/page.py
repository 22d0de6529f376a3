"""The HTML page: a report's outline, filled into the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fl.base.drawing import N_COLOURS, placed
from fl.base.schema import COMPLETE, DIVERGED, MISSING, StudySetting
from fl.report import details
from fl.report.cells import Table, unit
from fl.report.facts import Facts
from fl.report.figures import Panel
from fl.report.outline import Fold, Section

TEMPLATES = Path(__file__).parent / "templates"
MOST = 6
"""Settings beside each other; more stand below each other where there are fewer methods."""


def html(facts: Facts, sections: Sequence[Section]) -> str:
    """The whole page; it needs no other file."""
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
        "laid": _laid,
        "breakable": _breakable,
    }
    states = facts.runs["state"]
    return environment.get_template("report.html.j2").render(
        facts=facts,
        plan=facts.plan,
        counts={s: int((states == s).sum()) for s in (COMPLETE, DIVERGED, MISSING)},
        absent=absent(facts),
        sections=sections,
        runs=details.runs_behind(facts),
        unit=unit(facts.metric),
        legend=_legend(facts),
    )


def absent(facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """The runs that are not complete, by state."""
    frame = facts.runs
    found = {}
    for state in (MISSING, DIVERGED):
        found[state] = [
            {
                "id": row["run"],
                "what": ", ".join(filter(None, (facts.methods[row["method"]], row["point"]))),
                "where": facts.short(_setting(row)),
                "seed": row["seed"],
                "anchor": facts.anchor(_setting(row), row["method"]),
            }
            for row in frame[frame["state"] == state].to_dict("records")
        ]
    return found


def _setting(row: Mapping[Any, Any]) -> StudySetting:
    return row["dataset"], row["partition"], row["model"]


def _laid(table: Table) -> Table:
    """The table as the page shows it: one that is wider than high is transposed if possible."""
    n = len(table.columns)
    return table.transposed() if table.crossed and n > MOST and n > len(table.rows) else table


def _placed(panel: Panel, prefix: str) -> Markup:
    return Markup(placed(panel.picture.svg, prefix, str(escape(panel.alt))))


def _breakable(text: str) -> Markup:
    """``text`` with a place to break the line after an opening bracket."""
    return escape(text).replace("(", Markup("(<wbr>"))


SHAPES = (
    '<circle cx="14" cy="6" r="3.2"/>',
    '<rect x="11" y="3" width="6" height="6"/>',
    '<path d="M14 2 18 9H10Z"/>',
    '<path d="M14 2 18 6 14 10 10 6Z"/>',
    '<path d="M14 10 18 3H10Z"/>',
    '<path d="M14 2.2 17.6 4.8 16.2 9.1H11.8L10.4 4.8Z"/>',
)
DASHES = ("none", "6 2", "2 2")


def _legend(facts: Facts) -> dict[str, Markup]:
    """Every method's line and marker, as the figures draw them."""
    keys = {}
    for i, method in enumerate(facts.methods):
        colour = f"var(--s{i % N_COLOURS})"
        line = f'<path d="M1 6H27" stroke-dasharray="{DASHES[i // N_COLOURS % 3]}"/>'
        mark = f'<g stroke="none" style="fill:{colour}">{SHAPES[i % len(SHAPES)]}</g>'
        style = f"stroke:{colour};stroke-width:2"
        box = f'<svg viewBox="0 0 28 12" aria-hidden="true" style="{style}">{line}{mark}</svg>'
        keys[method] = Markup(box)
    return keys
