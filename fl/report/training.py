"""The training settings of a study: what all methods share, and where they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fl.api.training import Training
from fl.base.units import written
from fl.report.cells import NOTHING, Cell, Row, Table, columns
from fl.report.facts import Facts

Values = Mapping[str, list[Any]]
"""The keys of an entry's training, each with its values over the points of a grid."""

FINER = {
    "Stragglers of a round's clients": "stragglers",
    "Stragglers' work": "partial_work",
    "Last batch left out": "drop_last",
    "Precision": "precision",
    "Memory format": "memory_format",
    "Normalisation": "normalisation",
    "Augmentation": "augmentation",
    "Rounds between evaluations": "evaluate_every",
}
"""Shown only where a study does not leave it at the default."""


def training_tables(facts: Facts) -> tuple[Table, ...]:
    """What all methods share, and a line for each method; none for a plan that does not say."""
    entries = {m: e for m, e in (facts.plan.get("entries") or {}).items() if m in facts.methods}
    if not entries:
        return ()
    told = [_told(entry["training"]) for entry in entries.values()]
    for name, key in FINER.items():
        default = [getattr(Training(), key)]
        given = [entry["training"][key] for entry in entries.values()]
        if any(values != default for values in given):
            for texts, values in zip(told, given, strict=True):
                texts[name] = _list(f"{100 * v:g} %" if key == "stragglers" else v for v in values)
    differing = [name for name in told[0] if len({texts[name] for texts in told}) > 1]
    shared = {name: text for name, text in told[0].items() if name not in differing}
    rows = [Row(name, (Cell(text),)) for name, text in [*shared.items(), *_named(facts)]]
    heads = columns("Setting", "value", text=("value",))
    table = Table("training", "How all methods were trained.", heads, tuple(rows))
    differences = [{name.lower(): texts[name] for name in differing} for texts in told]
    return table, _methods_table(facts, entries, differences)


def _told(values: Values) -> dict[str, str]:
    """An entry's training in words."""
    return {
        "Rounds": _list(values["rounds"]),
        "Local work in a round": _work(values),
        "Batch size": _list(values["batch_size"]),
        "Optimizer": _optimizer(values),
        "Learning rate": _list(values["lr"]),
        "Schedule": _schedule(values),
        "Participation": _participation(values["participation"]),
    }


def _work(values: Values) -> str:
    """``2 epochs``, ``50 steps``, or a grid of them."""
    texts = []
    for key, word in (("local_epochs", "epoch"), ("local_steps", "step")):
        given = [value for value in values[key] if value is not None]
        if given:
            texts.append(f"{_list(given)} {word}{'' if given == [1] else 's'}")
    return " or ".join(texts)


def _optimizer(values: Values) -> str:
    names = {"sgd": "SGD", "adamw": "AdamW"}
    text = _list(names.get(name, name) for name in values["optimizer"])
    if values["optimizer"] != ["adamw"]:
        text += f", momentum {_list(values['momentum'])}"
    return f"{text}, weight decay {_list(values['weight_decay'])}"


def _schedule(values: Values) -> str:
    text = _list(values["schedule"])
    if {"exponential", "step"} & set(values["schedule"]):
        text += f", decay {_list(values['lr_decay'])}"
    if "step" in values["schedule"]:
        text += f" every {_list(values['lr_decay_every'])} rounds"
    return text


def _participation(shares: Iterable[float]) -> str:
    texts = [f"{100 * share:g} %" for share in shares]
    return "all clients" if texts == ["100 %"] else f"{_list(texts)} of the clients"


def _named(facts: Facts) -> Iterator[tuple[str, str]]:
    """Models with their numbers of parameters, what titles stand for, and the seeds."""
    titles = facts.plan.get("titles") or {}
    data = titles.get("dataset", {})
    for model, sizes in facts.plan["models"].items():
        text = f"{next(iter(sizes.values())):,} parameters"
        if len(set(sizes.values())) > 1:
            each = (f"{size:,} on {data.get(name, name)}" for name, size in sizes.items())
            text = f"parameters: {'; '.join(each)}"
        title = titles.get("model", {}).get(model)
        yield f"Model: {title or model}", f"{model}, {text}" if title else text
    for kind, word in (("dataset", "Data set"), ("partition", "Partition")):
        for text, title in titles.get(kind, {}).items():
            yield f"{word}: {title}", text
    yield "Training seeds", _list(facts.plan["seeds"])


def _methods_table(
    facts: Facts, entries: Mapping[str, Any], differences: list[dict[str, str]]
) -> Table:
    starts = any(entry["start"] for entry in entries.values())
    rows = []
    for (method, entry), texts in zip(entries.items(), differences, strict=True):
        hyper = "; ".join(f"{key} = {_list(v)}" for key, v in entry["values"].items()) or NOTHING
        start = [facts.methods.get(entry["start"], NOTHING)] if starts else []
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
    return ", ".join(f"{v:g}" if isinstance(v, float) else written(v) for v in values)
