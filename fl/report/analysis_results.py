"""Analyses of stored runs: made once, read again, and shown in a report; see `fl.plan.analyses`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fl.analyses import Result
from fl.base import files, identity, registry
from fl.base.dataclass_json import as_json, from_json
from fl.base.errors import DataError, FedloomError
from fl.base.schema import COMPLETE, MISSING, SETTING, StudySetting
from fl.base.specs import ComponentSpec
from fl.plan import analyses, plan_files
from fl.plan.analyses import (
    PAGE,
    PDF,
    RECORD,
    SVG,
    TABLE,
    PlannedAnalysis,
)
from fl.plan.bundle import Run
from fl.plan.run_spec import RunSpec
from fl.plan.study_plan import StudyPlan
from fl.report import partitions, tables
from fl.report.cells import NOTHING, Cell, Row, Table, columns, spread
from fl.report.figures import Drawn, Figure, Panel
from fl.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from fl.api.trees import Tree
    from fl.engine.simulation import Simulation


log = logging.getLogger(__name__)

MAX_ROWS = 30
"""Rows from which on a table is folded."""

KEYS = ("stage", "round", "data", "samples")
"""Columns that group the rows of the report's table and hold no result."""

Titles = Mapping[StudySetting, str]
"""Titles of settings in the report, in its order."""


@dataclass(frozen=True)
class PanelRecord:
    """A picture of an analysis.

    Attributes:
        figure: Name of its files without their endings.
        setting: Data set, partition and model.
        method: Label of the method entry.
        title: Its title.
        alt: Its content in words.
    """

    figure: str
    setting: list[str]
    method: str
    title: str
    alt: str


@dataclass(frozen=True, kw_only=True)
class AnalysisRecord:
    """The content of ``analysis.json``, except for the hashes of its files.

    Attributes:
        analysis: The analysis' id.
        text: The analysis as the study writes it.
        spec: Name and settings.
        code: Version of its code.
        executed: The ``device`` by which it was computed.
        runs: Ids of the runs that it read.
        columns: Titles of the table's columns that hold results.
        caption: Caption of the table.
        note: Note below the table.
        figure: Caption of the figure.
        notes: Remarks, such as runs that were left out.
        panels: Its pictures.
    """

    analysis: str
    text: str
    spec: ComponentSpec
    code: str
    executed: dict[str, str]
    runs: list[str]
    columns: dict[str, str]
    caption: str
    note: str = ""
    figure: str
    notes: list[str]
    panels: list[PanelRecord]


def write_analysis(planned: PlannedAnalysis, study: StudyPlan, results: Path, store: Path) -> Path:
    """Make an analysis of a study, unless it exists; return its folder, see `fl.plan.analyses`.

    Raises:
        FedloomError: If runs are missing, if the code has changed since the plan, or if a file
            cannot be written.
    """
    folder = analyses.folder_of(results, planned.analysis)
    if (folder / analyses.RECORD).is_file():
        return folder
    entry, analysis = registry.component_of("analysis", planned.spec)
    if identity.root_code(identity.entry("analysis", entry.name)) != planned.code:
        raise FedloomError(
            f"{planned.analysis}: its code changed after it was planned",
            advice="plan again: start snakemake again, or fedloom plan --write",
        )
    with _device(planned.execution.device) as device:
        runs, left_out = _runs(study, results, store, device)
        result: Result = analysis.read(runs)
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        ids = [run.run for run in study.runs]
        _write(folder, planned, ids, result, [*result.notes, *left_out], device)
    log.info("%s: made of %d runs", planned.analysis, len(runs))
    return folder


@contextlib.contextmanager
def _device(choice: str) -> Iterator[str]:
    """Claim the device that the study's ``execution`` names, as training does; yield its name."""
    if choice == "cpu":  # Analyses without models need no other.
        yield "cpu"
        return
    from fl.pytorch.devices import claim_devices

    with claim_devices(choice) as [device]:
        yield str(device)


def _runs(
    study: StudyPlan, results: Path, store: Path, device: str
) -> tuple[list[_Stored], list[str]]:
    """Return the runs to read, one for each method, setting and seed, and a line for each other."""
    # Its metrics of predictions are not needed.
    _, runs = tables.collect(replace(study, metrics=[], scored="last"), store)
    missing = runs.loc[runs["state"] == MISSING, "run"]
    if len(missing):
        raise FedloomError(
            f"{study.study}: {len(missing)} of {len(runs)} runs are not in {store}: "
            f"{', '.join(missing[:5])}",
            advice="train them first",
        )
    chosen = runs[runs["selected"]]
    left_out = [
        f"diverged, left out: {row['title']}, seed {row['seed']}, run {row['run']}"
        for row in chosen[chosen["state"] != COMPLETE].to_dict("records")
    ]
    keep = set(chosen.loc[chosen["state"] == COMPLETE, "run"])
    shared: dict[str, Simulation] = {}
    stored = [
        _Stored(
            run=run.run,
            method=run.method,
            setting=(run.dataset, run.partition, run.model),
            seed=run.seed,
            planned=run,
            results=results,
            store=Store(store),
            shared=shared,
            device=device,
        )
        for run in study.runs
        if run.run in keep
    ]
    return stored, left_out


