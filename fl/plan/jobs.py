"""Jobs: which bundles are trained together, so that there are fewer of them to start.

A bundle is what belongs together; a job is what is started together. Every start costs seconds, of
a scheduler or of this machine, so bundles that take a minute are merged into longer jobs. Only what
the store lacks is put into jobs, so the jobs change as runs finish. That does no harm: a job trains
what its bundles lack when it starts, and no run's name depends on it.

On a cluster there are as few jobs as may be. On one machine there are so many that all cores are
busy to the end: as many as run at once where work is short, several for each of these where it is
long. All of them are of about the same length.

A job that fails is waited for in vain by all that wait for it. So a bundle is put together with
those that start from it, and where that takes too long it is a job alone.
"""

from __future__ import annotations

import heapq
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fl.base import identity
from fl.base.errors import FedloomError
from fl.plan.bundle import Bundle, Member
from fl.plan.config import Execution
from fl.plan.estimate import Rates, client_steps
from fl.store.store import Store

LARGEST = 500
"""Bundles of a job at most: their files stand in the command that trains them."""

STEP = 5e-4
"""Seconds that a local step of a client is taken to last where nothing is known."""

LEAST, ENOUGH = 30.0, 120.0
"""On one machine, seconds below which a job is not worth its start, and beside which a start costs
little.
"""


