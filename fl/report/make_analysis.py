"""Making an analysis of stored runs, once."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fl.analyses import Result
from fl.base import files, identity, registry
from fl.base.dataclass_json import as_json
from fl.base.errors import DataError, FedloomError
from fl.base.schema import COMPLETE, MISSING, StudySetting
from fl.plan import analyses, plan_files
from fl.plan.analyses import AnalysisRecord, PanelRecord, PlannedAnalysis
from fl.plan.run_spec import RunSpec
from fl.plan.study_plan import PlannedRun
from fl.report import partitions, tables
from fl.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from fl.api.trees import Tree
    from fl.engine.simulation import Simulation

log = logging.getLogger(__name__)


def write_analysis(planned: PlannedAnalysis, results: Path, store: Path) -> Path:
    """The folder of an analysis, see `fl.plan.analyses`; made only if it is not there yet.

    Raises:
        FedloomError: If runs are missing, if the code differs from that it was planned with, or if
            the disk refuses.
    """
    folder = analyses.folder_of(results, planned.analysis)
    if (folder / analyses.RECORD).is_file():
        return folder
    entry, analysis = registry.component_of("analysis", planned.spec)
    if identity.root_code(identity.entry("analysis", entry.name)) != planned.code:
        raise FedloomError(
            f"{planned.analysis}: its code changed after it was planned; plan again (start "
            "snakemake again, or `fedloom plan --write`)"
        )
    with _device(planned.execution.device) as device:
        runs, left_out = _runs(planned, results, store, device)
        result: Result = analysis.read(runs)
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder, planned, result, [*result.notes, *left_out], device)
    log.info("%s: made of %d runs", planned.analysis, len(runs))
    return folder


@contextlib.contextmanager
def _device(choice: str) -> Iterator[str]:
    """The device for models: as the study's ``execution`` says, claimed as for training."""
    if choice == "cpu":  # All that an analysis needs that computes no model.
        yield "cpu"
        return
    from fl.pytorch.devices import claim_devices

    with claim_devices(choice) as [device]:
        yield str(device)


def _runs(
    planned: PlannedAnalysis, results: Path, store: Path, device: str
) -> tuple[list[_Stored], list[str]]:
    """The runs to be read, one for each method, setting and seed, and those left out."""
    _, runs = tables.collect(planned, store)
    missing = runs.loc[runs["state"] == MISSING, "run"]
    if len(missing):
        raise FedloomError(
            f"{planned.analysis}: {len(missing)} of {len(runs)} runs are not in {store}: "
            f"{', '.join(missing[:5])}; train them first"
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
        for run in planned.runs
        if run.run in keep
    ]
    return stored, left_out


@dataclass(frozen=True)
class _Stored:
    """A run as an analysis sees it, `fl.analyses.Source`.

    Attributes:
        planned: What the plan says of it.
        shared: What runs of a bundle share.
        device: Where models and data are, ``cpu`` or ``cuda:0``.
    """

    run: str
    method: str
    setting: StudySetting
    seed: int
    planned: PlannedRun
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

        name = self.planned.bundle
        if name not in self.shared:
            bundle = plan_files.read_bundle(self.results / "plan", name)
            spec = bundle.runs[0].spec
            self.shared.clear()  # One at a time, as each holds its data.
            self.shared[name] = RunSpec(spec).assemble(bundle.folders, torch.device(self.device))
        return self.shared[name]

    def counts(self) -> np.ndarray:
        partition = self._partition
        counts = np.zeros((max(partition.clients) + 1, len(partition.classes)), np.int64)
        counts[list(partition.clients)] = partition.counts["train"]
        return counts

    def domains(self) -> list[str]:
        bundle = plan_files.read_bundle(self.results / "plan", self.planned.bundle)
        return RunSpec(bundle.runs[0].spec).domains(bundle.folders)

    @cached_property
    def _partition(self) -> partitions.Partition:
        name = self.planned.partition_id
        partition = partitions.read(self.results, name, self.planned.partition)
        if partition is None:
            raise DataError(
                f"{self.results / 'partitions' / name}: is not there; `fedloom partition "
                f"{name}` makes it"
            )
        return partition


def _write(
    folder: Path, planned: PlannedAnalysis, result: Result, notes: list[str], device: str
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
        runs=[run.run for run in planned.runs],
        columns=result.columns,
        caption=result.caption,
        note=result.note,
        figure=result.figure,
        notes=notes,
        panels=panels,
    )
    files.write_sealed(folder / analyses.RECORD, as_json(record), files=names)
