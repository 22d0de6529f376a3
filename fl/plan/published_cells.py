"""The published numbers that a report sets beside a study's own."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base.errors import ConfigError, Location, unknown
from fl.base.registry import entry_of
from fl.base.schema import COSTS, PACE
from fl.data import materials
from fl.data.modality import groups, named
from fl.plan import published
from fl.plan.config import Cells
from fl.plan.scenario import has_unseen_clients

if TYPE_CHECKING:
    from fl.plan.expand import Expansion, Run


def published_cells(expansion: Expansion, folder: Path) -> list[dict[str, Any]]:
    """The published cells that a study names, looked up in their tables.

    Raises:
        ConfigError: For a cell that is not there or stands twice, and for an entry, a setting, a
            model, a domain, a modality, a metric or a round that the study does not have.
    """
    compared: list[dict[str, Any]] = []
    for i, cells in enumerate(expansion.study.published):
        at = expansion.location / "published" / i
        table = published.table(folder, cells.source, cells.table, at)
        runs = [run for run in expansion.runs if cells.model in (None, run.model.text)]
        if not runs:
            models = dict.fromkeys(run.model.text for run in expansion.runs)
            raise unknown(at / "model", "model", str(cells.model), models)
        _check_quantity(cells, expansion, at)
        for label in cells.rows:
            if label not in expansion.study.methods:
                raise unknown(at / "rows" / label, "entry", label, expansion.study.methods)
        settings = {
            text: [run for run in runs if text in (run.dataset.text, run.partition.text)]
            for run in runs
            for text in (run.dataset.text, run.partition.text)
        }
        for setting, columns in cells.columns.items():
            if setting not in settings:
                place = at / "columns" / setting
                raise unknown(place, "data set or partition", setting, settings)
            by_domain = columns if isinstance(columns, dict) else {None: columns}
            for (domain, column), (label, row) in product(by_domain.items(), cells.rows.items()):
                clients = _clients(cells, domain, setting, settings[setting], at)
                line = published.cell(table, row, column, at)
                cell = _cell(cells, line, label, setting) | clients
                if cell in compared:
                    problem = f"the cell {row} / {column} stands twice for {label} on {setting}"
                    raise ConfigError(at, problem, "each cell once")
                compared.append(cell)
    return compared


def _check_quantity(cells: Cells, expansion: Expansion, at: Location) -> None:
    """Refuse (`ConfigError`) a metric that the study does not measure, or not of some clients."""
    metrics = materials.task_of(expansion.runs[0].dataset.spec).metrics
    analyses = [choice.spec["name"] for choice in expansion.analyses]
    if cells.metric is not None and cells.metric not in metrics:
        kind = next(filter(cells.metric.startswith, PACE), "")
        entry = cells.metric.removeprefix(kind)
        if kind and entry not in expansion.study.methods:
            raise unknown(at / "metric", "entry", entry, expansion.study.methods)
        if not kind and cells.metric not in COSTS and entry.partition(".")[0] not in analyses:
            allowed = [*metrics, *COSTS, *(f"{name}.COLUMN" for name in analyses)]
            allowed += [f"{kind}ENTRY" for kind in PACE]
            raise unknown(at / "metric", "metric", cells.metric, allowed)
        by_domain = any(isinstance(columns, dict) for columns in cells.columns.values())
        if cells.round is not None or cells.modality is not None or cells.unseen or by_domain:
            problem = f"is {cells.metric}, which no round and no group of clients has by itself"
            raise ConfigError(at / "metric", problem, ", ".join(metrics))
    if cells.round is not None:
        for run in expansion.runs:
            last, each = (run.spec["training"][key] for key in ("rounds", "evaluate_every"))
            if cells.round > last or (cells.round % each and cells.round != last):
                problem = f"is {cells.round}, but runs record every {each} rounds up to {last}"
                raise ConfigError(at / "round", problem, "a round that is recorded")


def _clients(
    cells: Cells, domain: str | None, setting: str, runs: list[Run], at: Location
) -> dict[str, Any]:
    """Whose mean a cell stands beside, where that is not the mean over all clients."""
    if (domain is not None) + (cells.modality is not None) + cells.unseen > 1:
        raise ConfigError(at, "names clients in two ways", "one of domain, modality and unseen")
    if cells.modality is not None:
        number = _modality(cells.modality, runs, at / "modality")
        return {"modality": {"name": cells.modality, "number": number}}
    if cells.unseen and not any(has_unseen_clients(run.partition.spec) for run in runs):
        problem = f"is true, but no client of {setting} is held out of training"
        raise ConfigError(at / "unseen", problem, "a partition with `unseen`, or false")
    if domain is None:
        return {"unseen": True} if cells.unseen else {}
    for run in runs:
        # Which domains a table of one's own has is not known before it is read.
        there = getattr(entry_of("data set", run.dataset.spec)[1], "domains", (domain,))
        if domain not in there:
            raise unknown(at / "columns" / setting / domain, "domain", domain, there)
    return {"domain": domain}


def _modality(name: str, runs: list[Run], at: Location) -> int:
    """The number of a modality, where clients of a data set or partition differ in it."""
    dealt = []
    for run in runs:
        kinds, counts = materials.modalities_of(run.dataset.spec), run.partition.values
        # How many a table of one's own has is not known before it is read.
        most = len(kinds) + 1 if "path" in counts else 0
        there = groups(kinds, len(counts.get("modalities") or ()) or most)
        dealt.append([named(group) for group in there])
    for names in dealt:
        if name in names:
            return names.index(name)
    raise unknown(at, "modality", name, dict.fromkeys(name for names in dealt for name in names))


def _cell(cells: Cells, line: published.Line, label: str, setting: str) -> dict[str, Any]:
    narrowed = {key: getattr(cells, key) for key in ("model", "metric", "round")}
    narrowed["unit"] = None if cells.unit == 1 else cells.unit
    return {
        "source": cells.source,
        **{key: line[key] for key in ("table", "row", "column", "note")},
        "value": published.number(line),
        "sd": float(line["sd"]) if line["sd"] else None,
        "method": label,
        "setting": setting,
        **{key: given for key, given in narrowed.items() if given is not None},
    }
