"""The tables and figures of a report, their order and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fl.base.drawing import Picture
from fl.base.schema import StudySetting
from fl.report import (
    analyses,
    content,
    costs,
    derived,
    details,
    draws,
    fairness,
    figures,
    pace,
    training,
)
from fl.report.cells import Table, number, unit
from fl.report.content import at, majority
from fl.report.facts import Facts
from fl.report.figures import Figure, Panel
from fl.report.partitions import Partition

Block = Table | Figure


@dataclass(frozen=True)
class Fold:
    """Blocks that are hidden until a reader opens them."""

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


def outline(facts: Facts) -> list[Section]:
    """The sections, every table and figure numbered.

    Those that are folded take the number of the table before them: 3.1, 3.2.
    """
    last = {Table: 0, Figure: 0}
    found = []
    for section in sections(facts):
        blocks: list[Block | Fold] = []
        folded = 0
        for block in section.blocks:
            if not isinstance(block, Fold):
                last[type(block)] += 1
                blocks.append(replace(block, number=str(last[type(block)])))
                continue
            inner: list[Block] = []
            for each in block.blocks:
                folded += 1
                inner.append(replace(each, number=f"{last[Table]}.{folded}"))
            blocks.append(replace(block, blocks=tuple(inner)))
        found.append(replace(section, blocks=tuple(blocks)))
    return found


def blocks(sections: Sequence[Section]) -> Iterator[Block]:
    """All tables and figures, folded ones too."""
    for section in sections:
        for block in section.blocks:
            yield from block.blocks if isinstance(block, Fold) else [block]


def sections(facts: Facts) -> list[Section]:
    """The page's sections, empty ones left out."""
    metric = facts.metric
    others = tuple(content.other_metrics(facts))
    weighed = fairness.means_table(facts)
    main: list[Table | Figure | Fold] = [content.main_table(facts, metric, facts.summary)]
    if others:
        main.append(Fold("Other metrics", others))
    main.append(Fold("Weighted by samples, and the clients served worst", (weighed,)))
    moves = set(derived.stages(facts.rows, facts.runs, metric)["method"])
    movers = tuple(m for m in facts.methods if m in moves)
    lines = _figure(
        facts, "rounds", _curve, _curves_caption(facts, bool(movers)), tuple(facts.methods)
    )
    dots = _figure(facts, "spread", _strip, _strips_caption(facts))
    moved = _figure(
        facts, "change", _change, _change_caption(facts), () if _crowded(facts) else movers
    )
    found = [
        Section("results", "Results", tuple(main), lead=_lead(facts)),
        Section("draws", "Over draws", _there(draws.draws_table(facts))),
        Section("unseen", "Unseen clients", _there(content.unseen_table(facts))),
        Section("rounds", "Over rounds", _there(lines, pace.pace_table(facts))),
        Section("costs", "What it costs", _there(costs.costs_table(facts))),
        Section("spread", "Spread over clients", (content.clients_table(facts), *_there(dots))),
        Section(
            "personalisation",
            "Before and after personalisation",
            _there(content.personal_table(facts), moved),
        ),
        _analyses(facts),
        Section("paired", "Paired comparison", _there(content.paired_table(facts))),
        Section("published", "Measured beside published", _there(details.published_table(facts))),
        Section("grids", "Hyper-parameters", _there(details.grid_table(facts))),
        Section("training", "How it was trained", training.training_tables(facts)),
        _partitions(facts),
    ]
    return [section for section in found if section.blocks or section.remarks]


def _lead(facts: Facts) -> str:
    return f"{facts.everywhere} Follow a number to the runs behind it.".strip()


def _there(*blocks: Table | Figure | None) -> tuple[Table | Figure, ...]:
    return tuple(block for block in blocks if block is not None)


def _analyses(facts: Facts) -> Section:
    """The results of analyses of the stored runs; missing ones are named."""
    names = analyses.Names(facts.methods, {one: facts.short(one) for one in facts.settings})
    found: list[Table | Figure | Fold] = []
    remarks = []
    taken: dict[str, int] = {}
    for one in facts.analyses:
        if one.trouble:
            remarks.append(one.trouble)
            continue
        kind = str(one.record["spec"]["name"])
        taken[kind] = taken.get(kind, 0) + 1
        name = kind if taken[kind] == 1 else f"{kind}-{taken[kind]}"
        table = analyses.table(one, name, names)
        if table is not None:
            long = len(table.rows) > analyses.LONG
            found.append(Fold(f"{one.title}, {len(table.rows)} rows", (table,)) if long else table)
        found += _there(analyses.figure(one, name, names))
        remarks += [f"{one.title}: {note}" for note in one.record["notes"]]
    return Section("analyses", "Analyses", tuple(found), tuple(remarks))


