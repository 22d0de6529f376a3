"""Selection of a study's runs by method, data set, model, seed and draw: ``--only seed=0``."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fl.base.errors import ConfigError, Location, unknown_name
from fl.plan.bundle import Bundle, Run
from fl.plan.study_plan import StudyPlan

if TYPE_CHECKING:  # Commands that only read a plan start without what makes one.
    from fl.plan.plan import Plan

SELECTION_KEYS = ("method", "dataset", "model", "seed", "draw")
"""Keys by which runs can be selected."""

NUMBERED = ("seed", "draw")
"""Those whose names are numbers."""

OPTION_LOCATION = Location("the command line") / "--only"


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
                if name not in existing and key in NUMBERED:
                    problem = f"no run of {study.study} has {key} {name}"
                    listed = sorted(existing, key=lambda text: (len(text), text))
                    raise ConfigError(OPTION_LOCATION / key, problem, ", ".join(listed))
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

    def needed(self, studies: Iterable[StudyPlan]) -> set[str]:
        """Return the ids of the selected runs of studies, and of those from which these start."""
        studies, needed = [*studies], set[str]()
        starts = {run.run: run.start for study in studies for run in study.runs}
        new = {run.run for study in studies for run in self.runs(study)}
        while new:
            needed |= new
            new = {start for name in new if (start := starts.get(name))} - needed
        return needed


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--only`` to a command."""
    parser.add_argument(
        *("--only",),
        action="append",
        default=[],
        metavar="KEY=NAME",
        help="only these runs: method=NAME[,NAME], seed=0[,1], draw=3 (the seed of the partition), "
        "dataset=NAME or model=NAME; can be repeated",
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
        is_list = key in ("method", *NUMBERED)
        added = tuple(filter(None, value.split(",") if is_list else [value]))
        if not added:
            raise ConfigError(OPTION_LOCATION / key, "has no name", advice=f"--only {key}=NAME")
        names[key] = (*names.get(key, ()), *added)
    return Selection(names)


def _names(run: Run, key: str) -> tuple[str, ...]:
    """Return the text of a run's method, data set or model, and its name without keys.

    A draw has the seed of the partition, or of the data set if only that is drawn.
    """
    if key == "seed":
        return (str(run.seed),)
    if key == "draw":
        return (run.draw.rpartition(" ")[2] or str(run.spec["partition"].get("seed", "")),)
    text = {"method": run.method, "dataset": run.dataset, "model": run.model}[key]
    return text, text.partition("(")[0]


def select(plan: Plan, selection: Selection) -> Plan:
    """Return a plan with the selected runs alone, and the bundles of what these need."""
    needed = selection.needed(plan.studies.values())
    return replace(
        plan,
        studies={name: selection.study(study) for name, study in plan.studies.items()},
        bundles={bundle.bundle: bundle for bundle in parts(plan.bundles.values(), needed)},
    )


def parts(bundles: Iterable[Bundle], runs: Collection[str]) -> Iterator[Bundle]:
    """Yield bundles with some runs alone, without those that have none of these."""
    for bundle in bundles:
        if members := [run for run in bundle.runs if run.run in runs]:
            yield replace(bundle, runs=members)
