"""The tables and figures of a report, their order, their names and their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fl.base.schema import DIVERGED, StudySetting
from fl.report import (
    analysis_results,
    claims_tables,
    clock_claims,
    clock_tables,
    cost_tables,
    figures,
    many_methods,
    method_tables,
    partitions,
    plots,
    published,
    references,
    training_tables,
)
from fl.report.cells import Table, number, unit
from fl.report.facts import Facts, rows_of_setting
from fl.report.figures import Figure, Panel
from fl.report.plots import series_of
from fl.report.remarks import remarks
from fl.report.summaries import KEY

Block = Table | Figure


@dataclass(frozen=True)
class Fold:
    """Tables and figures that are hidden until a reader opens them."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """Section: a heading, a lead, tables and figures, and remarks at the end."""

    id: str
    title: str
    blocks: tuple[Block | Fold, ...]
    remarks: tuple[str, ...] = ()
    lead: str = ""


def outline(facts: Facts) -> list[Section]:
    """Return the sections, with a number and a unique name for every table and figure.

    Folded ones have the number of the table before them and one of their own: 3.1, 3.2.
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
    """Return a block with a number and a name that is not in ``names``, to which it is added."""
    name, n = block.name, 1
    while name in names:
        n += 1
        name = f"{block.name}-{n}"
    names.add(name)
    return replace(block, number=place, name=name)


def blocks(sections: Sequence[Section]) -> Iterator[Block]:
    """Yield all tables and figures, folded ones too."""
    for section in sections:
        for block in section.blocks:
            yield from block.blocks if isinstance(block, Fold) else [block]