def _partitions(facts: Facts) -> Section:
    table = details.partition_table(facts)
    if table is None:
        return Section("partitions", "Partitions", ())
    parts = list(facts.partitions.values())
    panels = []
    for part in parts:
        total = sum(int(counts.sum()) for counts in part.counts.values())
        kinds = f" of {len(part.classes)} classes" if part.by_class else ""
        alt = (
            f"{part.title}: {len(part.clients)} clients hold {total} samples{kinds}; the table of "
            "clients gives the sizes."
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
    notes = tuple(f"{part.title}: {note}" for part in parts for note in _noted(part))
    picture = Figure("partitions", caption, tuple(panels))
    return Section("partitions", "Partitions", (picture, table, *folds), notes)


def _noted(part: Partition) -> list[str]:
    """What a partition's table of clients does not tell."""
    held = f"the server holds {part.at_server:,} labelled samples, which no client sees"
    return [*part.notes, *([held] if part.at_server else [])]


Draw = Callable[[Facts, StudySetting], tuple[Picture, str] | None]
"""Draws one panel: the picture and what it shows in words, or nothing."""


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


def _said(facts: Facts, setting: StudySetting) -> str:
    rows = at(facts.summary, setting)
    named = zip(rows["method"], rows["mean"], strict=True)
    return "; ".join(f"{facts.methods[m]} {number(v, facts.metric)}" for m, v in named)


def _own(facts: Facts, setting: StudySetting) -> float | None:
    return majority(facts, setting).mean() if facts.metric == "accuracy" else None


def _curve(facts: Facts, setting: StudySetting) -> tuple[Picture, str] | None:
    frame = at(derived.curves(facts.rows, facts.runs, facts.metric), setting)
    if frame.empty:
        return None
    picture = figures.curves(frame, facts.methods, facts.metric, _own(facts, setting))
    return picture, f"test {unit(facts.metric)} over rounds, ending at {_said(facts, setting)}."


def _strip(facts: Facts, setting: StudySetting) -> tuple[Picture, str] | None:
    frame = at(derived.clients(facts.rows, facts.runs, facts.metric), setting)
    if frame.empty:
        return None
    picture = figures.strips(frame, facts.methods, facts.metric)
    return (
        picture,
        f"final test {unit(facts.metric)} of every client; means {_said(facts, setting)}.",
    )


def _change(facts: Facts, setting: StudySetting) -> tuple[Picture, str] | None:
    frame = at(derived.stages(facts.rows, facts.runs, facts.metric), setting)
    if frame.empty:
        return None
    clients = frame.groupby(["method", "client"])[["before", "after"]].mean()
    if _crowded(facts):
        gains = (clients["after"] - clients["before"]).rename("value").reset_index()
        label = f"gain: {unit(facts.metric)}"
        picture = figures.strips(gains, facts.methods, facts.metric, label, zero=True)
    else:
        picture = figures.change(frame, facts.methods, facts.metric)
    risen = int((clients["after"] > clients["before"]).sum())
    return (
        picture,
        f"after against before personalisation; {risen} of {len(clients)} clients have risen.",
    )


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


def _crowded(facts: Facts) -> bool:
    return bool((facts.summary["n_clients"] > figures.CROWD).any())


QUANTILES = (
    "from the 5th to the 95th percentile of the clients (thin line), between the quartiles (thick, "
    "with a gap at the median), the worst and the best client (dots)"
)


def _strips_caption(facts: Facts) -> str:
    each = QUANTILES if _crowded(facts) else "every client (a dot)"
    return (
        f"Final test {unit(facts.metric)}, each client by its mean over seeds: {each}, and the "
        "mean over clients (bar)."
    )


def _change_caption(facts: Facts) -> str:
    if _crowded(facts):
        return f"What personalisation gains, each client by its mean over seeds: {QUANTILES}."
    return (
        "A dot is a client, its mean over seeds, before and after personalisation. Above the "
        "dashed line personalisation helped."
    )
