"""Tables of a study's training settings: those that all methods share, and those that differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fl.api.training import Training
from fl.base.units import config_text
from fl.plan.study_plan import EntrySummary
from fl.report.cells import NOTHING, Cell, Row, Table, columns
from fl.report.facts import Facts

ALWAYS_SHOWN = (
    "rounds",
    "local_epochs",
    "local_steps",
    "batch_size",
    "optimizer",
    "lr",
    "schedule",
)
"""Keys that are always shown; others are shown if a study does not use their default."""


def training_tables(facts: Facts) -> tuple[Table, ...]:
    """Return the settings that all methods share, and those of each; none without a plan."""
    entries = {m: e for m, e in facts.plan.entries.items() if m in facts.methods}
    if not entries:
        return ()
    default = {key: _list([value]) for key, value in vars(Training()).items()}
    # A grid has several values; either epochs or steps are None.
    texts_by_entry = [
        {key: _list(v for v in values if v is not None) for key, values in e.training.items()}
        for e in entries.values()
    ]
    keys = [
        key
        for key in texts_by_entry[0]
        if any(
            texts[key] and (key in ALWAYS_SHOWN or texts[key] != default[key])
            for texts in texts_by_entry
        )
    ]
    differing = [key for key in keys if len({texts[key] for texts in texts_by_entry}) > 1]
    shared = [(_name(key), texts_by_entry[0][key]) for key in keys if key not in differing]
    rows = [Row(name, (Cell(text),)) for name, text in [*shared, *_named(facts)]]
    heads = columns("Key", "value", text=("value",))
    caption = "How all methods were trained. A key of training that is not here has its default."
    table = Table("training", caption, heads, tuple(rows))
    differences = [
        {_name(key): texts[key] or NOTHING for key in differing} for texts in texts_by_entry
    ]
    return table, _methods_table(facts, entries, differences)


def _name(key: str) -> str:
    return key.replace("_", " ")


def _named(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield names and texts of models with parameters and heads, of titles, and of seeds."""
    titles = facts.plan.titles
    data = titles.get("dataset", {})
    for model, sizes in facts.plan.models.items():
        text = f"{next(iter(sizes.values())):,} parameters"
        if len(set(sizes.values())) > 1:
            sizes_text = (f"{size:,} on {data.get(name, name)}" for name, size in sizes.items())
            text = f"parameters: {'; '.join(sizes_text)}"
        if head := facts.plan.heads.get(model):
            text += f", head: {head}"
        title = titles.get("model", {}).get(model)
        yield f"Model: {title or model}", f"{model}, {text}" if title else text
    for kind, word in (("dataset", "Data set"), ("partition", "Partition")):
        for text, title in titles.get(kind, {}).items():
            yield f"{word}: {title}", text
    has_draws = any(run.draw for run in facts.plan.runs)
    by_draw = "one of each draw: " if has_draws and not facts.shares_training_seeds else ""
    yield "Training seeds", by_draw + _list(facts.plan.seeds)
    entries = facts.plan.entries.values()
    batch = max((max(entry.training.get("batch_size", [0])) for entry in entries), default=0)
    if small := _small_clients(facts, batch):
        yield (
            "Small clients",
            f"{small} have fewer training samples than a batch of {batch}: their samples repeat in "
            "it, which batch normalisation counts and the loss does not",
        )


def _small_clients(facts: Facts, batch: int) -> str:
    """Return how many clients have less than a batch, ``3 of 10 clients``; empty if none."""
    sizes = [p.counts["train"].sum(axis=1) for p in facts.partitions.values()]
    counts = sorted({(int(((size > 0) & (size < batch)).sum()), len(size)) for size in sizes})
    return " or ".join(f"{n} of {m} clients" for n, m in counts if n)


def _methods_table(
    facts: Facts, entries: Mapping[str, EntrySummary], differences: list[dict[str, str]]
) -> Table:
    starts = any(entry.start for entry in entries.values())
    rows = []
    for (method, entry), texts in zip(entries.items(), differences, strict=True):
        hyper = "; ".join(f"{key} = {_list(v)}" for key, v in entry.values.items()) or NOTHING
        start = [facts.methods.get(entry.start or "", NOTHING)] if starts else []
        cells = map(Cell, [hyper, *start, *texts.values()])
        rows.append(Row(facts.methods[method], tuple(cells)))
    names = ["hyper-parameters", *(["starts from"] if starts else []), *differences[0]]
    caption = (
        "How methods were trained where they differ. Several values are a grid, of which "
        "validation data chooses."
    )
    if starts:
        caption += " A method that starts from another's model trains it further: its rounds add."
    return Table("trained", caption, columns("Method", *names, text=names), tuple(rows))


def _list(values: Iterable[Any]) -> str:
    return ", ".join(f"{v:g}" if isinstance(v, float) else config_text(v) for v in values)
