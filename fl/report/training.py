"""The training settings of a study: what all methods share, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fl.api.training import Training
from fl.report.cells import NOTHING, Cell, Group, Row, Table
from fl.report.facts import Facts

Values = Mapping[str, list[Any]]
"""The keys of an entry's training, each with its values over the points of a grid."""


def _plain(key: str) -> Callable[[Values], str]:
    return lambda values: _list(values[key])


def _work(values: Values) -> str:
    """``2 epochs``, ``50 steps``, or a grid of them."""
    found = []
    for key, word in (("local_epochs", "epoch"), ("local_steps", "step")):
        there = [value for value in values[key] if value is not None]
        if there:
            found.append(f"{_list(there)} {word}{'' if there == [1] else 's'}")
    return " or ".join(found)


def _optimizer(values: Values) -> str:
    names = {"sgd": "SGD", "adamw": "AdamW"}
    text = _list([names.get(name, name) for name in values["optimizer"]])
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


def _participation(values: Values) -> str:
    shares = [f"{100 * share:g} %" for share in values["participation"]]
    return "all clients" if shares == ["100 %"] else f"{_list(shares)} of the clients"


def _stragglers(values: Values) -> str:
    shares = [f"{100 * share:g} %" for share in values["stragglers"]]
    if shares == ["0 %"]:
        return "none"
    return f"{_list(shares)} of a round's clients, their work {_list(values['partial_work'])}"


SHOWN: dict[str, Callable[[Values], str]] = {
    "Rounds": _plain("rounds"),
    "Local work in a round": _work,
    "Batch size": _plain("batch_size"),
    "Optimizer": _optimizer,
    "Learning rate": _plain("lr"),
    "Schedule": _schedule,
    "Participation": _participation,
}
FINER = {
    "Stragglers": "stragglers",
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
    lines = {name: [say(e["training"]) for e in entries.values()] for name, say in _shown(entries)}
    shared = {name: texts[0] for name, texts in lines.items() if len(set(texts)) == 1}
    differing = {name: texts for name, texts in lines.items() if name not in shared}
    return _shared_table(facts, shared), _methods_table(facts, entries, differing)


def _shown(entries: Mapping[str, Any]) -> Iterable[tuple[str, Callable[[Values], str]]]:
    default = Training()
    yield from SHOWN.items()
    for name, key in FINER.items():
        # A plan of before a key was there does not have it.
        own = [getattr(default, key)]
        if any(e["training"].get(key, own) != own for e in entries.values()):
            yield name, _stragglers if key == "stragglers" else _plain(key)


def _shared_table(facts: Facts, shared: Mapping[str, str]) -> Table:
    lines = [(name, text) for name, text in shared.items()]
    lines += [(f"Model: {name}", text) for name, text in _models(facts)]
    lines += [(f"{kind}: {title}", text) for kind, title, text in _titled(facts)]
    lines.append(("Training seeds", _list(facts.plan["seeds"])))
    rows = tuple(Row(Cell(name), (Cell(text),)) for name, text in lines)
    caption = "How all methods were trained."
    return Table("training", caption, "Setting", ("value",), (Group("", rows),), text=1)


def _models(facts: Facts) -> Iterable[tuple[str, str]]:
    """Every model with its number of parameters, by data set where that differs."""
    titles = (facts.plan.get("titles") or {}).get("dataset", {})
    for model, sizes in facts.plan["models"].items():
        if len(set(sizes.values())) == 1:
            text = f"{next(iter(sizes.values())):,} parameters"
        else:
            each = (f"{n:,} on {titles.get(data, data)}" for data, n in sizes.items())
            text = f"parameters: {'; '.join(each)}"
        title = (facts.plan.get("titles") or {}).get("model", {}).get(model)
        yield title or model, f"{model}, {text}" if title else text


def _titled(facts: Facts) -> Iterable[tuple[str, str, str]]:
    """What the titles of data sets and partitions stand for."""
    for kind in ("dataset", "partition"):
        for text, title in (facts.plan.get("titles") or {}).get(kind, {}).items():
            yield {"dataset": "Data set"}.get(kind, "Partition"), title, text


def _methods_table(
    facts: Facts, entries: Mapping[str, Any], differing: Mapping[str, list[str]]
) -> Table:
    starts = any(entry["start"] for entry in entries.values())
    rows = []
    for i, (method, entry) in enumerate(entries.items()):
        hyper = "; ".join(f"{key} = {_list(v)}" for key, v in entry["values"].items()) or NOTHING
        start = facts.methods.get(entry["start"], NOTHING)
        texts = [hyper, *([start] if starts else []), *(texts[i] for texts in differing.values())]
        rows.append(Row(Cell(facts.methods[method]), tuple(map(Cell, texts))))
    columns = ("hyper-parameters", *(["starts from"] if starts else []), *map(str.lower, differing))
    caption = (
        "How methods were trained where they differ. Several values are a grid, of which "
        "validation data chooses."
    )
    if starts:
        caption += " A method that starts from another's model trains it further: its rounds add."
    group = Group("", tuple(rows))
    return Table("trained", caption, "Method", columns, (group,), text=len(columns))


def _list(values: Iterable[Any]) -> str:
    return ", ".join(_one(value) for value in values)


def _one(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return f"[{_list(value)}]"
    return "none" if value is None else str(value)
