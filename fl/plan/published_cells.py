"""Published numbers beside a study's own: the cells of published tables that its report shows."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import ConfigError, Location, unknown_name
from fl.base.schema import COSTS, PACE
from fl.data.dataset import group_title, modalities_of, modality_groups, task_of
from fl.plan.config import Cells
from fl.plan.published_tables import PublishedCell, find_cell, read_table
from fl.plan.study_plan import ComparedCell

if TYPE_CHECKING:
    from fl.plan.expand import Expansion
    from fl.plan.scenario import Scenario


def published_cells(expansion: Expansion, folder: Path) -> list[ComparedCell]:
    """Return the published cells that a study names.

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
