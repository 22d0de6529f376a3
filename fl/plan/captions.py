"""What a report needs of a plan besides runs: titles, sizes of models, how entries train.

None of it decides a number; it is read from the runs' specs, which do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from fl.base import registry
from fl.plan.study_plan import EntrySummary

if TYPE_CHECKING:
    from fl.plan.expand import Expansion, Run


def entries(expansion: Expansion) -> dict[str, EntrySummary]:
    """Return a summary of each method entry by label."""
    specs: dict[str, list[dict[str, Any]]] = {}
    for run in expansion.runs:
        specs.setdefault(run.label, []).append(run.spec)
    return {
        label: _entry(of_entry, _before(expansion.study.methods[label] or {}))
        for label, of_entry in specs.items()
    }


def names(expansion: Expansion) -> dict[str, list[str]]:
    """Return the names of all components that a study uses, by kind of the registry."""
    from fl.data.materials import task_name  # They import pandas, as planning has by now.
    from fl.plan.specs import KINDS

    names: dict[str, set[str]] = {
        "analysis": {analysis.entry.name for analysis in expansion.analyses},
        "task": {task_name(run.spec["dataset"]) for run in expansion.runs},
    }
    for run in expansion.runs:
        for key, kind in KINDS.items():
            given = run.spec.get(key, ())
            for each in [given] if isinstance(given, Mapping) else given:
                names.setdefault(kind, set()).add(each["name"])
    return {kind: sorted(names.get(kind, ())) for kind in registry.FOLDERS}


def titles(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    """Return the user's titles of data sets, partitions and models, by kind and text."""
    return {
        kind: {choice.text: choice.title for choice in map(attrgetter(kind), runs) if choice.title}
        for kind in ("dataset", "partition", "model")
    }


def _before(given: Mapping[str, Any]) -> str | None:
    """The entry that one starts from, or on whose images it trains."""
    on = given.get("train_on")
    return on if isinstance(on, str) else given.get("start")


def _entry(specs: list[dict[str, Any]], start: str | None) -> EntrySummary:
    return EntrySummary(
        method=specs[0]["method"]["name"],
        start=start,
        training=_values(spec["training"] for spec in specs),
        values=_values(map(_hyper, specs)),
    )


def _hyper(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a method and of what is added to it, ``mk-mmd.mu``."""
    hyper = {key: value for key, value in spec["method"].items() if key != "name"}
    for _, _, added in registry.added(spec):
        hyper |= {f"{added['name']}.{key}": value for key, value in added.items() if key != "name"}
    return hyper


def _values(each: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    by_key: dict[str, list[Any]] = {}
    for values in each:
        for key, value in values.items():
            known = by_key.setdefault(key, [])
            if value not in known:
                known.append(value)
    return by_key
