"""Progress of a plan, read from the store only, on any host that can read the store.

A run is *done* if it is in the store. Otherwise it is *running* if a live process holds it,
*failed* if its last process ended with an error, *interrupted* if its last process ended in another
way, and *waiting* if no process has tried it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fl.base.errors import DataError, Location, unknown_name
from fl.base.specs import Spec
from fl.base.units import duration, quantity
from fl.plan import plan_files, result_paths
from fl.plan.bundle import Bundle
from fl.plan.plan_files import PlanIndex
from fl.runner import slurm
from fl.store.store import Store
from fl.store.workspace import Attempt
from fl.workflow import selection, submission
from fl.workflow.estimate import Rates
from fl.workflow.submission import JobState

ReasonOf = Callable[[Attempt], str]

STATES = ("done", "running", "failed", "interrupted", "waiting")

MAX_UNFINISHED = 40
"""Largest number of unfinished runs that are listed at the end of a workflow."""

TEXT_BY_REASON = {
    "time": "its time limit was near",
    "memory": "it exceeded its memory limit",
    "node": "its node failed",
    "preempted": "a job with a higher priority took its place",
    "requeued": "Slurm put its job back into the queue, on request or as its node failed",
    "cancelled": "it was cancelled",
    "error": "its disk was full",
    "killed": "it was killed for an unknown reason (possibly out of memory)",
    "": "it is silent, but Slurm counts its job as active; its node may have failed",
}
"""Texts of the reasons for which attempts end."""


@dataclass(frozen=True)
class RunStatus:
    """Progress of one run.

    Attributes:
        run: Its id.
        title: Title of its bundle, and its seed.
        spec: Its spec.
        state: One of `STATES`.
        round: Round of its newest checkpoint.
        note: Process that holds it, or reason, job and log of the end of its last attempt.
        processes: Number of processes that train it together.
        details: Number and log of a job that did not begin it.
        is_unbegun: Whether ``note`` says why its job has not begun it.
        attempt: Its last attempt, if that has ended and the run is not done.
    """

    run: str
    title: str
    spec: Spec
    state: str
    round: int = 0
    note: str = ""
    processes: int = 1
    details: str = ""
    is_unbegun: bool = False
    attempt: Attempt | None = None

    @property
    def remaining_share(self) -> float:
        """Share of its rounds that remain."""
        return 0.0 if self.state == "done" else 1 - self.round / self.spec["training"]["rounds"]


def bundles(
    results: Path, names: Sequence[str] = (), selected: Collection[str] | None = None
) -> list[Bundle]:
    """Return the bundles of the plan in ``<results>/plan``, which Snakemake uses.

    Args:
        results: Folder of the results.
        names: Studies whose bundles are wanted, also calls of `fl.run`; by default all of the plan.
        selected: Ids of the runs that may be in them; None: all.

    Raises:
        FedloomError: If there is no plan, it cannot be read, or lacks one of the studies.
    """
    ids = [*_index(results).bundles] if not names else []
    for name in names:
        ids += _bundles_of(results, name)
    planned = [plan_files.read_bundle(results, name) for name in dict.fromkeys(ids)]
    return planned if selected is None else list(selection.parts(planned, selected))


def studies(results: Path) -> list[str]:
    """Return the names of the studies of the plan in ``<results>/plan``."""
    return [*_index(results).studies]


def stored_studies(results: Path) -> list[str]:
    """Return the names of all studies with a plan, those of calls of `fl.run` too."""
    return [path.stem for path in plan_files.all_files(results, "studies")]


def _bundles_of(results: Path, study: str) -> list[str]:
    """Return the ids of a study's bundles. `fl.run` writes no index, only a file of its study."""
    index = plan_files.read_index(results)
    if index and study in index.studies:
        return index.studies[study].bundles
    names = stored_studies(results)
    if study not in names:
        raise unknown_name(Location("the command line"), "planned study", study, names)
    return plan_files.read_study(results, study).bundles


