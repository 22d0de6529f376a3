"""Selection of a study's runs by method, data set and model: ``--only method=ditto``."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from fl.base.errors import ConfigError, Location, unknown_name
from fl.plan.bundle import Run
from fl.plan.study_plan import StudyPlan

if TYPE_CHECKING:  # Commands that only read a plan start without what makes one.
    from fl.plan.plan import Plan

SELECTION_KEYS = ("method", "dataset", "model")
"""Keys by which runs can be selected."""

OPTION_LOCATION = Location("the command line") / "--only"


class _Bundle(Protocol):
    """A bundle, or its entry in a plan's index, as far as its starts are concerned."""

    @property
    def after(self) -> Collection[str]:
        """Ids of the bundles from whose runs its runs start."""


@dataclass(frozen=True)
class Selection:
    """Names by which runs are selected; a run must have one of the names of each key.

    Attributes:
        names: Allowed names by key of `SELECTION_KEYS`; a key that is absent allows all.
    """

    names: Mapping[str, tuple[str, ...]]

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.names)

    def runs(self, study: StudyPlan) -> list[Run]:
        """Return the selected runs of a study.

        Raises:
            ConfigError: If the study has no run with one of the names.
        """
        for key, names in self.names.items():
            existing = {name for run in study.runs for name in _names(run, key)}
            for name in names:
                if name not in existing:
                    raise unknown_name(OPTION_LOCATION / key, f"{key} of the study", name, existing)
        selected = [
            run
            for run in study.runs
            if all({*names} & {*_names(run, key)} for key, names in self.names.items())
        ]
        if not selected:
            raise ConfigError(OPTION_LOCATION, f"selects no run of {study.study}")
        return selected

    def study(self, study: StudyPlan) -> StudyPlan:
        """Return the plan of a study with the selected runs alone."""
        return replace(study, runs=self.runs(study)) if self else study

    def bundles(self, studies: Iterable[StudyPlan], bundles: Mapping[str, _Bundle]) -> set[str]:
        """Return the bundles of the selected runs, and those from which these start.

        Args:
            studies: The studies.
            bundles: All bundles of the studies by id.
        """
        needed = set[str]()
        new = {run.bundle for study in studies for run in self.runs(study)}
        while new:
            needed |= new
            new = {start for name in new for start in bundles[name].after} - needed
        return needed & {*bundles}


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--only`` to a command."""
    parser.add_argument(
        *("--only",),
        action="append",
        default=[],
        metavar="KEY=NAME",
        help="only these runs: method=NAME[,NAME], dataset=NAME or model=NAME; can be repeated",
    )


def parse(texts: Sequence[str]) -> Selection:
    """Return the selection that ``KEY=NAME`` or ``KEY=NAME,NAME`` describe.

    Raises:
        ConfigError: For a key that is unknown or has no name.
    """
    names: dict[str, tuple[str, ...]] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key not in SELECTION_KEYS:
            raise unknown_name(OPTION_LOCATION, "key", key, SELECTION_KEYS)
        added = tuple(filter(None, value.split(",") if key == "method" else [value]))
        if not added:
            raise ConfigError(OPTION_LOCATION / key, "has no name", advice=f"--only {key}=NAME")
        names[key] = (*names.get(key, ()), *added)
    return Selection(names)


def _names(run: Run, key: str) -> tuple[str, str]:
    """Return the text of a run's method, data set or model, and its name without keys."""
    text = {"method": run.method, "dataset": run.dataset, "model": run.model}[key]
    return text, text.partition("(")[0]


def select(plan: Plan, selection: Selection) -> Plan:
    """Return a plan with the selected runs alone, and the bundles that these need."""
    names = selection.bundles(plan.studies.values(), plan.bundles)
    return replace(
        plan,
        studies={name: selection.study(study) for name, study in plan.studies.items()},
        bundles={name: bundle for name, bundle in plan.bundles.items() if name in names},
    )
