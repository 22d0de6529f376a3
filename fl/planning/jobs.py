"""Jobs: which bundles are trained together, so that a cluster's scheduler has fewer jobs.

A bundle is what belongs together; a job is what is started together. Every job costs a scheduler
seconds, so bundles that take a minute are merged into longer jobs. Only what the store lacks is put
into jobs, so the jobs change as runs finish. That does no harm: a job trains what its bundles lack
when it starts, and no run's name depends on it.

Bundles of a job ask for the same resources, and none starts from what another of them trains. A job
waits for whole jobs, so with anything else two jobs could wait for each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from fl.code import identity
from fl.planning.bundle import Bundle, Member
from fl.planning.estimate import Rates
from fl.store.store import Store

LONGEST = 500
"""Bundles of a job at most: their files stand in the command that trains them."""


def lacks(bundle: Bundle, store: Store) -> list[Member]:
    """The members of a bundle that are not in the store, or not with the weights asked for."""
    return [
        member
        for member in bundle.runs
        if not (store.has_weights if member.keep_weights else store.has)(member.run)
    ]


def form(bundles: Mapping[str, Bundle], store: Store, merge: bool) -> Iterator[dict[str, Any]]:
    """The jobs that train ``bundles``, each of which lacks something.

    Args:
        merge: If false, each bundle is a job.

    Returns:
        By name; a job of one bundle has the bundle's name. ``after``: the jobs that it waits for.
    """
    groups = list(_merged(bundles, store)) if merge else [[name] for name in bundles]
    home = {name: _name(group) for group in groups for name in group}
    for group in groups:
        members = [bundles[name] for name in group]
        starts = {start for bundle in members for start in bundle.after}
        others = f" and {len(group) - 1} more" if len(group) > 1 else ""
        yield {
            "job": _name(group),
            "title": f"{members[0].title}{others}",
            "bundles": group,
            "datasets": sorted({bundle.dataset for bundle in members}),
            "partitions": sorted({bundle.partition for bundle in members}),
            "after": sorted({home[start] for start in starts if start in home}),
            "execution": asdict(members[0].execution),
        }


def _name(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else identity.digest(sorted(group))


def _merged(bundles: Mapping[str, Bundle], store: Store) -> Iterator[list[str]]:
    """Bundles put into jobs, each until another bundle would make it longer than allowed."""
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

    @cache
    def depth(name: str) -> int:
        """How many of the others have to be trained before it, one after another."""
        starts = (start for start in bundles[name].after if start in bundles)
        return 1 + max(map(depth, starts), default=-1)

    def place(name: str) -> tuple[str, str, str]:
        return bundles[name].dataset, bundles[name].partition, name

    found: dict[tuple[int, str], list[str]] = {}
    for name in sorted(bundles, key=place):
        key = (depth(name), json.dumps(asdict(bundles[name].execution), sort_keys=True))
        found.setdefault(key, []).append(name)
    return list(found.values())


def seconds(bundle: Bundle, rates: Rates, store: Store) -> float:
    """How long a bundle's missing runs will take; infinity if that is unknown."""
    specs = [member.spec for member in lacks(bundle, store)]
    measured = rates.seconds(specs)
    if measured is not None:
        return measured / bundle.execution.processes
    guess = bundle.execution.run_minutes
    return 60.0 * guess * len(specs) if guess else math.inf
