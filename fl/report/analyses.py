"""A report's section on analyses of stored runs, see `fl.plan.analyses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.base import files, parquet
from fl.base.errors import DataError
from fl.base.schema import SETTING, StudySetting
from fl.plan import analyses
from fl.plan.analyses import PAGE, PDF, RECORD, SVG, TABLE
from fl.report.cells import NOTHING, Cell, Group, Row, Table, spread
from fl.report.figures import Drawn, Figure, Panel

LONG = 30
"""Rows from which on a table is folded."""
KEYS = {"stage": "stage", "round": "round"}
"""Columns that are told apart in the report and hold no result, and what they are called."""


@dataclass(frozen=True)
class Analysis:
    """An analysis that a study asks for.

    Attributes:
        record: The content of `analysis.json`; empty if there is none, for which ``trouble`` gives
            the reason.
    """

    title: str
    record: Mapping[str, Any]
    table: pd.DataFrame
    pictures: tuple[Drawn, ...] = ()
    trouble: str = ""


def read(results: Path, planned: Mapping[str, Any]) -> Analysis:
    """A planned analysis of a study, as far as it is there."""
    title, folder = (
        planned["title"] or planned["text"],
        analyses.place(results, planned["analysis"]),
    )
    try:
        record = files.read_sealed(folder / RECORD)
        for name, described in record["files"].items():
            if problem := files.damage(folder / name, described):
                raise DataError(problem)
        pictures = tuple(_drawn(folder, panel["figure"]) for panel in record["panels"])
        return Analysis(title, record, parquet.read(folder / TABLE)[0], pictures)
    except FileNotFoundError:
        trouble = f"{title}: not there yet; `python -m fl analyse {planned['analysis']}` makes it"
    except (DataError, OSError, KeyError, TypeError) as error:
        trouble = f"{title}: cannot be read ({error}); remove {folder}, and it is made again"
    return Analysis(title, {}, pd.DataFrame(), trouble=trouble)


def _drawn(folder: Path, name: str) -> Drawn:
    content = {end: (folder / f"{name}{end}").read_bytes() for end in (PDF, SVG)}
    return Drawn((folder / f"{name}{PAGE}").read_text(), content)


@dataclass(frozen=True)
class Names:
    """The report's names of methods and settings, in its order."""

    methods: Mapping[str, str]
    settings: Mapping[StudySetting, str]


def table(found: Analysis, name: str, names: Names) -> Table | None:
    """Its table: every column of floats as mean ± standard deviation over seeds."""
    if found.table.empty:
        return None
    shown = found.record["columns"]
    keys = [key for key in KEYS if key in found.table]
    groups = []
    for setting, called in names.settings.items():
        own = found.table[(found.table[SETTING] == list(setting)).all(axis=1)]
        rows = []
        for method, title in names.methods.items():
            for values, part in _parts(own[own["method"] == method], keys):
                cells = [Cell(str(value)) for value in values]
                cells += [Cell(_spread(part[column])) for column in shown]
                rows.append(Row(Cell(title), (*cells, Cell(str(part["seed"].nunique())))))
        if rows:
            groups.append(Group(called, tuple(rows)))
    caption = f"{found.record['caption']} Mean ± standard deviation over seeds."
    if len(groups) == 1:
        caption += f" Setting: {groups[0].heading}." if groups[0].heading else ""
        groups = [Group("", groups[0].rows)]
    columns = (*(KEYS[key] for key in keys), *shown.values(), "seeds")
    text = 1 if keys[:1] == ["stage"] else 0
    return Table(name, caption, "Method", columns, tuple(groups), text)


def _parts(rows: pd.DataFrame, keys: list[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    if not keys or rows.empty:
        return [((), rows)] if len(rows) else []
    return [(values, part) for values, part in rows.groupby(keys, sort=True)]


def _spread(values: pd.Series) -> str:
    known = values[np.isfinite(values)]
    return spread(known.mean(), known.std(), "") if len(known) else NOTHING


def figure(found: Analysis, name: str, names: Names) -> Figure | None:
    """Its pictures, each under its setting, where there are several, and its method."""
    panels = []
    for drawn, one in zip(found.pictures, found.record.get("panels", ()), strict=True):
        setting = tuple(one["setting"])
        where = names.settings.get(setting, " · ".join(setting)) if len(names.settings) > 1 else ""
        method = names.methods.get(one["method"], one["method"])
        title = " · ".join(filter(None, (where, method, one["title"])))
        panels.append(Panel(title, f"{title}: {one['alt']}", drawn))
    return Figure(name, found.record["figure"], tuple(panels)) if panels else None
