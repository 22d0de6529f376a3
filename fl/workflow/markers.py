"""What Snakemake must know about the store, before it looks at files and their times.

The store is the truth about runs. Whenever the workflow is parsed, missing runs are put into jobs
(see `fl.plan.jobs`), and tables of another plan are removed. What is there after that is right, and
Snakemake need not compare times, which mean nothing after a clone or a pull.

Each job has a file with all that it needs, so that neither an edit of the config nor another plan
changes a queued job. A *marker* file says that a job is done, as Snakemake knows only files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fl.base.files import disk_errors
from fl.plan import analyses, config, jobs, plan_files
from fl.plan.jobs import gpus as gpus
from fl.plan.jobs import threads as threads
from fl.report import result_files
from fl.report.tables import read_plan_hash
from fl.runner import slurm
from fl.store.store import Store


def marker(results: Path, job: str) -> Path:
    """Where the marker of a job stands."""
    return results / "markers" / job


def settle(planned: Mapping[str, Any], merge: bool | jobs.Machine = False) -> dict[str, str]:
    """Bring jobs and tables in line with the store.

    A bundle that lacks runs is trained by a job, alone or with others, as `fl.plan.jobs.form_jobs`
    merges them. Tables that do not hold all runs of this plan are removed, with the files made from
    them, and so are pages without one of their analyses: Snakemake makes missing files, but does
    not check that the tables behind an existing report are there.

    Returns:
        By bundle that lacks runs, its job.

    Raises:
        FedloomError: If the disk refuses.
    """
    results = Path(planned["settings"]["results"])
    store = Store(Path(planned["settings"]["store"]))
    whole = {name: _whole(bundle, store) for name, bundle in planned["bundles"].items()}
    _date_back(results, Path(planned["settings"]["data"]))
    _remove_stale_tables(planned, whole)
    home: dict[str, str] = {}
    for job in _jobs(planned, [name for name in whole if not whole[name]], store, merge):
        home |= dict.fromkeys(job["bundles"], job["job"])
        with disk_errors(results / "markers"):
            marker(results, job["job"]).unlink(missing_ok=True)
        plan_files.write(results / "plan" / "jobs" / f"{job['job']}.json", job)
    return home


def _jobs(
    planned: Mapping[str, Any], lacking: Iterable[str], store: Store, merge: bool | jobs.Machine
) -> Iterator[dict[str, Any]]:
    settings = planned["settings"]
    home = Path(settings["results"]) / "plan"
    bundles = {name: plan_files.read_bundle(home, name) for name in lacking}
    readers = jobs.readers({name: s["bundles"] for name, s in planned["studies"].items()})
    nodes = [config.Node(**node) for node in settings["nodes"]]
    for job in jobs.form_jobs(bundles, store, merge, readers):
        partition = job.execution.slurm_partition
        room = [
            node.memory_mb for node in nodes if node.slurm_partition == partition and node.memory_mb
        ]
        yield {**job.to_json(), "store": settings["store"], "most_mb": max(room, default=None)}


def _remove_stale_tables(planned: Mapping[str, Any], whole: Mapping[str, bool]) -> None:
    results = Path(planned["settings"]["results"])
    for name, study in planned["studies"].items():
        made = result_files.paths(results, name)
        wanted = (study["hash"], True)
        pages = [results / "report" / f"{name}{end}" for end in (".html", ".md", ".tex", ".bib")]
        stale: list[Path] = []
        if not all(whole[bundle] for bundle in study["bundles"]) or any(
            read_plan_hash(path) != wanted for path in made[:2]
        ):
            stale = [*made, *pages]
        elif not all(analyses.exists(results, analysis) for analysis in study["analyses"]):
            stale = pages
        with disk_errors(results):
            for path in stale:
                path.unlink(missing_ok=True)


def _date_back(results: Path, data: Path) -> None:
    """Set the times of inputs of jobs that are dated in the future to now.

    Snakemake considers a job failed whose output is older than an input. So after the clock was set
    back nothing could be made until it had caught up.
    """
    inputs = (
        *data.glob("raw/*/sources.json"),
        *data.glob("prepared/*/dataset.json"),
        *results.glob("partitions/*/partition.json"),
        *results.glob("markers/*"),
        *results.glob("tables/*.parquet"),
        *results.glob(f"analyses/*/{analyses.RECORD}"),
    )
    now = time.time()
    for path in inputs:
        # What is somebody else's, or was removed just now, is left as it is.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > now:
                os.utime(path)


def _whole(bundle: Mapping[str, Any], store: Store) -> bool:
    return all(store.has(run, bundle["keep"].get(run, ())) for run in bundle["runs"])


def memory(job: Mapping[str, Any]) -> int:
    """MiB that a job asks for: as much again for each time that so much was too little for one of
    its runs, up to what its nodes have.

    What is killed by nobody knows whom is taken to have had too little.
    """
    execution, store = job["execution"], Store(Path(job["store"]))
    each: int = execution["memory_mb"]
    kills, why = 0, cache(slurm.ended)
    for run in job["runs"]:
        if store.partial(run).exists() and not store.holder(run):
            slurm.last(store, run, why)
            enough = (a for a in store.attempts(run) if a.memory_mb == each)
            kills = max(kills, sum(a.ended in ("memory", "killed") for a in enough))
    wanted: int = execution["processes"] * each * (1 + kills)
    most: int | None = job["most_mb"]
    return min(wanted, most or wanted)
