"""Extra: published numbers beside a study's own, and published hyper-parameters.

They are in ``config/published/<source>.csv``, one cell of a table in a line. A whole file is
checked before a cell of it is read, because a value that is no number, or a cell that occurs twice,
would put a wrong number beside ours.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.base.fields import Field
from fl.base.files import is_file
from fl.base.schema import COSTS, PACE
from fl.data.dataset import group_title, modalities_of, modality_groups, task_of
from fl.plan.config import Best, Cells, Draft
from fl.plan.study_plan import ComparedCell

if TYPE_CHECKING:
    from fl.plan.expand import Expansion
    from fl.plan.scenario import Scenario


def check_tables(folder: Path, draft: Draft, problems: ConfigProblems) -> None:
    """Collect tables that do not exist, and entries of ``best`` that the study does not have.

    Joins `fl.plan.expand.STUDY_CHECKS`.
    """
    study, location = draft.study, draft.location
    cells_by_location: dict[Location, Cells | Best] = {
        location / "published" / i: cells for i, cells in enumerate(study.published)
    }
    cells_by_location |= {location / "best": study.best} if study.best else {}
    for cells_location, cells in cells_by_location.items():
        with problems.collected():
            read_table(folder, cells.source, cells.table, cells_location)
    rows_location = location / "best" / "rows"
    for label in study.best.rows if study.best and "methods" not in draft.wrong_keys else ():
        if label not in study.methods:
            problems.errors.append(
                unknown_name(rows_location / label, "entry", label, study.methods)
            )


def published_values(
    folder: Path, draft: Draft, label: str, declared_fields: Mapping[str, Field]
) -> dict[str, float] | None:
    """Return the published hyper-parameters of an entry where the study has `grid: published`.

    Joins `fl.plan.grids.ENTRY_VALUES`.
    """
    best, location = draft.study.best, draft.location / "best"
    if draft.study.grid != "published":
        return {}
    if "best" in draft.wrong_keys:
        return None
    if best is None:
        raise ConfigError(location, "is missing, as grid is published", advice="set `best`")
    cells = read_table(folder, best.source, best.table, location)
    values: dict[str, float] = {}
    for key, row in best.rows.get(label, {}).items():
        row_location = location / "rows" / label / key
        if key not in declared_fields:
            raise unknown_name(row_location, "key", key, declared_fields)
        values[key] = find_cell(cells, row, best.column, row_location).value
    return values


def published_cells(expansion: Expansion, folder: Path) -> list[ComparedCell]:
    """Return the published cells that a study names; joins `study_planning.PUBLISHED_CELLS`.

    Raises:
        ConfigError: For a cell that does not exist or is named twice, and for an entry, a setting,
            a model, a domain, a modality, a metric or a round that the study does not have.
    """
    compared: list[ComparedCell] = []
    for i, cells in enumerate(expansion.study.published):
        location = expansion.location / "published" / i
        table = read_table(folder, cells.source, cells.table, location)
        scenarios = [
            scenario
            for scenario in expansion.scenarios.values()
            if cells.model in (None, scenario.model.text)
        ]
        if not scenarios:
            models = dict.fromkeys(model for _, _, model in expansion.scenarios)
            raise unknown_name(location / "model", "model", str(cells.model), models)
        _check_quantity(cells, expansion, location)
        for label in cells.rows:
            if label not in expansion.study.methods:
                raise unknown_name(
                    location / "rows" / label, "entry", label, expansion.study.methods
                )
        scenarios_of: dict[str, list[Scenario]] = {}
        for scenario in scenarios:
            for text in dict.fromkeys((scenario.dataset.text, scenario.scheme.text)):
                scenarios_of.setdefault(text, []).append(scenario)
        for text, columns in cells.columns.items():
            if text not in scenarios_of:
                raise unknown_name(
                    location / "columns" / text, "data set or partition", text, scenarios_of
                )
            by_domain = columns if isinstance(columns, dict) else {None: columns}
            for (domain, column), (label, row) in product(by_domain.items(), cells.rows.items()):
                clients = _clients(cells, domain, text, scenarios_of[text], location)
                published = find_cell(table, row, column, location)
                cell: ComparedCell = {**_cell(cells, published, label, text), **clients}
                if cell in compared:
                    problem = f"the cell {row} / {column} is a duplicate for {label} on {text}"
                    raise ConfigError(location, problem, advice="each cell once")
                compared.append(cell)
    return compared


def _check_quantity(cells: Cells, expansion: Expansion, location: Location) -> None:
    """Raise `ConfigError` for a metric that the study does not measure, or not by clients."""
    dataset = next(iter(expansion.scenarios.values())).dataset
    metrics = task_of(dataset.instance, dataset.component.name).metrics
    if cells.metric is not None and cells.metric not in metrics:
        _check_other_metric(cells.metric, expansion, metrics, location / "metric")
        by_domain = any(isinstance(columns, dict) for columns in cells.columns.values())
        if cells.round is not None or cells.modality is not None or cells.unseen or by_domain:
            problem = f"is {cells.metric}, which no round and no group of clients has by itself"
            raise ConfigError(location / "metric", problem, ", ".join(metrics))
    if cells.round is not None:
        for run in expansion.runs:
            last, step = (run.spec["training"][key] for key in ("rounds", "evaluate_every"))
            if cells.round > last or (cells.round % step and cells.round != last):
                problem = f"is {cells.round}, but runs record every {step} rounds up to {last}"
                raise ConfigError(location / "round", problem, "a round that is recorded")


def _check_other_metric(
    metric: str, expansion: Expansion, metrics: tuple[str, ...], location: Location
) -> None:
    """Raise `ConfigError` unless a metric is a cost, a pace or a column of an analysis."""
    analyses = [choice.component.name for choice in expansion.analyses]
    pace = next(filter(metric.startswith, PACE), "")
    entry = metric.removeprefix(pace)
    if pace and entry not in expansion.study.methods:
        raise unknown_name(location, "entry", entry, expansion.study.methods)
    if not pace and metric not in COSTS and entry.partition(".")[0] not in analyses:
        allowed = [*metrics, *COSTS, *(f"{name}.COLUMN" for name in analyses)]
        allowed += [f"{prefix}ENTRY" for prefix in PACE]
        raise unknown_name(location, "metric", metric, allowed)


def _clients(
    cells: Cells, domain: str | None, text: str, scenarios: list[Scenario], location: Location
) -> ComparedCell:
    """Return the keys for the clients over whom a cell is a mean; none if over all.

    Args:
        cells: The keys of the study.
        domain: The domain of the column, if columns are by domain.
        text: The data set or partition of the column.
        scenarios: The scenarios with it.
        location: Location of the keys.
    """
    if (domain is not None) + (cells.modality is not None) + cells.unseen > 1:
        problem = "names clients in two ways"
        raise ConfigError(location, problem, "one of domain, modality and unseen")
    if cells.modality is not None:
        number = _modality_number(cells.modality, scenarios, location / "modality")
        return {"modality": cells.modality, "modality_number": number}
    if cells.unseen and not any(s.partition.has_unseen_clients for s in scenarios):
        problem = f"is true, but no client of {text} is held out of training"
        raise ConfigError(location / "unseen", problem, "a partition with `unseen`, or false")
    if domain is None:
        return {"unseen": True} if cells.unseen else {}
    for scenario in scenarios:
        # Which domains a user's own table has is unknown before it is read.
        domains = getattr(scenario.dataset.instance, "domains", (domain,))
        if domain not in domains:
            raise unknown_name(location / "columns" / text / domain, "domain", domain, domains)
    return {"domain": domain}


def _modality_number(name: str, scenarios: list[Scenario], location: Location) -> int:
    """Return the number of a modality, where clients of a data set or partition differ in it."""
    names_of_scenarios = []
    for scenario in scenarios:
        modalities, keys = modalities_of(scenario.dataset.instance), scenario.scheme.values
        # How many modalities a user's own table has is unknown before it is read.
        count = len(modalities) + 1 if "path" in keys else 0
        existing = modality_groups(modalities, len(keys.get("modalities") or ()) or count)
        names_of_scenarios.append([group_title(group) for group in existing])
    for names in names_of_scenarios:
        if name in names:
            return names.index(name)
    all_names = dict.fromkeys(name for names in names_of_scenarios for name in names)
    raise unknown_name(location, "modality", name, all_names)


def _cell(cells: Cells, published: PublishedCell, label: str, text: str) -> ComparedCell:
    """Return what the study's plan says of a published cell."""
    cell: ComparedCell = {
        "source": cells.source,
        "table": published.table,
        "row": published.row,
        "column": published.column,
        "note": published.note,
        "value": published.value,
        "sd": published.sd,
        "method": label,
        "setting": text,
    }
    if cells.model is not None:
        cell["model"] = cells.model
    if cells.metric is not None:
        cell["metric"] = cells.metric
    if cells.round is not None:
        cell["round"] = cells.round
    if cells.unit != 1:
        cell["unit"] = cells.unit
    return cell