def _index(results: Path) -> PlanIndex:
    index = plan_files.read_index(results)
    if not index:
        folder = plan_files.plan_folder(results)
        raise DataError(f"{folder}: there is no plan", advice="`fedloom plan --write` makes one")
    return index


def run_statuses(
    planned: Sequence[Bundle],
    store: Store,
    results: Path | None = None,
    find_reason: ReasonOf = slurm.end_reason,
) -> list[RunStatus]:
    """Return the progress of every run of these bundles.

    Args:
        planned: The bundles.
        store: The store.
        results: Folder of the results, if Slurm shall be asked for jobs that have not begun.
        find_reason: Function that finds why an attempt ended that could not note it.
    """
    names = {path.name for path in store.root.iterdir()} if store.root.exists() else set()
    reason = cache(find_reason)  # Runs of one job end for the same reason.
    statuses = [s for bundle in planned for s in _of_bundle(bundle, store, names, reason)]
    if results is None or not any(status.state == "waiting" for status in statuses):
        return statuses
    jobs = submission.jobs_by_run(results)
    return [_with_job(status, jobs.get(status.run)) for status in statuses]


def _with_job(status: RunStatus, job: JobState | None) -> RunStatus:
    """Return the status of a waiting run with the state of its job, if this has not started."""
    if status.state != "waiting" or job is None or job.state == "running":
        return status
    return replace(status, state=job.state, note=job.note, details=job.details, is_unbegun=True)


def _of_bundle(
    bundle: Bundle, store: Store, names: set[str], reason: ReasonOf
) -> Iterator[RunStatus]:
    """Yield the status of each run: done, running, failed, interrupted or waiting."""
    runs, processes = [member.run for member in bundle.runs], bundle.execution.processes
    started = [run for run in runs if f"{run}.partial" in names]
    rounds = {run: store.round(run) or 0 for run in started}
    # Runs of a stack share one checkpoint, in the folder of the first one.
    last_round = max(rounds.values(), default=0)
    for member in bundle.runs:
        run = member.run
        title = f"{bundle.title}, seed {member.seed}"
        if run in names and store.has(run, member.keep):
            yield RunStatus(run, title, member.spec, "done")
            continue
        holder = store.holder(run) if run in started else None
        if holder is not None:
            round_ = rounds[run] or last_round
            yield RunStatus(run, title, member.spec, "running", round_, holder, processes)
            continue
        attempt = slurm.last_attempt(store, run, reason) if run in started else None
        if attempt is None:
            state = "interrupted" if rounds.get(run) else "waiting"
            round_ = rounds.get(run, 0)
            yield RunStatus(run, title, member.spec, state, round_, processes=processes)
        else:
            state = "failed" if attempt.ended == "error" else "interrupted"
            round_ = rounds[run] or (last_round if attempt.stacked else 0)
            note = _note(attempt)
            yield RunStatus(
                run, title, member.spec, state, round_, note, processes, attempt=attempt
            )


def _note(attempt: Attempt) -> str:
    """Return the reason for which an attempt ended, its job and its log."""
    job = f"{attempt.scheduler} job {attempt.job}" if attempt.job else ""
    details = ", ".join(filter(None, [job, f"log {attempt.log}" if attempt.log else ""]))
    reason = attempt.error or TEXT_BY_REASON[attempt.ended]
    return f"{reason}{f' ({details})' if details else ''}"


def line(statuses: Sequence[RunStatus], rates: Rates) -> str:
    """Return a summary: ``12 of 15 runs done, 2 running, 1 failed, about 3 min left``."""
    counts = Counter(status.state for status in statuses)
    pieces = [f"{counts['done']} of {len(statuses)} runs done"]
    pieces += [f"{counts[state]} {state}" for state in STATES[1:4] if counts[state]]
    if counts["done"] + counts["failed"] < len(statuses):
        pieces.append(remaining_time(statuses, rates))
    return ", ".join(pieces)