@dataclass(frozen=True)
class Machine:
    """What jobs share: cores, and cards of those jobs that ask for any."""

    cores: int
    cards: int

    def at_once(self, execution: Execution) -> int:
        """How many jobs of that kind run side by side."""
        cores, cards = self.cores // threads(asdict(execution)), gpus(asdict(execution))
        return max(1, min(cores, self.cards // cards) if cards else cores)


def missing_members(bundle: Bundle, store: Store) -> list[Member]:
    """The members of a bundle that are not in the store, or not with the files asked for."""
    return [member for member in bundle.runs if not store.has(member.run, member.keep)]


def training_order(bundles: Sequence[Bundle], store: Store) -> Iterator[Bundle]:
    """The bundles of a job in the order in which to train them, looked for as they are asked for.

    Bundles that another process trains come last, so that several who share a store share the work.
    A bundle comes after those of the job that it waits for.
    """
    left = {bundle.bundle: bundle for bundle in bundles}
    while left:
        free = [bundle for bundle in left.values() if not left.keys() & {*bundle.after}]
        free = free or list(left.values())
        unleased = (bundle for bundle in free if not any(store.holder(m.run) for m in bundle.runs))
        yield left.pop(next(unleased, free[0]).bundle)


def form_jobs(
    bundles: Mapping[str, Bundle],
    store: Store,
    merge: bool | Machine = False,
    readers: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[dict[str, Any]]:
    """The jobs that train ``bundles``, each of which lacks something.

    Args:
        merge: If false, each bundle is a job; if true, they are merged for a cluster, else for that
            machine.
        readers: By bundle, who waits for it, such as studies. On one machine only bundles with the
            same readers are merged, so that a run that fails is missed by those alone who read it.

    Returns:
        What each trains and asks for. Its name says what it trains, as paths and schedulers may
        have it. ``after``: the jobs that it waits for.
    """
    groups = [[name] for name in bundles]
    if merge:
        groups = list(_merged(bundles, store, merge, readers or {}))
    titles = [_title([bundles[name].title for name in group]) for group in groups]
    named = [_name(title, group) for title, group in zip(titles, groups, strict=True)]
    home = {name: job for job, group in zip(named, groups, strict=True) for name in group}
    for job, title, group in zip(named, titles, groups, strict=True):
        members = [bundles[name] for name in group]
        starts = {start for bundle in members for start in bundle.after}
        waited = {home[start] for start in starts if start in home}
        yield {
            "job": job,
            "title": title,
            "bundles": group,
            "runs": [member.run for bundle in members for member in missing_members(bundle, store)],
            "datasets": sorted({bundle.dataset for bundle in members}),
            "partitions": sorted({bundle.partition for bundle in members}),
            "after": sorted(waited - {job}),
            "execution": asdict(members[0].execution),
        }


def readers(bundles_of_study: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Return the studies that need each bundle, by bundle."""
    by_bundle: dict[str, list[str]] = {}
    for study, bundles in bundles_of_study.items():
        for bundle in bundles:
            by_bundle.setdefault(bundle, []).append(study)
    return by_bundle


def _title(titles: Sequence[str]) -> str:
    """What a job trains: ``FedAvg, Local on digits / ...``, by the titles of its bundles."""
    parts = [title.rpartition(" on ") for title in titles]
    listed = (list(dict.fromkeys(fields[end] for fields in parts)) for end in (0, 2))
    return " on ".join(_few(names) for names in listed)


def _few(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _name(title: str, group: Sequence[str]) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", title.lower())[:60].strip("-")
    return f"{words or 'job'}-{identity.digest(sorted(group))}"


Unit = list[str]
"""Bundles that stay together."""


def _merged(
    bundles: Mapping[str, Bundle],
    store: Store,
    merge: bool | Machine,
    readers: Mapping[str, Sequence[str]],
) -> Iterator[list[str]]:
    """The bundles of each job, in the order in which to train them.

    Bundles of a job ask for the same resources, have the same readers and wait for the same.
    """
    rates, depth = Rates(store), _depths(bundles)
    costs = {name: _cost(bundle, rates, store, merge) for name, bundle in bundles.items()}
    whose = readers if isinstance(merge, Machine) else {}
    kinds = {
        name: (json.dumps(asdict(bundle.execution), sort_keys=True), *sorted(whose.get(name, ())))
        for name, bundle in bundles.items()
    }
    by_kind: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in sorted(bundles, key=lambda name: (bundles[name].dataset, name)):
        by_kind[kinds[name]].append(name)
    lengths = {
        kind: _length(bundles[names[0]].execution, sum(costs[name] for name in names), merge)
        for kind, names in by_kind.items()
    }
    alike: dict[tuple[Any, ...], list[Unit]] = defaultdict(list)
    families = _families(bundles)
    for family in families:
        kind = kinds[family[0]]
        cost = sum(costs[name] for name in family)
        if {kinds[name] for name in family} == {kind} and cost <= lengths[kind]:
            alike[kind, ()].append(family)
            continue
        starts = {start for name in family for start in bundles[name].after}
        for name in family:
            waits = f"for itself, {name}" if name in starts else tuple(bundles[name].after)
            alike[kinds[name], waits].append([name])
    # A chain to its end before the next one, so that none waits for a slow neighbour.
    chain = {name: (bundles[names[0]].dataset, names[0]) for names in families for name in names}
    for (kind, _), units in alike.items():
        for group in _dealt(units, costs, lengths[kind]):
            yield sorted(group, key=lambda name: (*chain[name], depth[name], name))


def _length(execution: Execution, work: float, merge: bool | Machine) -> float:
    """How long a job should last, in seconds, where all of its kind take ``work``."""
    most = 60.0 * min(execution.merge_minutes, execution.minutes)
    if not isinstance(merge, Machine):
        return most
    share = work / merge.at_once(execution)
    return min(max(LEAST, share / max(1, share // ENOUGH)), most)


def _depths(bundles: Mapping[str, Bundle]) -> dict[str, int]:
    """How many of the others have to be trained before each, one after another."""

    @cache
    def depth(name: str) -> int:
        starts = (start for start in bundles[name].after if start in bundles)
        return 1 + max(map(depth, starts), default=-1)

    return {name: depth(name) for name in bundles}


def _families(bundles: Mapping[str, Bundle]) -> list[list[str]]:
    """Bundles that have to do with each other: one starts from another, or both from a third."""
    family = {name: [name] for name in bundles}
    for name, bundle in bundles.items():
        for start in bundle.after:
            if start in bundles and family[start] is not family[name]:
                family[start].extend(family[name])
                family |= dict.fromkeys(family[name], family[start])
    return list({id(names): names for names in family.values()}.values())


def _dealt(units: list[Unit], costs: Mapping[str, float], length: float) -> list[list[str]]:
    """Jobs of about ``length`` seconds: the longest unit first, each to the job with least work.

    What takes unknown time, or as long as a job should, is a job alone.
    """
    cost = {id(unit): sum(costs[name] for name in unit) for unit in units}
    alone = [unit for unit in units if cost[id(unit)] >= length]
    short = [unit for unit in units if cost[id(unit)] < length]
    count = math.ceil(sum(cost[id(unit)] for unit in short) / length - 0.1) if short else 0
    count = max(count, math.ceil(sum(map(len, short)) / LARGEST), min(1, len(short)))
    jobs: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(count)]
    for unit in sorted(short, key=lambda unit: (-cost[id(unit)], unit)):
        filled, number, names = heapq.heappop(jobs)
        heapq.heappush(jobs, (filled + cost[id(unit)], number, [*names, *unit]))
    return [*alone, *(names for _, _, names in sorted(jobs, key=lambda job: job[1]))]


def _cost(bundle: Bundle, rates: Rates, store: Store, merge: bool | Machine) -> float:
    """Seconds of a bundle; on one machine they may be a guess, as no scheduler ends a job there."""
    estimated = seconds(bundle, rates, store)
    if math.isfinite(estimated) or not isinstance(merge, Machine):
        return estimated
    try:
        return STEP * sum(client_steps(member.spec) for member in missing_members(bundle, store))
    except (FedloomError, OSError):
        return 0.0  # The user's table that it is planned on is not there any more.


def seconds(bundle: Bundle, rates: Rates, store: Store) -> float:
    """How long a bundle's missing runs will take; infinity if that is unknown."""
    specs = [member.spec for member in missing_members(bundle, store)]
    measured = rates.seconds(specs)
    if measured is not None:
        return measured / bundle.execution.processes
    guess = bundle.execution.run_minutes
    return 60.0 * guess * len(specs) if guess else math.inf


def threads(execution: Mapping[str, Any]) -> int:
    """How many CPU cores a job asks for."""
    return int(execution["processes"] * execution["threads"])


def gpus(execution: Mapping[str, Any]) -> int:
    """How many GPUs a job asks for: as the config says; else one for each process, if it wants one
    or finds any.
    """
    device, each = execution["device"], execution["gpus"]
    if each is None:
        any_there = device == "auto" and any(Path("/dev").glob("nvidia[0-9]*"))
        each = int(device == "cuda" or any_there)
    return int(execution["processes"] * each)
