"""The HTML page: which tables and figures stand where, numbered, and set by the template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from fl import frames
from fl.report import content, details, draws, figures
from fl.report.cells import Table, number, unit
from fl.report.content import at, majority
from fl.report.facts import Facts, Setting
from fl.report.figures import Figure, Panel
from fl.tables import COMPLETE, DIVERGED, MISSING

TEMPLATES = Path(__file__).parents[1] / "templates"


@dataclass(frozen=True)
class Fold:
    """Blocks that a reader opens."""

    summary: str
    blocks: tuple[Table | Figure, ...]


@dataclass(frozen=True)
class Section:
    """A heading, a lead, tables and figures, and remarks at the end."""

    id: str
    title: str
    blocks: tuple[Table | Figure | Fold, ...]
    remarks: tuple[str, ...] = ()
    lead: str = ""


def html(facts: Facts) -> str:
    """The whole page; it needs no other file."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    numbers = {"table": count(1), "figure": count(1)}
    environment.globals |= {
        "numbered": lambda kind: next(numbers[kind]),
        "is_table": lambda block: isinstance(block, Table),
        "is_fold": lambda block: isinstance(block, Fold),
        "place": _placed,
        "breakable": _breakable,
    }
    states = facts.runs["state"]
    return environment.get_template("report.html.j2").render(
        facts=facts,
        plan=facts.plan,
        counts={s: int((states == s).sum()) for s in (COMPLETE, DIVERGED, MISSING)},
        absent=absent(facts),
        sections=sections(facts),
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


def _setting(row: Mapping[Any, Any]) -> Setting:
    return row["dataset"], row["partition"], row["model"]


def sections(facts: Facts) -> list[Section]:
    """The page's sections, empty ones left out."""
    metric = facts.metric
    others = tuple(content.other_metrics(facts))
    main: list[Table | Figure | Fold] = [content.main_table(facts, metric, facts.summary)]
    if others:
        main.append(Fold("Other metrics", others))
    moves = set(frames.stages(facts.rows, facts.runs, metric)["method"])
    movers = tuple(m for m in facts.methods if m in moves)
    lines = _figure(
        facts, "rounds", _curve, _curves_caption(facts, bool(movers)), tuple(facts.methods)
    )
    dots = _figure(facts, "spread", _strip, _strips_caption(facts))
    moved = _figure(facts, "change", _change, _change_caption(facts), movers)
    found = [
        Section("results", "Results", tuple(main), lead="Follow a number to the runs behind it."),
        Section("draws", "Over draws", _there(draws.draws_table(facts))),
        Section("unseen", "Unseen clients", _there(content.unseen_table(facts))),
        Section("rounds", "Over rounds", _there(lines)),
        Section("spread", "Spread over clients", (content.clients_table(facts), *_there(dots))),
        Section(
            "personalisation",
            "Before and after personalisation",
            _there(content.personal_table(facts), moved),
        ),
        Section("paired", "Paired comparison", _there(content.paired_table(facts))),
        Section("published", "Measured beside published", _there(details.published_table(facts))),
        Section("grids", "Hyper-parameters", _there(details.grid_table(facts))),
        _partitions(facts),
    ]
    return [section for section in found if section.blocks]


def _there(*blocks: Table | Figure | None) -> tuple[Table | Figure, ...]:
    return tuple(block for block in blocks if block is not None)


def _partitions(facts: Facts) -> Section:
    table = details.partition_table(facts)
    if table is None:
        return Section("partitions", "Partitions", ())
    parts = list(facts.partitions.values())
    panels = []
    for part in parts:
        total = sum(int(counts.sum()) for counts in part.counts.values())
        alt = (
            f"{part.title}: {len(part.clients)} clients hold {total} samples of "
            f"{len(part.classes)} classes; the table of clients gives the sizes."
        )
        panels.append(Panel(part.title, alt, figures.holdings(part)))
    caption = (
        "Who holds what. A column is a client, a row a class; the area of a dot is proportional to "
        "the number of samples in all splits. Where there are more than 40 of either, the shade "
        "shows its logarithm, and more than 40 clients are sorted by most frequent class and size."
    )
    apart = [found for part in parts if (found := details.distances_table(part))]
    folds = [Fold("Distances between domains", tuple(apart))] if apart else []
    folds.append(Fold("Every client's share", tuple(map(details.holdings_table, parts))))
    notes = tuple(f"{part.title}: {note}" for part in parts for note in part.notes)
    picture = Figure("partitions", caption, tuple(panels))
    return Section("partitions", "Partitions", (picture, table, *folds), notes)


Draw = Callable[[Facts, Setting], tuple[str, str] | None]
"""Draws one panel: its SVG and what it shows in words, or nothing."""


def _figure(
    facts: Facts, name: str, draw: Draw, caption: str, key: tuple[str, ...] = ()
) -> Figure | None:
    panels = []
    for setting in facts.settings:
        drawn = draw(facts, setting)
        if drawn is not None:
            panels.append(
                Panel(facts.short(setting), f"{facts.short(setting)}: {drawn[1]}", drawn[0])
            )
    return Figure(name, caption, tuple(panels), key) if panels else None


def _said(facts: Facts, setting: Setting) -> str:
    rows = at(facts.summary, setting)
    named = zip(rows["method"], rows["mean"], strict=True)
    return "; ".join(f"{facts.methods[m]} {number(v, facts.metric)}" for m, v in named)


def _own(facts: Facts, setting: Setting) -> float | None:
    return majority(facts, setting).mean() if facts.metric == "accuracy" else None


def _curve(facts: Facts, setting: Setting) -> tuple[str, str] | None:
    frame = at(frames.curves(facts.rows, facts.runs, facts.metric), setting)
    if frame.empty:
        return None
    svg = figures.curves(frame, list(facts.methods), facts.metric, _own(facts, setting))
    return svg, f"test {unit(facts.metric)} over rounds, ending at {_said(facts, setting)}."


def _strip(facts: Facts, setting: Setting) -> tuple[str, str] | None:
    frame = at(frames.clients(facts.rows, facts.runs, facts.metric), setting)
    if frame.empty:
        return None
    svg = figures.strips(frame, facts.methods, facts.metric)
    return svg, f"final test {unit(facts.metric)} of every client; means {_said(facts, setting)}."


def _change(facts: Facts, setting: Setting) -> tuple[str, str] | None:
    frame = at(frames.stages(facts.rows, facts.runs, facts.metric), setting)
    if frame.empty:
        return None
    svg = figures.change(frame, list(facts.methods), facts.metric)
    clients = frame.groupby(["method", "client"])[["before", "after"]].mean()
    risen = int((clients["after"] > clients["before"]).sum())
    return svg, f"after against before personalisation; {risen} of {len(clients)} dots have risen."


def _reference(facts: Facts) -> str:
    if facts.metric != "accuracy" or not facts.partitions:
        return ""
    return " Dashed grey: the majority class of each client, mean over clients."


def _curves_caption(facts: Facts, moved: bool) -> str:
    begin = " A method that starts from a stored model counts its rounds from there."
    return (
        f"Test {unit(facts.metric)} over rounds: mean over clients and seeds; the band is one "
        "standard deviation over seeds. A dotted line is the final value of a method that "
        f"records fewer than three rounds.{begin if moved else ''}{_reference(facts)}"
    )


def _strips_caption(facts: Facts) -> str:
    return (
        f"Final test {unit(facts.metric)} of every client (a dot: its mean over seeds) and the "
        "mean over clients (bar)."
    )


def _change_caption(facts: Facts) -> str:
    return (
        "A dot is a client, its mean over seeds, before and after personalisation. Above the "
        "dashed line personalisation helped."
    )


def _placed(panel: Panel, prefix: str) -> Markup:
    return Markup(figures.placed(panel.svg, prefix, str(escape(panel.alt))))


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
        colour = f"var(--s{i % figures.N_COLOURS})"
        line = f'<path d="M1 6H27" stroke-dasharray="{DASHES[i // figures.N_COLOURS % 3]}"/>'
        mark = f'<g stroke="none" style="fill:{colour}">{SHAPES[i % len(SHAPES)]}</g>'
        style = f"stroke:{colour};stroke-width:2"
        box = f'<svg viewBox="0 0 28 12" aria-hidden="true" style="{style}">{line}{mark}</svg>'
        keys[method] = Markup(box)
    return keys
