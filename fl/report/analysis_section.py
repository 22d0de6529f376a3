"""Analyses of stored runs as a report shows them, see `fl.plan.analyses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fl.base import files, parquet
from fl.base.dataclass_json import from_json
from fl.base.errors import DataError
from fl.base.schema import SETTING, StudySetting
from fl.plan import analyses
from fl.plan.analyses import PAGE, PDF, RECORD, SVG, TABLE, AnalysisRecord
from fl.plan.study_plan import AnalysisReference
from fl.report.cells import NOTHING, Cell, Row, Table, columns, spread
from fl.report.figures import Drawn, Figure, Panel

LONG = 30
"""Rows from which on a table is folded."""
KEYS = ("stage", "round", "data", "samples")
"""Columns that are told apart in the report and hold no result."""

Titles = Mapping[StudySetting, str]
"""The report's names of settings, in its order."""


@dataclass(frozen=True)
class Analysis:
    """An analysis that a study asks for.

    Attributes:
        record: The record of the analysis; None if there is none, for which ``trouble`` gives the
            reason.
    """

    title: str
    record: AnalysisRecord | None
    table: pd.DataFrame
    pictures: tuple[Drawn, ...] = ()
    trouble: str = ""

    @property
    def kind(self) -> str:
        """The name of its file in ``fl/analyses``."""
        return str(self.record.spec["name"]) if self.record else ""


def read(results: Path, planned: AnalysisReference) -> Analysis:
    """A planned analysis of a study, as far as it is there."""
    title = planned.title or planned.text
    folder = analyses.folder_of(results, planned.analysis)
    try:
        content = files.read_sealed(folder / RECORD)
        for name, described in content["files"].items():
            if problem := files.find_damage(folder / name, described):
                raise DataError(problem)
        record = from_json(AnalysisRecord, content)
        pictures = tuple(_drawn(folder, panel.figure) for panel in record.panels)
        return Analysis(title, record, parquet.read(folder / TABLE)[0], pictures)
    except FileNotFoundError:
        trouble = f"{title}: not there yet; `fedloom analyse {planned.analysis}` makes it"
    except (DataError, OSError, KeyError, TypeError) as error:
        trouble = f"{title}: cannot be read ({error}); remove {folder}, and it is made again"
    return Analysis(title, None, pd.DataFrame(), trouble=trouble)


def _drawn(folder: Path, name: str) -> Drawn:
    content = {end: (folder / f"{name}{end}").read_bytes() for end in (PDF, SVG)}
    return Drawn((folder / f"{name}{PAGE}").read_text(), content)


def table(
    analysis: Analysis,
    frame: pd.DataFrame,
    methods: Mapping[str, str],
    settings: Titles,
    replicates: str,
) -> Table | None:
    """Return an analysis' table, with columns of floats as mean ± standard deviation.

    Args:
        analysis: The analysis, with names and titles of its columns.
        frame: Its table, with settings as ``settings`` has them and a column ``unit`` of the
            replicate: the seed or the draw.
        methods: Title of each method in the report.
        settings: Title of each setting in the report.
        replicates: ``seeds`` or ``draws``, which means and deviations are over.
    """
    if frame.empty or analysis.record is None:
        return None
    shown = analysis.record.columns
    keys = [key for key in KEYS if key in frame and key not in shown]
    rows: list[Row] = []
    caption = f"{analysis.record.caption} Mean ± standard deviation over {replicates}."
    present = set(frame[SETTING].itertuples(index=False, name=None))
    for setting, title in settings.items():
        if setting in present and len(present) > 1:
            rows.append(Row(title, kind="heading"))
        elif setting in present:
            caption += f" Setting: {title}." if title else ""
        of_setting = frame[(frame[SETTING] == list(setting)).all(axis=1)]
        for method, name in methods.items():
            values = of_setting[of_setting["method"] == method]
            for key, group in values.groupby(keys, sort=True) if keys else [((), values)]:
                if len(group):
                    units = group.groupby("unit", sort=False)
                    texts = [*map(str, key), *(_spread(units[column].mean()) for column in shown)]
                    rows.append(Row(name, tuple(map(Cell, [*texts, str(units.ngroups)]))))
    heads = columns("Method", *keys, *shown.values(), replicates, text=("stage", "data", "samples"))
    return Table(analysis.kind, caption, heads, tuple(rows), note=analysis.record.note)


def _spread(values: pd.Series) -> str:
    finite = values[np.isfinite(values)]
    return spread(finite.mean(), finite.std(), "") if len(finite) else NOTHING


def figure(analysis: Analysis, methods: Mapping[str, str], settings: Titles) -> Figure | None:
    """Its pictures, each under its setting, where there are several, and its method."""
    if analysis.record is None or not analysis.record.panels:
        return None
    panels = []
    for picture, panel in zip(analysis.pictures, analysis.record.panels, strict=True):
        dataset, partition, model = panel.setting
        setting = (dataset, partition, model)
        location = settings.get(setting, " · ".join(setting)) if len(settings) > 1 else ""
        method = methods.get(panel.method, panel.method)
        title = " · ".join(filter(None, (location, method, panel.title)))
        panels.append(Panel(title, f"{title}: {panel.alt}", picture))
    return Figure(analysis.kind, analysis.record.figure, tuple(panels))
