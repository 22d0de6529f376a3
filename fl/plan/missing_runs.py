"""Runs that a plan needs and the store lacks, which extras may supply without training.

A store or a folder of results that cannot be written stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fl.base.seams import Seam
from fl.plan import plan_files
from fl.plan.bundle import Member
from fl.plan.config import Settings
from fl.plan.plan_files import PlanSummary

MISSING_RUNS = Seam[Callable[[Iterable[str], Callable[[str], Member], Settings], None]](
    "missing runs"
)
"""Functions of the ids of a plan's runs, of a function that returns a run by its id, and of the
settings.
"""


def supply(members: Mapping[str, Member], settings: Settings) -> None:
    """Let extras supply runs of a plan.

    Args:
        members: The runs by id.
        settings: The folders of the store and of results.
    """
    for supply_runs in MISSING_RUNS.hooks():
        supply_runs(members, members.__getitem__, settings)


def supply_summary(summary: PlanSummary, settings: Settings) -> None:
    """Let extras supply runs of a written plan, of which only these are read, see `supply`."""
    bundles = {run: name for name, bundle in summary.bundles.items() for run in bundle.runs}

    def read_member(run: str) -> Member:
        bundle = plan_files.read_bundle(Path(settings.results) / "plan", bundles[run])
        return next(member for member in bundle.runs if member.run == run)

    for supply_runs in MISSING_RUNS.hooks():
        supply_runs(bundles, read_member, settings)
