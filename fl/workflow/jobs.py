"""Jobs: which bundles are trained together, so that there are fewer of them to start.

A bundle is what belongs together; a job is what is started together. Every start costs seconds, of
a scheduler or of this machine, so bundles that take a minute are merged into longer jobs. Only what
the store lacks is put into jobs, so the jobs change as runs finish. That does no harm: a job trains
what its bundles lack when it starts, and no run's name depends on it.

On a cluster there are as few jobs as may be. On one machine there are so many that all cores are
busy to the end: as many as run at once where work is short, several for each of these where it is
long. All of them are of about the same length.

Bundles that differ only in their draw stay together, as one stack trains them in less time.

If a job fails, all jobs that wait for it fail too. So a bundle is put together with those that
start from it, and where that takes too long it is a job alone.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from fl.base import identity
from fl.base.errors import FedloomError
from fl.plan.bundle import Bundle, missing_runs
from fl.plan.config import Execution, Node
from fl.runner import slurm
from fl.store.store import Store
from fl.workflow.estimate import Rates, client_steps

MOST_BUNDLES = 500
"""Largest number of bundles of a job, as their files are arguments of one command."""

UNMEASURED_JOBS = 100
"""Number of jobs of a cluster that share bundles of unknown length, if there are more of these."""

SECONDS_PER_STEP = 5e-4
"""Assumed seconds of a local step of a client where nothing has been measured."""

SHORTEST, LONG = 30.0, 120.0
"""Seconds on one machine: a shorter job is not worth its start; beside a longer one it is cheap."""

Unit = list[str]
"""Ids of bundles that stay together."""

Group = tuple[str, ...]
"""Common properties of the bundles of a job: the execution as JSON, arithmetic, and readers."""


@dataclass(frozen=True)
class Job:
    """Bundles that are trained one after another by one command.

    Attributes:
        job: Name of the job, as paths and schedulers may have it.
        title: What it trains.
        bundles: Ids of the bundles, in order.
        runs: Ids of the runs that are missing.
        datasets: Ids of the data sets.
        partitions: Ids of the partitions.
        after: Names of the jobs that must end before it starts.
        execution: What it asks for.
        store: Folder of the runs.
        most_mb: Memory of the largest node in MiB; None if nodes are unknown.
        is_part: Whether it trains only these runs, and no others of the bundles.
    """

    job: str
    title: str
    bundles: list[str]
    runs: list[str]
    datasets: list[str]
    partitions: list[str]
    after: list[str]
    execution: Execution
    store: str = ""
    most_mb: int | None = None
    is_part: bool = False


@dataclass(frozen=True)
class Machine:
    """Resources that jobs share: cores, and cards for those jobs that ask for any."""

    cores: int
    cards: int

    def simultaneous_jobs(self, execution: Execution) -> int:
        """Return how many jobs run side by side."""
        cores, cards = self.cores // threads(execution), gpus(execution)
        return max(1, min(cores, self.cards // cards) if cards else cores)


def form_jobs(
    bundles: Mapping[str, Bundle],
    store: Store,
    merge: bool | Machine = False,
    readers: Mapping[str, Sequence[str]] | None = None,
    nodes: Sequence[Node] = (),
    is_part: bool = False,
) -> Iterator[Job]:
    """Yield the jobs that train bundles.

    Args:
        bundles: The bundles by id, each of which lacks runs.
        store: The store of runs.
        merge: If false, each bundle is a job; if true, they are merged for a cluster, else for that
            machine.
        readers: The studies that wait for each bundle. On one machine only bundles with the same
            readers are merged, so that a run that fails is missed only by those who read it.
        nodes: Resources of the cluster's nodes, as far as they are known.
        is_part: Whether the bundles may have other runs, which are not to be trained.
    """
    groups = [[name] for name in bundles]
    if merge:
        groups = list(_merged(bundles, store, merge, readers or {}))
    titles = [_title([bundles[name].title for name in group]) for group in groups]
    runs = [[m.run for n in group for m in missing_runs(bundles[n], store)] for group in groups]
    # A job of a part has a name of its own, as one of the whole may be in a queue.
    members_of = [[*g, *r] if is_part else g for g, r in zip(groups, runs, strict=True)]
    names = list(map(_name, titles, members_of))
    job_of = {bundle: job for job, group in zip(names, groups, strict=True) for bundle in group}
    for job, title, group, missing in zip(names, titles, groups, runs, strict=True):
        members = [bundles[name] for name in group]
        starts = {start for bundle in members for start in bundle.after}
        predecessors = {job_of[start] for start in starts if start in job_of}
        execution = members[0].execution
        yield Job(
            job=job,
            title=title,
            bundles=group,
            runs=missing,
            datasets=sorted({bundle.dataset for bundle in members}),
            partitions=sorted({bundle.partition for bundle in members}),
            after=sorted(predecessors - {job}),
            execution=execution,
            store=str(store.root),
            most_mb=_largest_memory(nodes, execution.slurm_partition),
            is_part=is_part,
        )


def _largest_memory(nodes: Sequence[Node], slurm_partition: str | None) -> int | None:
    sizes = (node.memory_mb for node in nodes if node.slurm_partition == slurm_partition)
    return max((size for size in sizes if size), default=None)


def readers(bundles_of_study: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the studies that need each bundle, by bundle."""
    by_bundle: dict[str, list[str]] = {}
    for study, bundles in bundles_of_study.items():
        for bundle in bundles:
            by_bundle.setdefault(bundle, []).append(study)
    return by_bundle


