"""Jobs, marker files and outdated results, which Snakemake gets before it compares files.

Only the store decides which runs exist. When the workflow is parsed, missing runs become jobs (see
`fl.plan.jobs`), and tables of another plan are removed. All remaining files are correct, so that
Snakemake need not compare their times, which mean nothing after a clone or a pull.

Each job has a file with everything that it needs. So neither an edit of the config nor another plan
changes a queued job. Snakemake knows only files, so a *marker* file stands for a finished job.
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
from fl.plan.plan_files import BundleSummary, PlanSummary
from fl.report import result_files
from fl.report.tables import read_plan_hash
from fl.runner import slurm
from fl.store.store import Store


def marker(results: Path, job: str) -> Path:
    """Return the path of a job's marker file."""
    return results / "markers" / job


def write_jobs(plan: PlanSummary, merge: bool | jobs.Machine = False) -> dict[str, str]:
    """Write a file for each job that the plan needs, and remove outdated tables and reports.

    A job trains one bundle with missing runs, or several that `fl.plan.jobs.form_jobs` merges.
    Tables without all runs of this plan are removed, and so are the files that were made from them,
    and reports without one of their analyses. Snakemake makes missing files, but does not check
    that the tables of an existing report exist.

    Args:
        plan: The plan.
        merge: How bundles are merged into jobs, see `fl.plan.jobs.form_jobs`.

    Returns:
        Job by bundle, for bundles with missing runs.

    Raises:
        FedloomError: If a file cannot be written or removed.
    """
    results = Path(plan["settings"]["results"])
    store = Store(Path(plan["settings"]["store"]))
    is_complete = {name: _is_complete(bundle, store) for name, bundle in plan["bundles"].items()}
    _limit_times(results, Path(plan["settings"]["data"]))
    _remove_stale_tables(plan, is_complete)
    job_by_bundle: dict[str, str] = {}
    incomplete = [name for name in is_complete if not is_complete[name]]
    for job in _jobs(plan, incomplete, store, merge):
        job_by_bundle |= dict.fromkeys(job["bundles"], job["job"])
        with disk_errors(results / "markers"):
            marker(results, job["job"]).unlink(missing_ok=True)
        plan_files.write(results / "plan" / "jobs" / f"{job['job']}.json", job)
    return job_by_bundle


def _jobs(
    plan: PlanSummary, incomplete: Iterable[str], store: Store, merge: bool | jobs.Machine
) -> Iterator[dict[str, Any]]:
    settings = plan["settings"]
    folder = Path(settings["results"]) / "plan"
    bundles = {name: plan_files.read_bundle(folder, name) for name in incomplete}
    readers = jobs.readers({name: s["bundles"] for name, s in plan["studies"].items()})
    nodes = [config.Node(**node) for node in settings["nodes"]]
    for job in jobs.form_jobs(bundles, store, merge, readers):
        partition = job.execution.slurm_partition
        sizes = [
            node.memory_mb for node in nodes if node.slurm_partition == partition and node.memory_mb
        ]
        yield {**job.to_json(), "store": settings["store"], "most_mb": max(sizes, default=None)}


def _remove_stale_tables(plan: PlanSummary, is_complete: Mapping[str, bool]) -> None:
    results = Path(plan["settings"]["results"])
    for name, study in plan["studies"].items():
        tables = result_files.paths(results, name)
        current = (study["hash"], True)
        pages = [results / "report" / f"{name}{end}" for end in (".html", ".md", ".tex", ".bib")]
        stale: list[Path] = []
        if not all(is_complete[bundle] for bundle in study["bundles"]) or any(
            read_plan_hash(path) != current for path in tables[:2]
        ):
            stale = [*tables, *pages]
        elif not all(analyses.exists(results, analysis) for analysis in study["analyses"]):
            stale = pages
        with disk_errors(results):
            for path in stale:
                path.unlink(missing_ok=True)


def _limit_times(results: Path, data: Path) -> None:
    """Set times of inputs that lie in the future to the present.

    Snakemake reports a job as failed if its output is older than an input. After the clock was set
    back, every job would fail until the clock reached the old time.
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
        # The file may belong to another user, or another process may have removed it.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > now:
                os.utime(path)


def _is_complete(bundle: BundleSummary, store: Store) -> bool:
    return all(store.has(run, bundle["keep"].get(run, ())) for run in bundle["runs"])


def memory(job: Mapping[str, Any]) -> int:
    """Return the memory that a job requests, in MiB.

    For each attempt of one of its runs that had too little memory, it requests ``memory_mb`` once
    more, up to the memory of the cluster's nodes. A run that was killed for an unknown reason
    counts as one with too little memory.
    """
    execution, store = job["execution"], Store(Path(job["store"]))
    per_process: int = execution["memory_mb"]
    kills, reason = 0, cache(slurm.end_reason)
    for run in job["runs"]:
        if store.partial(run).exists() and not store.holder(run):
            slurm.last_attempt(store, run, reason)
            same_memory = (a for a in store.attempts(run) if a.memory_mb == per_process)
            kills = max(kills, sum(a.ended in ("memory", "killed") for a in same_memory))
    request: int = execution["processes"] * per_process * (1 + kills)
    limit: int | None = job["most_mb"]
    return min(request, limit or request)
