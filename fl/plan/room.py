"""Whether what jobs ask for can be had, as far as that is known before there is any data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import ConfigError, Where
from fl.plan.config import Settings

if TYPE_CHECKING:  # They import torch, which a plan that is known does without.
    from fl.plan.expand import Expansion, Run


def check_nodes(runs: Iterable[Run], settings: Settings, folder: Path) -> None:
    """Refuse (`ConfigError`) a job that fits on no node of its partition; it would never start."""
    where = Where(os.path.relpath(folder / "config.yaml")) / "nodes"
    for run in runs:
        asked = run.execution
        lacking = [n.lacks(asked) for n in settings.nodes if n.partition == asked.partition]
        if lacking and all(lacking):
            place = f"partition {asked.partition!r}" if asked.partition else "the default partition"
            problem = f"no node of {place} can hold a job of {run.title}, which asks for "
            allowed = "less in its `execution`, or a node that has it"
            raise ConfigError(where, problem + ", ".join(lacking[-1]), allowed)


def check_processes(expansion: Expansion, settings: Settings, folder: Path) -> None:
    """Refuse (`ConfigError`) more processes than clients that take part in a round; the rest would
    have nothing to do. Where only the data says how many there are, the job refuses.
    """
    for run in expansion.runs:
        asked, clients = run.execution.processes, run.partition.spec.get("clients")
        if asked == 1 or not isinstance(clients, int):
            continue
        there = max(1, round(run.spec["training"]["participation"] * clients))
        if asked > there:
            general = settings.execution.processes == asked
            file = Where(os.path.relpath(folder / "config.yaml")) if general else expansion.where
            problem = f"is {asked}, but {there} clients take part in a round of {run.title}"
            raise ConfigError(file / "execution" / "processes", problem, f"1 to {there}")