@dataclass(frozen=True)
class _Stored:
    """Stored run as an analysis reads it, see `fl.analyses.Source`.

    Attributes:
        planned: The run in the plan.
        shared: The simulation of the last bundle, which its runs share, by the bundle's name.
        device: Device of models and data, ``cpu`` or ``cuda:0``.
    """

    run: str
    method: str
    setting: StudySetting
    seed: int
    planned: Run
    results: Path
    store: Store
    shared: dict[str, Simulation]
    device: str

    def traces(self) -> dict[str, Tensor]:
        return self.store.traces(self.run)

    def weights(self) -> Tree:
        return self.store.weights(self.run, self.device)

    def simulation(self) -> Simulation:
        import torch

        from fl.engine.simulation import Simulation

        name = self.planned.bundle
        if name not in self.shared:
            bundle = plan_files.read_bundle(self.results, name)
            spec = bundle.runs[0].spec
            self.shared.clear()  # One at a time, as each holds its data.
            simulation = RunSpec(spec).assemble(bundle.folders, torch.device(self.device))
            # Analyses need clients of one modality, see `fl.plan.checks.check_modalities`.
            assert isinstance(simulation, Simulation)
            self.shared[name] = simulation
        return self.shared[name]

    def counts(self) -> np.ndarray:
        partition = self._partition
        counts = np.zeros((max(partition.clients) + 1, len(partition.classes)), np.int64)
        counts[list(partition.clients)] = partition.counts["train"]
        return counts

    def domains(self) -> list[str]:
        bundle = plan_files.read_bundle(self.results, self.planned.bundle)
        return RunSpec(bundle.runs[0].spec).domains(bundle.folders)

    @cached_property
    def _partition(self) -> partitions.Partition:
        name = self.planned.partition_id
        partition = partitions.read(self.results, name, self.planned.partition)
        if partition is None:
            raise DataError(
                f"{self.results / 'partitions' / name}: does not exist",
                advice=f"fedloom partition {name}",
            )
        return partition


def _write(
    folder: Path,
    planned: PlannedAnalysis,
    runs: list[str],
    result: Result,
    notes: list[str],
    device: str,
) -> None:
    """Write the table, the figures and, last, the record."""
    files.write_table(folder / analyses.TABLE, result.table)
    names, panels = [analyses.TABLE], []
    for i, panel in enumerate(result.panels, start=1):
        pictures = {**panel.picture.files(), analyses.PAGE: panel.picture.svg.encode()}
        for end, content in pictures.items():
            files.write_bytes(folder / f"figure-{i}{end}", content)
            names.append(f"figure-{i}{end}")
        panels.append(
            PanelRecord(f"figure-{i}", [*panel.setting], panel.method, panel.title, panel.alt)
        )
    record = AnalysisRecord(
        analysis=planned.analysis,
        text=planned.text,
        spec=planned.spec,
        code=planned.code,
        executed={"device": device},
        runs=runs,
        columns=result.columns,
        caption=result.caption,
        note=result.note,
        figure=result.figure,
        notes=notes,
        panels=panels,
    )
    files.write_sealed(folder / analyses.RECORD, as_json(record), files=names)


@dataclass(frozen=True)
class Analysis:
    """Analysis that a study asks for.

    Attributes:
        title: Title of the analysis.
        record: The record of the analysis; None if there is none.
        table: Its table.
        pictures: Its pictures.
        problem: Why there is no record; else empty.
    """

    title: str
    record: AnalysisRecord | None
    table: pd.DataFrame
    pictures: tuple[Drawn, ...] = ()
    problem: str = ""

    @property
    def kind(self) -> str:
        """Name of the analysis, that of its file in ``fl/analyses``."""
        return str(self.record.spec["name"]) if self.record else ""


def read_analysis(results: Path, planned: PlannedAnalysis) -> Analysis:
    """Read a planned analysis of a study; if that fails, the result says why."""
    title = planned.title or planned.text
    folder = analyses.folder_of(results, planned.analysis)
    try:
        content = files.read_sealed(folder / RECORD)
        for name, described in content["files"].items():
            if damage := files.find_damage(folder / name, described):
                raise DataError(damage)
        record = from_json(AnalysisRecord, content)
        pictures = tuple(_drawn(folder, panel.figure) for panel in record.panels)
        return Analysis(title, record, files.read_parquet(folder / TABLE)[0], pictures)
    except FileNotFoundError:
        problem = f"{title}: does not exist yet. Try: fedloom analyse {planned.analysis}"
    except (DataError, OSError, KeyError, TypeError) as error:
        problem = f"{title}: cannot be read ({error}). Try: remove {folder}; it is then made again"
    return Analysis(title, None, pd.DataFrame(), problem=problem)


def _drawn(folder: Path, name: str) -> Drawn:
    content = {end: (folder / f"{name}{end}").read_bytes() for end in (PDF, SVG)}
    return Drawn((folder / f"{name}{PAGE}").read_text(), content)


def analysis_table(
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
        replicates: ``seeds`` or ``draws``, over which means and deviations are.
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


def analysis_figure(
    analysis: Analysis, methods: Mapping[str, str], settings: Titles
) -> Figure | None:
    """Return an analysis' pictures, titled by method and, if there are several, by setting."""
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