def _sections(study: Facts) -> list[Section]:
    """Return the page's sections that are not empty.

    If data or partitions are drawn with several seeds, tables and figures are over draws. Tables of
    each draw are folded, and published numbers are compared with each draw.
    """
    facts = study.merged_draws or study
    # The page has the claims as a list below the table; a table elsewhere has them in its note.
    claimed = claims_tables.claims_made(facts)
    table = method_tables.main_table(facts)
    main: list[Block | Fold] = [replace(table, scope=" ".join([table.scope, *claimed]).strip())]
    main += _present(method_tables.predicted_table(facts))
    if study.merged_draws:
        main.append(Fold("Each draw", (method_tables.main_table(study),)))
    metric_tables = tuple(method_tables.other_metrics(facts))
    if metric_tables:
        main.append(Fold("Other metrics", metric_tables))
    followed = "Numbers of each draw lead" if study.merged_draws else "Follow a number"
    lead = f"{facts.common_note} {followed} to the runs behind it.".strip()
    sections = [
        Section("results", "Results", tuple(main), (*claimed, *remarks(facts)), lead),
        Section("methods", "All methods", many_methods.overview(facts)),
        Section("honest", "Honest clients", _present(method_tables.honest_table(facts))),
        Section(
            "unseen",
            "Unseen clients",
            _present(method_tables.unseen_table(facts), claims_tables.unseen_paired_table(facts)),
        ),
        Section("rounds", "Over rounds", _present(_lines(facts), cost_tables.pace_table(facts))),
        Section(
            "clock",
            "Over simulated time",
            _present(
                clock_tables.clock_figure(facts),
                clock_tables.clock_table(facts),
                clock_claims.goal_claims_table(facts),
                *clock_tables.equal_tables(facts),
            ),
        ),
        Section(
            "privacy",
            "Privacy",
            _present(cost_tables.privacy_table(facts), cost_tables.privacy_figure(facts)),
        ),
        Section(
            "costs",
            "What it costs",
            _present(cost_tables.costs_table(facts), cost_tables.bytes_figure(facts)),
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
        Section(
            "training",
            "How it was trained",
            training_tables.training_tables(facts),
            # Advice on what to change comes too late here.
            tuple(f"{note.partition('. Try: ')[0]}." for note in facts.plan.notes),
        ),
        _partitions(facts),
        _references(facts),
    ]
    return [section for section in sections if section.blocks or section.remarks]


def _present(*blocks: Block | None) -> tuple[Block, ...]:
    return tuple(block for block in blocks if block is not None)


def _analyses(facts: Facts) -> Section:
    """Return the section of analyses; missing ones are named."""
    merged = facts.merged_draws or facts
    names = {setting: facts.short_name(setting) for setting in facts.settings}
    undrawn = {setting: merged.short_name(setting) for setting in merged.settings}
    shown: list[Block | Fold] = []
    notes = []
    for analysis in facts.analyses:
        if analysis.problem:
            notes.append(analysis.problem)
            continue
        frame = merged.with_units(analysis.table) if len(analysis.table) else analysis.table
        table = analysis_results.analysis_table(
            analysis, frame, facts.methods, undrawn, merged.replicates
        )
        if table is not None:
            long = len(table.rows) > analysis_results.MAX_ROWS
            fold = Fold(f"{analysis.title}, {len(table.rows)} rows", (table,))
            shown.append(fold if long else table)
        picture = analysis_results.analysis_figure(analysis, facts.methods, names)
        if picture is not None:
            shown.append(
                Fold(f"{analysis.title}, each draw", (picture,)) if facts.merged_draws else picture
            )
        if analysis.record is not None:
            notes += [f"{analysis.title}: {note}" for note in analysis.record.notes]
    return Section("analyses", "Analyses", tuple(shown), tuple(notes))


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
    notes = tuple(f"{partition.title}: {note}" for partition in items for note in partition.remarks)
    picture = Figure("partitions", caption, tuple(panels), note=note)
    shown: tuple[Block | Fold, ...] = (picture, partitions.sizes_table(items), *folds)
    return Section("partitions", "Partitions", shown, notes)


def _references(facts: Facts) -> Section:
    lead = f"As BibTeX: {facts.plan.study}.bib, beside this page."
    items = tuple(
        f"{components}: {citation}" for components, citation in references.shown_citations(facts)
    )
    return Section("references", "References", (), items, lead)


def _panels(facts: Facts, draw: Callable[[StudySetting], Panel | None]) -> tuple[Panel, ...]:
    """Return a panel for each setting with something to draw, with its name in the description."""
    drawn = [panel for setting in facts.settings if (panel := draw(setting)) is not None]
    return tuple(replace(panel, alt=f"{panel.title}: {panel.alt}") for panel in drawn)


def _means_text(facts: Facts, setting: StudySetting) -> str:
    """Return final means as text: ``FedAvg 81.6; Local 75.1``."""
    rows = rows_of_setting(facts.summary, setting)
    named = zip(rows["method"], rows["mean"], strict=True)
    return "; ".join(f"{facts.methods[m]} {number(v, facts.metric)}" for m, v in named)


def _diverged(facts: Facts) -> str:
    """``FedAvg 1 of 3``: how many runs of each method diverged, at its chosen points."""
    chosen = facts.runs[facts.runs["selected"]]
    counts = (
        (chosen["state"] == DIVERGED).groupby(chosen["method"], sort=False).agg(["sum", "size"])
    )
    lost = counts[counts["sum"] > 0].itertuples(name=None)
    return "; ".join(f"{facts.methods[method]} {n} of {count}" for method, n, count in lost)


def _lines(facts: Facts) -> Figure | None:
    """Return the figure of curves over rounds; None without any."""
    metric = facts.metric
    frame = plots.curve_frame(facts)
    series = series_of(facts)
    shares = metric == "accuracy" and bool(facts.partitions)

    def draw(setting: StudySetting) -> Panel | None:
        lines = rows_of_setting(frame, setting)
        if lines.empty:
            return None
        majority = facts.majority(setting).mean() if shares else None
        alt = f"test {unit(metric)} over rounds; final means {_means_text(facts, setting)}."
        picture = figures.curves(lines, series, metric, majority)
        return Panel(facts.short_name(setting), alt, picture)

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
    if diverged := _diverged(facts):
        notes.append(f"Diverged runs have no curve and count in no mean: {diverged}.")
    if shares:
        notes.append("Dashed grey: the majority class of each client, mean over clients.")
    notes += [series.note] if series.note else []
    panels = _panels(facts, draw)
    return Figure("rounds", caption, panels, note=" ".join(notes)) if panels else None


def _strips(facts: Facts) -> Figure | None:
    """Return the figure of every client's final value; None without any."""
    frame = plots.client_frame(facts)
    series = series_of(facts)

    def draw(setting: StudySetting) -> Panel | None:
        values = rows_of_setting(frame, setting)
        if values.empty:
            return None
        alt = (
            f"final test {unit(facts.metric)} of every client; means {_means_text(facts, setting)}."
        )
        picture = figures.strips(values, series, facts.metric)
        return Panel(facts.short_name(setting), alt, picture)

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
