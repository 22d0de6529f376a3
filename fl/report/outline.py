"""The tables and figures of a report, their order, their names and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fl.base.schema import StudySetting
from fl.report import (
    analysis_section,
    claims_tables,
    effort,
    figures,
    method_tables,
    partitions,
    plots,
    published,
    references,
    trade_offs,
    training,
)
from fl.report.cells import Table, number, unit
from fl.report.facts import Facts, at
from fl.report.figures import Figure, Panel
from fl.report.ranks import series_of
from fl.report.summaries import KEY

Block = Table | Figure


@dataclass(frozen=True)
class Fold:
    """Blocks that are hidden until a reader opens them."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """A heading, a lead, tables and figures, and remarks at the end."""

    id: str
    title: str
    blocks: tuple[Block | Fold, ...]
    remarks: tuple[str, ...] = ()
    lead: str = ""


def outline(facts: Facts) -> list[Section]:
    """The sections, every table and figure numbered, no two of a name.

    Those that are folded take the number of the table before them: 3.1, 3.2.
    """
    last = {Table: 0, Figure: 0}
    names: set[str] = set()
    numbered = []
    for section in _sections(facts):
        blocks: list[Block | Fold] = []
        folded = 0
        for block in section.blocks:
            if not isinstance(block, Fold):
                last[type(block)] += 1
                blocks.append(_called(block, str(last[type(block)]), names))
                continue
            inner = []
            for items in block.blocks:
                folded += 1
                inner.append(_called(items, f"{last[Table]}.{folded}", names))
            blocks.append(replace(block, blocks=tuple(inner)))
        numbered.append(replace(section, blocks=tuple(blocks)))
    return numbered


def _called(block: Block, place: str, names: set[str]) -> Block:
    """The block with its number, and a name that is not in ``taken`` yet."""
    name, n = block.name, 1
    while name in names:
        n += 1
        name = f"{block.name}-{n}"
    names.add(name)
    return replace(block, number=place, name=name)


def blocks(sections: Sequence[Section]) -> Iterator[Block]:
    """All tables and figures, folded ones too."""
    for section in sections:
        for block in section.blocks:
            yield from block.blocks if isinstance(block, Fold) else [block]


def _sections(study: Facts) -> list[Section]:
    """The page's sections, empty ones left out.

    Where data or partitions are drawn, tables and figures are over draws; what each of them has is
    folded, and of what is published, which has no draws, there is one for each.
    """
    facts = study.drawn or study
    # The page has the claims as a list below the table; a table elsewhere says them itself.
    claimed = claims_tables.claims_made(facts)
    table = method_tables.main_table(facts)
    main: list[Block | Fold] = [replace(table, scope=" ".join([table.scope, *claimed]).strip())]
    main += _present(method_tables.predicted_table(facts))
    if study.drawn:
        main.append(Fold("Each draw", (method_tables.main_table(study),)))
    metric_tables = tuple(method_tables.other_metrics(facts))
    if metric_tables:
        main.append(Fold("Other metrics", metric_tables))
    followed = "Numbers of each draw lead" if study.drawn else "Follow a number"
    lead = f"{facts.everywhere} {followed} to the runs behind it.".strip()
    sections = [
        Section("results", "Results", tuple(main), claimed, lead),
        Section("honest", "Honest clients", _present(method_tables.honest_table(facts))),
        Section("unseen", "Unseen clients", _present(method_tables.unseen_table(facts))),
        Section("rounds", "Over rounds", _present(_lines(facts), effort.pace_table(facts))),
        Section(
            "privacy",
            "Privacy",
            _present(trade_offs.privacy_table(facts), trade_offs.privacy_figure(facts)),
        ),
        Section(
            "costs",
            "What it costs",
            _present(effort.costs_table(facts), trade_offs.bytes_figure(facts)),
        ),
        Section(
            "spread",
            "Spread over clients",
            _present(
                method_tables.domains_table(facts),
                method_tables.clients_table(facts),
                _strips(facts),
            ),
        ),
        Section(
            "personalisation",
            "Before and after personalisation",
            _present(method_tables.personal_table(facts)),
        ),
        _analyses(study),
        Section(
            "paired",
            "Paired comparison",
            _present(claims_tables.differences_table(facts), claims_tables.paired_table(facts)),
        ),
        Section(
            "published", "Measured beside published", _present(published.published_table(study))
        ),
        Section("grids", "Hyper-parameters", _present(method_tables.grid_table(facts))),
        Section("training", "How it was trained", training.training_tables(facts)),
        _partitions(facts),
        _references(facts),
    ]
    return [section for section in sections if section.blocks or section.remarks]


def _present(*blocks: Block | None) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block is not None)


def _analyses(facts: Facts) -> Section:
    """The results of analyses of the stored runs; missing ones are named."""
    merged = facts.drawn or facts
    names = {setting: facts.short(setting) for setting in facts.settings}
    undrawn = {setting: merged.short(setting) for setting in merged.settings}
    shown: list[Block | Fold] = []
    remarks = []
    for analysis in facts.analyses:
        if analysis.trouble:
            remarks.append(analysis.trouble)
            continue
        frame = merged.replicated(analysis.table) if len(analysis.table) else analysis.table
        table = analysis_section.table(analysis, frame, facts.methods, undrawn, merged.replicates)
        if table is not None:
            long = len(table.rows) > analysis_section.LONG
            fold = Fold(f"{analysis.title}, {len(table.rows)} rows", (table,))
            shown.append(fold if long else table)
        picture = analysis_section.figure(analysis, facts.methods, names)
        if picture is not None:
            shown.append(
                Fold(f"{analysis.title}, each draw", (picture,)) if facts.drawn else picture
            )
        if analysis.record is not None:
            remarks += [f"{analysis.title}: {note}" for note in analysis.record.notes]
    return Section("analyses", "Analyses", tuple(shown), tuple(remarks))


def _partitions(facts: Facts) -> Section:
    items = list(facts.partitions.values())
    if not items:
        return Section("partitions", "Partitions", ())
    panels = []
    for partition in items:
        total = sum(int(counts.sum()) for counts in partition.counts.values())
        kinds = f" of {len(partition.classes)} classes" if partition.by_class else ""
        alt = f"{len(partition.clients)} clients hold {total} samples{kinds}."
        panels.append(
            Panel(partition.title, f"{partition.title}: {alt}", figures.holdings(partition))
        )
    caption = (
        "Samples of each client (column) and class (row); the area of a dot is proportional to the "
        "number of samples in all splits."
    )
    note = (
        "With more than 40 clients or classes, the shade shows the logarithm of the number; more "
        "than 40 clients are sorted by most frequent class and size."
    )
    distances = _present(*map(partitions.distances_table, items))
    folds = [Fold("Distances between domains", distances)] if distances else []
    remarks = tuple(
        f"{partition.title}: {note}" for partition in items for note in partition.remarks
    )
    picture = Figure("partitions", caption, tuple(panels), note=note)
    shown: tuple[Block | Fold, ...] = (picture, partitions.sizes_table(items), *folds)
    return Section("partitions", "Partitions", shown, remarks)


def _references(facts: Facts) -> Section:
    lead = f"As BibTeX: {facts.plan.study}.bib, beside this page."
    items = tuple(f"{components}: {citation}" for components, citation in references.of(facts))
    return Section("references", "References", (), items, lead)


def _panels(facts: Facts, draw: Callable[[StudySetting], Panel | None]) -> tuple[Panel, ...]:
    """A panel for each setting that has something to draw, its words under the setting's name."""
    drawn = [panel for setting in facts.settings if (panel := draw(setting)) is not None]
    return tuple(replace(panel, alt=f"{panel.title}: {panel.alt}") for panel in drawn)


