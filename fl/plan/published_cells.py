"""The published numbers that a report sets beside a study's own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base.errors import ConfigError, Where, unknown
from fl.data import materials
from fl.data.modality import groups, named
from fl.plan import partition_fit, published

if TYPE_CHECKING:
    from fl.plan.expand import Expansion


def published_cells(expansion: Expansion, folder: Path) -> list[dict[str, Any]]:
    """The published cells that a study names, looked up in their tables.

    Raises:
        ConfigError: For a cell that is not there or stands twice, and for an entry, a setting or a
            modality that the study does not have.
    """
    compared = []
    for i, cells in enumerate(expansion.study.published):
        at = expansion.where / "published" / i
        if cells.unseen and cells.modality is not None:
            raise ConfigError(at / "unseen", "stands beside modality", "one of both")
        table = published.table(folder, cells.source, cells.table, at)
        settings = {
            text for run in expansion.runs for text in (run.dataset.text, run.partition.text)
        }
        for (label, row), (setting, column) in itertools.product(
            cells.rows.items(), cells.columns.items()
        ):
            if label not in expansion.study.methods:
                raise unknown(at / "rows" / label, "entry", label, expansion.study.methods)
            if setting not in settings:
                raise unknown(at / "columns" / setting, "data set or partition", setting, settings)
            line = published.cell(table, row, column, at)
            cell = _cell(cells.source, line, label, setting)
            if cells.modality is not None:
                number = _modality(expansion, cells.modality, setting, at / "modality")
                cell["modality"] = {"name": cells.modality, "number": number}
            if cells.unseen:
                _check_held_out(expansion, setting, at / "unseen")
                cell["unseen"] = True
            if cell in compared:
                problem = f"the cell {row} / {column} stands twice for {label} on {setting}"
                raise ConfigError(at, problem, "each cell once")
            compared.append(cell)
    return compared


def _check_held_out(expansion: Expansion, setting: str, at: Where) -> None:
    """Refuse (`ConfigError`) a data set or partition in which no client is held out of training."""
    there = [run for run in expansion.runs if setting in (run.dataset.text, run.partition.text)]
    if not any(partition_fit.holds_out(run.partition.spec) for run in there):
        problem = f"is true, but no client of {setting} is held out of training"
        raise ConfigError(at, problem, "a partition with `unseen`, or false")


def _modality(expansion: Expansion, name: str, setting: str, at: Where) -> int:
    """The number of a modality, where clients of a data set or partition differ in it."""
    dealt = []
    for run in expansion.runs:
        kinds, counts = materials.modalities_of(run.dataset.spec), run.partition.values
        # How many a table of one's own has is not known before it is read.
        most = len(kinds) + 1 if "path" in counts else 0
        if setting in (run.dataset.text, run.partition.text):
            there = groups(kinds, len(counts.get("modalities") or ()) or most)
            dealt.append([named(group) for group in there])
    for names in dealt:
        if name in names:
            return names.index(name)
    raise unknown(at, "modality", name, dict.fromkeys(name for names in dealt for name in names))


def _cell(source: str, line: published.Line, label: str, setting: str) -> dict[str, Any]:
    return {
        "source": source,
        **{key: line[key] for key in ("table", "row", "column", "note")},
        "value": published.number(line),
        "sd": float(line["sd"]) if line["sd"] else None,
        "method": label,
        "setting": setting,
    }
