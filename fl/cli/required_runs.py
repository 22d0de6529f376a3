"""The runs that the studies of a config folder need, whether ``config.yaml`` names them or not."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fl.base.errors import FedloomError
from fl.plan import config, missing_runs, plan
from fl.plan.bundle import Member

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RequiredRuns:
    """The runs that studies need, for the config as it is now.

    Attributes:
        members: The runs by id.
        unplanned: The errors of studies that cannot be planned, by study.
    """

    members: dict[str, Member] = field(default_factory=dict)
    unplanned: dict[str, FedloomError] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """A line for each study that cannot be planned."""
        return [f"{name} cannot be planned: {why}" for name, why in self.unplanned.items()]


def find(
    folder: Path,
    studies: Iterable[str],
    anew: bool = False,
    candidates: Collection[str] | None = None,
) -> RequiredRuns:
    """Plan each study by itself, so that one that cannot be planned does not stop the others.

    Whether models and methods can be trained is not tried.

    Args:
        folder: The config folder.
        studies: Names of the studies.
        anew: Whether a plan that was written before is ignored.
        candidates: Runs of which is asked whether studies need them: as soon as all are needed, no
            further study is planned. None: all studies are planned.

    Raises:
        FedloomError: For what is wrong with the config of all studies.
    """
    settings = config.read_settings(folder)
    config.check_methods(folder)
    required = RequiredRuns()
    written = set() if anew else plan.written_studies(folder, settings)
    log.info("looking for the runs that studies need, which takes seconds")
    for name in studies:
        if candidates is not None and required.members.keys() >= {*candidates}:
            break
        try:
            plan_study = plan.read_or_make if name in written else plan.make
            members = plan_study(folder, [name], checked=False).members
        except FedloomError as error:
            required.unplanned[name] = error
        else:
            required.members.update(members)
    missing_runs.supply(required.members, settings)
    return required


def all_studies(folder: Path) -> list[str]:
    """Return the names of all studies of a config folder."""
    return sorted(path.stem for path in (folder / "studies").glob("*.yaml"))
