"""Jobs: which bundles are trained together, so that there are fewer of them to start.

A bundle is what belongs together; a job is what is started together. Every start costs seconds, of
a scheduler or of this machine, so bundles that take a minute are merged into longer jobs. Only what
the store lacks is put into jobs, so the jobs change as runs finish. That does no harm: a job trains
what its bundles lack when it starts, and no run's name depends on it.

On a cluster as few jobs as may be are formed (`_for_a_cluster`); on one machine so many that all
cores are busy to the end (`fl.plan.sharing`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from fl.base import identity
from fl.base.errors import FedloomError
from fl.plan.bundle import Bundle, Member
from fl.plan.estimate import Rates, client_steps
from fl.plan.sharing import Machine, Piece, shared
from fl.store.store import Store

LONGEST = 500
"""Bundles of a job at most: their files stand in the command that trains them."""

STEP = 5e-4
"""Seconds that a local step of a client is taken to last where nothing is known."""


def lacks(bundle: Bundle, store: Store) -> list[Member]:
    """The members of a bundle that are not in the store, or not with the weights asked for."""
    return [
        member
        for member in bundle.runs
        if not (store.has_weights if member.keep_weights else store.has)(member.run)
    ]


def turns(bundles: Sequence[Bundle], store: Store) -> Iterator[Bundle]:
    """The bundles of a job in the order in which to train them, found as they are asked for.

    It is their own, but what another process is at comes after what nobody is at, so that several
    who share a store share the work. A bundle comes after those of the job that it waits for.
    """
    left = {one.bundle: one for one in bundles}
    while left:
        free = [one for one in left.values() if not left.keys() & {*one.after}] or [*left.values()]
        elsewhere = (one for one in free if not any(store.holder(m.run) for m in one.runs))
        yield left.pop(next(elsewhere, free[0]).bundle)


def form(
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
        By name; a job of one bundle has the bundle's name. ``after``: the jobs that it waits for.
    """
    if isinstance(merge, Machine):
        groups = list(_for_a_machine(bundles, store, merge, readers or {}))
    else:
        groups = list(_for_a_cluster(bundles, store)) if merge else [[name] for name in bundles]
    home = {name: _name(group) for group in groups for name in group}
    for group in groups:
        members = [bundles[name] for name in group]
        starts = {start for bundle in members for start in bundle.after}
        waited = {home[start] for start in starts if start in home}
        others = f" and {len(group) - 1} more" if len(group) > 1 else ""
        yield {
            "job": _name(group),
            "title": f"{members[0].title}{others}",
            "bundles": group,
            "datasets": sorted({bundle.dataset for bundle in members}),
            "partitions": sorted({bundle.partition for bundle in members}),
            "after": sorted(waited - {_name(group)}),
            "execution": asdict(members[0].execution),
        }


def readers(studies: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """By bundle, the studies that need it: of a plan, or of its summary in ``plan.json``."""
    found: dict[str, list[str]] = {}
    for name, study in studies.items():
        for bundle in study.get("bundles") or {run["bundle"] for run in study["runs"]}:
            found.setdefault(bundle, []).append(name)
    return found


def _name(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else identity.digest(sorted(group))


def _for_a_cluster(bundles: Mapping[str, Bundle], store: Store) -> Iterator[list[str]]:
    """Bundles put into jobs, each until another bundle would make it longer than allowed.

    Bundles of a job ask for the same resources, and none starts from what another of them trains. A
    job waits for whole jobs, so with anything else two jobs could wait for each other.
    """
    rates = Rates(store)
    for alike in _alike(bundles):
        execution = bundles[alike[0]].execution
        most = 60 * min(execution.merge_minutes, execution.minutes)
        group: list[str] = []
        filled = 0.0
        for name in alike:
            cost = seconds(bundles[name], rates, store)
            if group and (filled + cost > most or len(group) == LONGEST):
                yield group
                group, filled = [], 0.0
            group.append(name)
            filled += cost
        yield group


def _alike(bundles: Mapping[str, Bundle]) -> list[list[str]]:
    """Bundles that may share a job; those on the same data next to each other."""
    depth = _depths(bundles)

    def place(name: str) -> tuple[str, str, str]:
        return bundles[name].dataset, bundles[name].partition, name

    found: dict[tuple[int, str], list[str]] = {}
    for name in sorted(bundles, key=place):
        found.setdefault((depth[name], _asked(bundles[name])), []).append(name)
    return list(found.values())


def _asked(bundle: Bundle) -> str:
    """What a bundle asks for, as a text that two bundles of a job have in common."""
    return json.dumps(asdict(bundle.execution), sort_keys=True)


def _depths(bundles: Mapping[str, Bundle]) -> dict[str, int]:
    """How many of the others have to be trained before each, one after another."""

    @cache
    def depth(name: str) -> int:
        starts = (start for start in bundles[name].after if start in bundles)
        return 1 + max(map(depth, starts), default=-1)

    return {name: depth(name) for name in bundles}


def _for_a_machine(
    bundles: Mapping[str, Bundle],
    store: Store,
    machine: Machine,
    readers: Mapping[str, Sequence[str]],
) -> Iterator[list[str]]:
    """Bundles put into jobs that keep a machine busy; those of a job in the order to train them."""
    depth, costs, known = _depths(bundles), *_costs(bundles, store)
    pieces = [
        Piece(
            name,
            costs[name],
            tuple(sorted(start for start in bundle.after if start in bundles)),
            (_asked(bundle), *sorted(readers.get(name, ()))),
            machine.at_once(bundle.execution, gpus(asdict(bundle.execution))),
            60.0 * bundle.execution.merge_minutes,
        )
        for name, bundle in sorted(bundles.items())
    ]
    for group in shared(pieces, known, LONGEST):
        yield sorted(group, key=lambda name: (depth[name], bundles[name].dataset, name))


def _costs(bundles: Mapping[str, Bundle], store: Store) -> tuple[dict[str, float], bool]:
    """Seconds of each bundle, and whether all of them are more than a guess."""
    rates = Rates(store)
    found = {name: seconds(bundle, rates, store) for name, bundle in bundles.items()}
    unknown = [name for name, cost in found.items() if math.isinf(cost)]
    for name in unknown:
        found[name] = STEP * sum(_steps(member.spec) for member in lacks(bundles[name], store))
    return found, not unknown


def _steps(spec: Mapping[str, Any]) -> int:
    try:
        return client_steps(spec)
    except (FedloomError, OSError):
        return 0  # The user's table that it is planned on is not there any more.


def seconds(bundle: Bundle, rates: Rates, store: Store) -> float:
    """How long a bundle's missing runs will take; infinity if that is unknown."""
    specs = [member.spec for member in lacks(bundle, store)]
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
        found = device == "auto" and any(Path("/dev").glob("nvidia[0-9]*"))
        each = int(device == "cuda" or found)
    return int(execution["processes"] * each)