HEADS = ("table", "row", "column", "value", "sd", "note")
"""Columns of a file; a file may have others."""
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class PublishedCell:
    """A cell of a published table.

    Attributes:
        table: Name of the table.
        row: Name of the row.
        column: Name of the column.
        value: The number.
        sd: Its standard deviation, if it is published.
        note: A remark.
    """

    table: str
    row: str
    column: str
    value: float
    sd: float | None
    note: str


PublishedTable = dict[tuple[str, str], PublishedCell]
"""The cells of a table by row and column."""


def read_table(folder: Path, source: str, name: str, location: Location) -> PublishedTable:
    """Return the cells of one table of a source.

    Args:
        folder: The config folder.
        source: Name of the file in ``published/``.
        name: Name of the table.
        location: Location of the keys that name both.

    Raises:
        ConfigError: If there is no such file or table, or for a line of the file that is wrong.
    """
    path = folder / "published" / source
    if not is_file(path):
        names = (file.name for file in path.parent.glob("*.csv"))
        raise unknown_name(location / "source", "file", source, names)
    cells = _read_cells(path)
    tables = dict.fromkeys(cell.table for cell in cells)
    if name not in tables:
        raise unknown_name(location / "table", "table", name, tables)
    return {(cell.row, cell.column): cell for cell in cells if cell.table == name}