def _title(titles: Sequence[str]) -> str:
    """Title of a job, from titles of its bundles: ``FedAvg, Local on digits / ...``."""
    pieces = [title.rpartition(" on ") for title in titles]
    methods, scenarios = (list(dict.fromkeys(piece[end] for piece in pieces)) for end in (0, 2))
    return f"{_shortened(methods)} on {_shortened(scenarios)}"


def _shortened(names: Sequence[str], limit: int = 3) -> str:
    remainder = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + remainder


def _name(title: str, members: Sequence[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower())[:60].strip("-")
    return f"{words or 'job'}-{identity.digest(sorted(members))}"


def _merged(
    bundles: Mapping[str, Bundle],
    store: Store,
    merge: bool | Machine,
    readers: Mapping[str, Sequence[str]],
) -> Iterator[list[str]]:
    """Yield the bundles of each job, in the order in which to train them.

    Bundles of a job ask for the same resources, have the same readers and wait for the same.
    """
    rates, depths = Rates(store), _depths(bundles)
    costs = {name: _cost(bundle, rates, store, merge) for name, bundle in bundles.items()}
    if merge is True:
        costs |= _unmeasured_costs(bundles, costs)
    readers = readers if isinstance(merge, Machine) else {}
    group_of: dict[str, Group] = {
        name: (
            json.dumps(asdict(bundle.execution), sort_keys=True),
            bundle.arithmetic,
            *sorted(readers.get(name, ())),
        )
        for name, bundle in bundles.items()
    }
    members: dict[Group, list[str]] = defaultdict(list)
    for name in sorted(bundles, key=lambda name: (bundles[name].dataset, name)):
        members[group_of[name]].append(name)
    lengths = {
        group: _length(bundles[names[0]].execution, sum(costs[name] for name in names), merge)
        for group, names in members.items()
    }
    families = _families(bundles)
    units = _units(bundles, families, group_of, costs, lengths)
    # A chain to its end before the next one, so that no bundle waits for one of another chain.
    chain = {name: (bundles[names[0]].dataset, names[0]) for names in families for name in names}
    for (group, _), of_group in units.items():
        for job in _distributed(of_group, costs, lengths[group]):
            yield sorted(job, key=lambda name: (*chain[name], depths[name], name))


def _units(
    bundles: Mapping[str, Bundle],
    families: Iterable[Unit],
    group_of: Mapping[str, Group],
    costs: Mapping[str, float],
    lengths: Mapping[Group, float],
) -> dict[tuple[Group, tuple[str, ...]], list[Unit]]:
    """Return the units that may share jobs, by group and the bundles for which they wait.

    A family is a unit if it fits into a job; otherwise each of its bundles is one, with its other
    draws, and one for which others wait is a job alone.
    """
    units: dict[tuple[Group, tuple[str, ...]], list[Unit]] = defaultdict(list)
    for family in families:
        group = group_of[family[0]]
        cost = sum(costs[name] for name in family)
        if {group_of[name] for name in family} == {group} and cost <= lengths[group]:
            units[group, ()].append(family)
            continue
        starts = {start for name in family for start in bundles[name].after}
        for draws in _draws(family, lambda name: (bundles[name].stack_key, group_of[name])):
            after = {start for name in draws for start in bundles[name].after}
            predecessors = ("", *draws) if starts & {*draws} else tuple(sorted(after))
            units[group_of[draws[0]], predecessors].append(draws)
    return units


def _draws(names: Iterable[str], key: Callable[[str], Hashable]) -> list[Unit]:
    """Group bundles that differ only in their draw, by a key that they then have in common."""
    units: dict[Hashable, Unit] = {}
    for name in names:
        units.setdefault(key(name), []).append(name)
    return list(units.values())


def _length(execution: Execution, work: float, merge: bool | Machine) -> float:
    """Return how many seconds a job should last if all of its group take ``work`` seconds."""
    longest = 60.0 * min(execution.merge_minutes, execution.minutes)
    if not isinstance(merge, Machine):
        return longest
    share = work / merge.simultaneous_jobs(execution)
    return min(max(SHORTEST, share / max(1, share // LONG)), longest)


def _depths(bundles: Mapping[str, Bundle]) -> dict[str, int]:
    """Return how many of the others must be trained before each bundle, one after another."""

    @cache
    def depth(name: str) -> int:
        starts = (start for start in bundles[name].after if start in bundles)
        return 1 + max(map(depth, starts), default=-1)

    return {name: depth(name) for name in bundles}


def _families(bundles: Mapping[str, Bundle]) -> list[Unit]:
    """Group bundles of which one starts from another, or both from a third; and their draws."""
    family_of = {
        name: draws
        for draws in _draws(bundles, lambda name: bundles[name].stack_key)
        for name in draws
    }
    for name, bundle in bundles.items():
        for start in bundle.after:
            if start in bundles and family_of[start] is not family_of[name]:
                family_of[start].extend(family_of[name])
                family_of |= dict.fromkeys(family_of[name], family_of[start])
    return list({family[0]: family for family in family_of.values()}.values())


def _distributed(units: list[Unit], costs: Mapping[str, float], length: float) -> list[list[str]]:
    """Distribute units over jobs of about ``length`` seconds.

    The longest unit comes first, each to the job with least work. What takes unknown time, or as
    long as a job should, is a job alone.
    """
    costed = [(sum(costs[name] for name in unit), unit) for unit in units]
    separate = [unit for cost, unit in costed if cost >= length]
    short = [(cost, unit) for cost, unit in costed if cost < length]
    count = math.ceil(sum(cost for cost, _ in short) / length - 0.1) if short else 0
    most_bundles = math.ceil(sum(len(unit) for _, unit in short) / MOST_BUNDLES)
    count = max(count, most_bundles, min(1, len(short)))
    jobs: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(count)]
    for cost, unit in sorted(short, key=lambda pair: (-pair[0], pair[1])):
        work, number, names = heapq.heappop(jobs)
        heapq.heappush(jobs, (work + cost, number, [*names, *unit]))
    return [*separate, *(names for _, _, names in sorted(jobs, key=lambda job: job[1]))]


def _unmeasured_costs(
    bundles: Mapping[str, Bundle], costs: Mapping[str, float]
) -> dict[str, float]:
    """Return seconds for bundles of unknown length by which they become `UNMEASURED_JOBS` jobs.

    Fewer bundles than that stay jobs of their own. A job that reaches its limit goes on later, so
    that too long a job costs time, but thousands of jobs cost the scheduler's patience.
    """
    unknown = [name for name, cost in costs.items() if math.isinf(cost)]
    if len(unknown) <= UNMEASURED_JOBS:
        return {}
    lengths = (_length(bundles[name].execution, 0.0, True) for name in unknown)
    share = UNMEASURED_JOBS / len(unknown)
    return {name: length * share for name, length in zip(unknown, lengths, strict=True)}


def _cost(bundle: Bundle, rates: Rates, store: Store, merge: bool | Machine) -> float:
    """Return the seconds of a bundle; on one machine a guess, as no scheduler ends a job there."""
    estimated = seconds(bundle, rates, store)
    if math.isfinite(estimated) or not isinstance(merge, Machine):
        return estimated
    try:
        specs = (member.spec for member in missing_runs(bundle, store))
        return SECONDS_PER_STEP * sum(map(client_steps, specs))
    except (FedloomError, OSError):
        return 0.0  # The user's table that it is planned on does not exist any more.


def seconds(bundle: Bundle, rates: Rates, store: Store) -> float:
    """Return the seconds that a bundle's missing runs will take; infinity if that is unknown."""
    specs = [member.spec for member in missing_runs(bundle, store)]
    measured = rates.seconds(specs)
    if measured is not None:
        return measured / bundle.execution.processes
    guess = bundle.execution.run_minutes
    return 60.0 * guess * len(specs) if guess else math.inf


def threads(execution: Execution) -> int:
    """Return how many CPU cores a job asks for."""
    return execution.processes * execution.threads


def gpus(execution: Execution) -> int:
    """Return how many GPUs a job asks for.

    That is as the config says; else one for each process, if it wants one or finds any.
    """
    device, per_process = execution.device, execution.gpus
    if per_process is None:
        finds_one = device == "auto" and any(Path("/dev").glob("nvidia[0-9]*"))
        per_process = int(device == "cuda" or finds_one)
    return execution.processes * per_process


def memory(job: Job) -> int:
    """Return the memory that a job requests, in MiB.

    Snakemake's MB are 10**6 bytes, but it passes the number of ``mem_mb`` on as it is, and Slurm's
    ``--mem`` and PBS count in MiB.

    For each attempt of one of its runs that had too little memory, it requests ``memory_mb`` once
    more, up to the memory of the cluster's nodes. A run that was killed for an unknown reason
    counts as one with too little memory.
    """
    store, per_process = Store(Path(job.store)), job.execution.memory_mb
    kills, reason = 0, cache(slurm.end_reason)
    for run in job.runs:
        if store.partial(run).exists() and not store.holder(run):
            slurm.last_attempt(store, run, reason)  # It stores how that attempt ended.
            same_memory = (a for a in store.attempts(run) if a.memory_mb == per_process)
            kills = max(kills, sum(a.ended in ("memory", "killed") for a in same_memory))
    request = job.execution.processes * per_process * (1 + kills)
    return min(request, job.most_mb or request)