def _means_text(facts: Facts, setting: StudySetting) -> str:
    """``FedAvg 81.6; Local 75.1``."""
    rows = at(facts.summary, setting)
    named = zip(rows["method"], rows["mean"], strict=True)
    return "; ".join(f"{facts.methods[m]} {number(v, facts.metric)}" for m, v in named)


def _lines(facts: Facts) -> Figure | None:
    """Curves over rounds."""
    metric = facts.metric
    frame = plots.curve_frame(facts)
    series = series_of(facts)
    shares = metric == "accuracy" and bool(facts.partitions)

    def draw(setting: StudySetting) -> Panel | None:
        lines = at(frame, setting)
        if lines.empty:
            return None
        majority = facts.majority(setting).mean() if shares else None
        alt = f"test {unit(metric)} over rounds; final means {_means_text(facts, setting)}."
        picture = figures.curves(lines, series, metric, majority)
        return Panel(facts.short(setting), alt, picture)

    caption = (
        f"Test {unit(metric)} over rounds: mean over clients and {facts.replicates}; the band is "
        f"one standard deviation over {facts.replicates}."
    )
    notes = []
    if method_tables.early_stops(facts):
        notes.append(
            "A curve has the rounds that all runs of the method have, and ends with the first run "
            "that stopped early; tables have the final values."
        )
    if (facts.runs["rounds_before"] > 0).any():
        notes.append(
            "A method that starts from a stored model begins after the rounds of that model."
        )
    if shares:
        notes.append("Dashed grey: the majority class of each client, mean over clients.")
    notes += [series.note] if series.note else []
    panels = _panels(facts, draw)
    return Figure("rounds", caption, panels, note=" ".join(notes)) if panels else None


def _strips(facts: Facts) -> Figure | None:
    """Every client's final value."""
    frame = plots.client_frame(facts)
    series = series_of(facts)

    def draw(setting: StudySetting) -> Panel | None:
        values = at(frame, setting)
        if values.empty:
            return None
        alt = (
            f"final test {unit(facts.metric)} of every client; means {_means_text(facts, setting)}."
        )
        picture = figures.strips(values, series, facts.metric)
        return Panel(facts.short(setting), alt, picture)

    items, note = "every client (a dot)", ""
    if (frame.groupby(KEY)["value"].count() > figures.CROWD).any():
        items = "the distribution over clients"
        note = (
            "Thin line: from the 5th to the 95th percentile of the clients. Thick line: between "
            "the quartiles, with a gap at the median. Dots: the worst and the best client."
        )
    caption = (
        f"Final test {unit(facts.metric)}, each client{' of each draw' * facts.over_draws} by its "
        f"mean over seeds: {items}, and the mean over clients (bar)."
    )
    if facts.plan.baseline in facts.methods and len(facts.methods) > 1:
        title = facts.methods[facts.plan.baseline]
        note = f"{note} Dashed: the mean of {title}, the baseline.".lstrip()
    panels = _panels(facts, draw)
    return Figure("spread", caption, panels, note=note) if panels else None