def find_cell(cells: PublishedTable, row: str, column: str, location: Location) -> PublishedCell:
    """Return a cell of a table; raise `ConfigError` if there is none."""
    if (row, column) not in cells:
        raise unknown_name(location, "cell", f"{row} / {column}", (f"{r} / {c}" for r, c in cells))
    return cells[row, column]


def _read_cells(path: Path) -> list[PublishedCell]:
    """Return every cell of a file."""
    location = Location(os.path.relpath(path))
    cells: list[PublishedCell] = []
    line_numbers: dict[tuple[str, str, str], int] = {}
    for number, line in _read_lines(path, location):
        line_location = location / f"line {number}"
        key = (line["table"], line["row"], line["column"])
        if not all(text and text.strip() == text for text in key):
            raise ConfigError(line_location, f"is {', '.join(key)!r}", "a table, a row, a column")
        if key in line_numbers:
            problem = f"the cell {' / '.join(key)} is a duplicate of line {line_numbers[key]}"
            raise ConfigError(line_location, problem, advice="each cell once")
        line_numbers[key] = number
        value = _read_number(line["value"], "value", line_location)
        sd = _read_number(line["sd"], "sd", line_location) if line["sd"] else None
        cells.append(PublishedCell(*key, value, sd, line["note"]))
    return cells


def _read_lines(path: Path, location: Location) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the lines after the first, each with its number and its fields by `HEADS`."""
    try:
        # Spreadsheets begin a file with a mark that is no part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            heads = next(reader, [])
            if any(heads.count(head) != 1 for head in HEADS):
                problem = f"the first line is {','.join(heads)[:100]!r}"
                raise ConfigError(location, problem, ",".join(HEADS))
            for line in filter(None, reader):
                if len(line) != len(heads):
                    problem, allowed = f"has {len(line)} fields", f"{len(heads)}, as the first line"
                    raise ConfigError(location / f"line {reader.line_num}", problem, allowed)
                yield reader.line_num, dict(zip(heads, line, strict=True))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(location, f"cannot be read: {error}", "a file in UTF-8") from None
    except csv.Error as error:
        raise ConfigError(location / f"line {reader.line_num}", f"is no CSV: {error}") from None


def _read_number(text: str, column: str, location: Location) -> float:
    location = location / column
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ConfigError(location, f"is {text[:40]!r}", "a finite number: 71.2, 1e-3")
    if column == "sd" and float(text) < 0:
        raise ConfigError(location, f"is {text[:40]!r}", "a number >= 0, or nothing")
    return float(text)
