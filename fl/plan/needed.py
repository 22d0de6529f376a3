"""Which runs the studies of a config folder need, whether or not ``config.yaml`` names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl.base.errors import FedloomError
from fl.plan import config, plan


@dataclass(frozen=True)
class Needed:
    """What studies need, for the config as it is now.

    Attributes:
        members: By run, the member of its bundle.
        unplanned: By study that cannot be planned, the reason.
    """

    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    unplanned: dict[str, FedloomError] = field(default_factory=dict)

    @property
    def remarks(self) -> list[str]:
        """A line for each study that cannot be planned."""
        return [f"{name} cannot be planned: {why}" for name, why in self.unplanned.items()]


def look(folder: Path, studies: Iterable[str]) -> Needed:
    """Plan each study by itself, so that one that cannot be planned does not stop the others.

    Whether models and methods can be trained is not tried.

    Raises:
        FedloomError: For what is wrong with the config of all studies.
    """
    config.settings(folder)
    config.check_methods(folder)
    needed = Needed()
    for name in studies:
        try:
            bundles = plan.asked(folder, [name], checked=False).bundles
        except FedloomError as error:
            needed.unplanned[name] = error
        else:
            needed.members.update({m["run"]: m for b in bundles.values() for m in b["runs"]})
    return needed


def every(folder: Path) -> list[str]:
    """The names of all studies of a config folder."""
    return sorted(path.stem for path in (folder / "studies").glob("*.yaml"))


def datasets(folder: Path, needed: Needed) -> dict[str, str]:
    """By data set of a study that cannot be planned, that study.

    Raises:
        FedloomError: That study's error, if its file does not tell its data sets: then any run may
            be one of the study's.
    """
    by_dataset: dict[str, str] = {}
    for study, why in needed.unplanned.items():
        try:
            items = config.read_yaml(folder / "studies" / f"{study}.yaml").get("datasets")
            if not isinstance(items, list) or not items:
                raise ValueError(items)
            by_dataset |= {_name(item): study for item in items}
        except (FedloomError, ValueError):
            raise why from None
    return by_dataset


def _name(item: Any) -> str:
    """The data set's name in ``name`` or ``{name: keys}``; `ValueError` for what is neither."""
    if isinstance(item, Mapping):
        (item,) = item
    if not isinstance(item, str):
        raise ValueError(item)
    return item
