"""Jobs, marker files and outdated results, which Snakemake gets before it compares files.

Only the store decides which runs exist. When the workflow is parsed, missing runs become jobs (see
`fl.workflow.jobs`), and tables and reports of another plan are found. These get a new input file,
so that Snakemake makes them again; until then they stay. All other files are correct, so that
Snakemake need not compare their times, which mean nothing after a clone or a pull.

Each job has a file with everything that it needs. So neither an edit of the config nor another plan
changes a queued job. Snakemake knows only files, so a *marker* file stands for a finished job.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from fl.base import files
from fl.base.files import disk_errors
from fl.plan import analyses, plan_files, result_paths
from fl.plan.bundle import missing_runs
from fl.plan.plan_files import IndexedBundle, PlanIndex
from fl.store.store import Store
from fl.workflow import jobs, selection
from fl.workflow.jobs import Job


def marker(results: Path, job: str) -> Path:
    """Return the path of a job's marker file."""
    return results / "markers" / job


def write_jobs(
    plan: PlanIndex,
    merge: bool | jobs.Machine = False,
    selected: Collection[str] | None = None,
) -> tuple[dict[str, str], set[Path]]:
    """Write a file for each job that the plan needs, and find outdated tables and reports.

    A job trains one bundle with missing runs, or several that `fl.workflow.jobs.form_jobs` merges.
    Nothing outside of ``plan`` and ``markers`` is changed, as this happens in a dry run too.

    Args:
        plan: The plan.
        merge: How bundles are merged into jobs, see `fl.workflow.jobs.form_jobs`.
        selected: Runs that may be trained, see `selected_runs`; by default all.

    Returns:
        Job by bundle, for bundles with missing runs; and the files that Snakemake must make again,
        see `outdated_input`.

    Raises:
        FedloomError: If a file cannot be written.
    """
    results = Path(plan.settings.results)
    store = Store(Path(plan.settings.store))
    is_complete = {name: _is_complete(bundle, store) for name, bundle in plan.bundles.items()}
    _limit_times(results, Path(plan.settings.data))
    outdated = _outdated_files(plan, is_complete)
    _renew(outdated_input(results), outdated)
    job_by_bundle: dict[str, str] = {}
    incomplete = [name for name in is_complete if not is_complete[name]]
    for job in _jobs(plan, incomplete, store, merge, selected):
        job_by_bundle |= dict.fromkeys(job.bundles, job.job)
        with disk_errors(results / "markers"):
            marker(results, job.job).unlink(missing_ok=True)
        plan_files.write(plan_files.file_of(results, "jobs", job.job), job)
    return job_by_bundle, {*outdated}


def selected_runs(plan: PlanIndex, only: Sequence[str]) -> set[str]:
    """Return the ids of selected runs, and of those from which these start.

    Args:
        plan: The plan.
        only: What to select, as in ``fedloom run --only``.

    Raises:
        FedloomError: If nothing is selected, or a name does not exist.
    """
    studies = [plan_files.read_study(plan.settings.results, name) for name in plan.studies]
    return selection.parse(only).needed(studies)


def read_job(results: Path, name: str) -> Job:
    """Return a job that `write_jobs` wrote.

    Raises:
        DataError: If it cannot be read.
    """
    return plan_files.read(Job, plan_files.file_of(results, "jobs", name))


def _jobs(
    plan: PlanIndex,
    incomplete: Iterable[str],
    store: Store,
    merge: bool | jobs.Machine,
    selected: Collection[str] | None,
) -> Iterator[Job]:
    settings = plan.settings
    bundles = {name: plan_files.read_bundle(settings.results, name) for name in incomplete}
    if selected is not None:
        parts = selection.parts(bundles.values(), selected)
        bundles = {part.bundle: part for part in parts if missing_runs(part, store)}
    readers = jobs.readers({name: study.bundles for name, study in plan.studies.items()})
    is_part = selected is not None
    return jobs.form_jobs(bundles, store, merge, readers, settings.nodes, is_part)


def outdated_input(results: Path) -> Path:
    """Return the input of outdated files: a file that is newer than all of them."""
    return plan_files.plan_folder(results) / "outdated"


def _renew(path: Path, outdated: Sequence[Path]) -> None:
    """Make a file newer than all outdated ones, if there are any."""
    if outdated:
        with disk_errors(path):
            # Other content than before: Snakemake passes over a newer file with an equal checksum.
            files.write_bytes(path, str(time.time_ns()).encode())
            newest = max(result.stat().st_mtime_ns for result in outdated)
            time_ns = max(path.stat().st_mtime_ns, newest + 1_000_000)
            os.utime(path, ns=(time_ns, time_ns))


def _outdated_files(plan: PlanIndex, is_complete: Mapping[str, bool]) -> list[Path]:
    """Return existing tables and reports of another plan, or without a run or an analysis."""
    from fl.report.tables import read_plan_hash  # Processes of jobs do not wait for its import.

    results = Path(plan.settings.results)
    outdated: list[Path] = []
    for name, study in plan.studies.items():
        tables = result_paths.paths(results, name)
        page = result_paths.page(results, name)
        if not all(is_complete[bundle] for bundle in study.bundles) or any(
            read_plan_hash(path) != (study.hash, True) for path in tables[:2]
        ):
            outdated += [*tables, page]
        elif not all(
            analyses.exists(results, analysis) for analysis in study.analyses
        ) or result_paths.page_problem(results, name, study.hash):
            outdated.append(page)
    return [path for path in outdated if path.exists()]


def _limit_times(results: Path, data: Path) -> None:
    """Set times of inputs and results that lie in the future to the present.

    Snakemake reports a job as failed if its output is older than an input. After the clock was set
    back, every job would fail until the clock reached the old time.
    """
    results_of_studies = (
        path
        for kind in ("tables", "metrics", "plots", "report")
        for path in (results / kind).glob("*.*")
    )
    inputs = (
        *results_of_studies,
        *data.glob("raw/*/sources.json"),
        *data.glob("prepared/*/dataset.json"),
        *results.glob("partitions/*/partition.json"),
        *results.glob("markers/*"),
        *results.glob(f"analyses/*/{analyses.RECORD}"),
    )
    present = time.time()
    for path in inputs:
        # The file may belong to another user, or another process may have removed it.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > present:
                os.utime(path)


def _is_complete(bundle: IndexedBundle, store: Store) -> bool:
    return all(store.has(run, keep) for run, keep in bundle.runs.items())