def remaining_time(statuses: Sequence[RunStatus], rates: Rates) -> str:
    """Return how long runs will take that are neither done nor failed: ``about 3 min left``."""
    unfinished = [
        (status, rates.seconds([status.spec]))
        for status in statuses
        if status.state not in ("done", "failed")
    ]
    holders = {status.note for status, _ in unfinished if status.state == "running"}
    if any(seconds is None for _, seconds in unfinished):
        return "time left unknown before a similar run has finished"
    total = sum(
        status.remaining_share * (seconds or 0.0) / status.processes
        for status, seconds in unfinished
    )
    processes = f" with {len(holders)} processes" if len(holders) > 1 else ""
    return f"about {duration(total / max(1, len(holders)))} left{processes}"


def lines(statuses: Sequence[RunStatus], rates: Rates) -> Iterator[str]:
    """Return a line for every run that is running, failed or interrupted, and then `line`."""
    for state in STATES[1:4]:
        for status in statuses:
            if status.state == state and not status.is_unbegun:
                yield f"{state:12} {_run_line(status)}"
    for state, text in _unbegun_lines(statuses):
        yield f"{state:12} {text}"
    yield from rates.remarks
    yield line(statuses, rates)


def unfinished_reports(results: Path, statuses: Sequence[RunStatus]) -> list[Path]:
    """Return the pages of the planned studies that lack one of some runs, as far as they exist."""
    index = _index(results)
    unfinished = {status.run for status in statuses if status.state != "done"}
    incomplete = {name for name, b in index.bundles.items() if not unfinished.isdisjoint(b.runs)}
    pages = (
        result_paths.page(results, name)
        for name, study in index.studies.items()
        if not incomplete.isdisjoint(study.bundles)
    )
    return [page for page in pages if page.exists()]


def report_lines(results: Path, names: Sequence[str] = ()) -> Iterator[str]:
    """Return a line for each report that is out of date or lacks something.

    Args:
        results: Folder of the results.
        names: Studies of the plan; by default all.
    """
    index = plan_files.read_index(results)
    if index is None:
        return
    for study, planned in index.studies.items():
        if names and study not in names:
            continue
        if problem := result_paths.page_problem(results, study, planned.hash):
            page = result_paths.page(results, study)
            yield f"{problem:12} report {page}; `snakemake` makes it again"


def unfinished_lines(statuses: Sequence[RunStatus]) -> Iterator[str]:
    """Return a line for each started run that is not done, and one line for all waiting runs."""
    started = [s for s in statuses if s.state in STATES[1:4] and not s.is_unbegun]
    yield from (f"  {_run_line(status)}" for status in started[:MAX_UNFINISHED])
    if len(started) > MAX_UNFINISHED:
        yield f"  and {len(started) - MAX_UNFINISHED} more; `fedloom status` lists all"
    yield from (f"  {state}: {text}" for state, text in _unbegun_lines(statuses))
    if waiting := sum(s.state == "waiting" and not s.is_unbegun for s in statuses):
        yield f"  {quantity(waiting, 'run')} not started"


def _unbegun_lines(statuses: Sequence[RunStatus]) -> Iterator[tuple[str, str]]:
    """Yield a state and a line for all runs whose jobs have not begun them for the same reason."""
    groups: dict[tuple[str, str], list[RunStatus]] = {}
    for status in statuses:
        if status.is_unbegun:
            groups.setdefault((status.state, status.note), []).append(status)
    for (state, note), group in groups.items():
        yield state, f"{quantity(len(group), 'run')}: {note}{group[0].details}"


def _run_line(status: RunStatus) -> str:
    rounds = f"round {status.round} of {status.spec['training']['rounds']}"
    note = f", {status.note}" if status.note else ""
    return f"{status.run}  {status.title}: {rounds}{note}"
