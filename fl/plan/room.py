"""Whether what jobs ask for can be had, as far as that is known before there is any data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import ConfigError, Location
from fl.plan.config import Settings

if TYPE_CHECKING:  # It imports torch, which a plan that is known does without.
    from fl.plan.expand import Expansion


def check(expansion: Expansion, settings: Settings, folder: Path) -> None:
    """Refuse (`ConfigError`) a job that fits on no node of its partition, and would never start;
    and more processes than clients that take part in a round, as the rest would have nothing to do.
    Where only the data say how many clients there are, the job refuses.
    """
    general = Location(os.path.relpath(folder / "config.yaml"))
    for run in expansion.runs:
        asked, clients = run.execution, run.partition.spec.get("clients")
        lacking = [n.lacks(asked) for n in settings.nodes if n.partition == asked.partition]
        if lacking and all(lacking):
            place = f"partition {asked.partition!r}" if asked.partition else "the default partition"
            problem = f"no node of {place} can hold a job of {run.title}, which asks for "
            allowed = "less in its `execution`, or a node that has it"
            raise ConfigError(general / "nodes", problem + ", ".join(lacking[-1]), allowed)
        if asked.processes == 1 or not isinstance(clients, int):
            continue
        there = max(1, round(run.spec["training"]["participation"] * clients))
        if asked.processes > there:
            by_all = settings.execution.processes == asked.processes
            at = (general if by_all else expansion.location) / "execution" / "processes"
            taking = f"{there} clients take part in a round of {run.title}"
            raise ConfigError(at, f"is {asked.processes}, but {taking}", f"1 to {there}")
