"""The plan of studies: runs, the bundles that train them, and what they need.

`make` expands studies in memory. `write` writes a plan to the folder of results. `read` returns
the written plan as long as config and code stay, so that nobody waits for the expansion, and makes
one else. `read_index` does the same for Snakemake, which needs of a plan its index alone.

Runs that a plan needs and the store lacks may be there under earlier names (`fl.plan.adoption`):
`supply` looks for them. A store or a folder of results that cannot be written stays as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base import identity
from fl.base.errors import ConfigError, ConfigProblems, Location
from fl.base.files import check_writable
from fl.base.specs import ComponentSpec
from fl.base.units import quantity
from fl.data.download import LOCK_FILE as LOCK
from fl.plan import config, overrides, plan_files
from fl.plan.bundle import Bundle, Run
from fl.plan.config import Draft, Execution, Settings
from fl.plan.plan_files import IndexedBundle, IndexedStudy, PlanIndex, PlannedPartition
from fl.plan.study_plan import StudyPlan
from fl.store.run_record import OPTIONAL_FILES

if TYPE_CHECKING:
    from fl.plan.expand import Expansion
    from fl.plan.rehearsal import Rehearsal

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """The plan of some studies.

    Attributes:
        settings: What ``config.yaml`` says.
        studies: The studies by name.
        bundles: The bundles by id.
        watched: The `change_stamp` of each file outside config that the plan depends on, by path.
        key: Fingerprint of what it was made of, if it was made to be written with an index.
    """

    settings: Settings
    studies: dict[str, StudyPlan]
    bundles: dict[str, Bundle]
    watched: dict[str, str]
    key: str = ""

    @property
    def runs(self) -> dict[str, Run]:
        """The runs of all bundles by id."""
        return {run.run: run for bundle in self.bundles.values() for run in bundle.runs}


def make(
    folder: Path,
    studies: Sequence[str] | Mapping[str, Draft] = (),
    checked: bool = True,
    settings: Settings | None = None,
    to_write: bool = False,
) -> Plan:
    """Make the plan of the studies that a config folder, ``studies`` or a call names.

    Args:
        folder: The config folder.
        studies: Names of studies, by default those of ``config.yaml``; or studies that are
            arguments of a call, by name.
        checked: Whether models and methods are tried. If not, runs and bundles are the same.
        settings: The settings of a call, where ``studies`` are its arguments.
        to_write: Whether the plan is made to be written with an index; a disk that refuses is then
            told before anything is planned.

    Raises:
        ConfigError: For anything that is wrong with the config and the studies, all at once.
        FedloomError: If the disk refuses.
    """
    problems, key = ConfigProblems(), ""
    if isinstance(studies, Mapping):
        drafts, settings = studies, settings or config.draft_settings(folder, problems)
    else:
        settings, names, location = _request(folder, studies, problems)
        if to_write and not problems.errors:
            check_writable(plan_files.plan_folder(settings.results))
            # Taken before the plan is made: an edit meanwhile makes it again the next time.
            key = plan_files.fingerprint(folder, names, settings)
        drafts = {}
        for name in names:
            with problems.collected():
                drafts[name] = overrides.read_draft(folder, name, location)
        if not drafts:
            problems.raise_all()
    if checked:
        studies_text = quantity(len(drafts), "study") if len(drafts) > 3 else ", ".join(drafts)
        log.info("planning %s, which takes seconds", studies_text)
    from fl.plan import checks  # These import torch, which takes seconds, too.
    from fl.plan.components import OwnFiles
    from fl.plan.expand import expand

    own_files = OwnFiles(Path(settings.data), settings.sources, folder / LOCK)
    cache: dict[str, Rehearsal] = {}
    expansions: list[Expansion] = []
    for name, draft in drafts.items():
        with problems.collected():
            expansion = expand(
                folder=folder,
                name=str(name),
                draft=draft,
                execution=settings.execution,
                own_files=own_files,
                cache=cache,
                checked=checked,
            )
            expansions.append(expansion)
            executions = {label: entry.execution for label, entry in expansion.entries.items()}
            checks.check_resources(executions, expansion.runs, expansion.location, settings, folder)
    problems.raise_all()
    return _plan_of(expansions, settings, folder, key)


def _plan_of(expansions: Sequence[Expansion], settings: Settings, folder: Path, key: str) -> Plan:
    """Return the plan of expanded studies, with its `Plan.key`."""
    from fl.plan.study_planning import plan_study  # It imports torch, which takes seconds.

    bundles = _bundles(expansions, settings, folder)
    bundle_of_run = {run.run: run.bundle for bundle in bundles.values() for run in bundle.runs}
    studies: dict[str, StudyPlan] = {}
    for expansion in expansions:
        runs = [replace(run, bundle=bundle_of_run[run.run]) for run in expansion.runs]
        studies[expansion.name] = plan_study(expansion, runs, folder)
    return Plan(
        settings=settings,
        studies=studies,
        bundles=bundles,
        watched=dict(sorted(pair for e in expansions for pair in e.watched.items())),
        key=key,
    )


def read(folder: Path, studies: Sequence[str] = (), checked: bool = True) -> Plan:
    """Return the plan of some studies as it is written, or made where that is not current.

    Arguments and errors are those of `make`. Only making it imports torch, which takes seconds.
    """
    settings, names = _right_request(folder, studies)
    index = plan_files.read_current_index(folder, settings)
    if index is None or not {*names} <= {*index.studies}:
        return make(folder, studies, checked)
    results = settings.results
    bundles = sorted({bundle for name in names for bundle in index.studies[name].bundles})
    return Plan(
        settings=settings,
        watched=index.watched,
        studies={name: plan_files.read_study(results, name) for name in names},
        bundles={name: plan_files.read_checked_bundle(results, name) for name in bundles},
    )


def read_index(folder: Path, studies: Sequence[str] = ()) -> PlanIndex:
    """Return the index of the written plan; it is made and written first unless it is current.

    Arguments and errors are those of `make`; names may be followed by overrides. Snakemake reads
    nothing else of a plan.
    """
    studies = overrides.resolve(folder, studies)
    settings, names = _right_request(folder, studies)
    index = plan_files.read_current_index(folder, settings)
    if index is None or [*index.studies] != names:
        index = write(make(folder, studies, to_write=True))
    supply_index(index, settings)
    return index


def write(plan: Plan) -> PlanIndex:
    """Write the files of a plan, and last, if it has a key, the index; return the index.

    Raises:
        FedloomError: If the disk refuses.
    """
    results = plan.settings.results
    datasets: dict[str, ComponentSpec] = {}
    partitions: dict[str, PlannedPartition] = {}
    for bundle in plan.bundles.values():
        spec = bundle.runs[0].spec
        datasets[bundle.dataset] = spec["dataset"]
        planned = PlannedPartition(bundle.dataset, spec["dataset"], spec["partition"])
        partitions[bundle.partition] = planned
    items_by_kind: dict[plan_files.Kind, Mapping[str, object]] = {
        "studies": plan.studies,
        "bundles": plan.bundles,
        "datasets": datasets,
        "partitions": partitions,
    }
    for kind, items in items_by_kind.items():
        for name, item in items.items():
            plan_files.write(plan_files.file_of(results, kind, name), item)
    index = _index(plan)
    if plan.key:
        plan_files.write(plan_files.index_file(results), index)
    return index


def _right_request(folder: Path, studies: Sequence[str]) -> tuple[Settings, list[str]]:
    """Return settings and the names of the studies to plan, or raise what is wrong."""
    problems = ConfigProblems()
    settings, names, _ = _request(folder, studies, problems)
    if problems.errors:
        make(folder, studies)  # It raises them together with what is wrong with the studies.
    return settings, names


def _request(
    folder: Path, studies: Sequence[str], problems: ConfigProblems
) -> tuple[Settings, list[str], Location]:
    """Return settings, the names of the studies to plan, and where they are named.

    Args:
        folder: The config folder.
        studies: Names of studies; by default those of ``config.yaml``.
        problems: Collects what is wrong.

    Raises:
        ConfigError: If no study can be read.
    """
    settings = config.draft_settings(folder, problems)
    with problems.collected():
        config.check_methods(folder)
    location = Location(os.path.relpath(folder / "config.yaml")) / "studies"
    location = Location("the command line") if studies else location
    names = list(dict.fromkeys(studies or settings.studies))
    if not names:
        problems.errors.append(ConfigError(location, "is empty", advice="name at least one study"))
        problems.raise_all()
    return settings, names, location


def _bundles(
    expansions: Sequence[Expansion], settings: Settings, folder: Path
) -> dict[str, Bundle]:
    """Put all seeds of a point, over all studies, into a bundle that is named by its runs."""
    runs: dict[str, Run] = {}
    executions: dict[str, Execution] = {}
    keep: dict[str, set[str]] = {}
    for expansion in expansions:
        for run in expansion.runs:
            runs[run.run] = run
            executions[run.run] = expansion.entries[run.method].execution
            keep.setdefault(run.run, set()).update(run.keep)
    points: dict[str, list[Run]] = {}
    for run in runs.values():
        points.setdefault(run.point_id, []).append(run)
    names = {
        run.run: identity.digest(sorted(run.run for run in of_point))
        for of_point in points.values()
        for run in of_point
    }
    bundles: dict[str, Bundle] = {}
    for of_point in sorted(points.values(), key=lambda of_point: names[of_point[0].run]):
        first = of_point[0]
        name = names[first.run]
        bundles[name] = Bundle(
            bundle=name,
            title=_title(first),
            runs=[
                replace(
                    run,
                    bundle=name,
                    keep=[file for file in OPTIONAL_FILES if file in keep[run.run]],
                )
                for run in sorted(of_point, key=lambda run: run.seed)
            ],
            dataset=first.dataset_id,
            partition=first.partition_id,
            after=sorted({names[run.start] for run in of_point if run.start}),
            results=settings.results,
            data=settings.data,
            sources=settings.sources,
            lock=str(folder / LOCK),
            plugins=[*settings.plugins],
            execution=executions[first.run],
        )
    return bundles


def _title(run: Run) -> str:
    """Title of the bundle of a run: ``FedProx(mu=0.5) on digits / natural / cnn``."""
    return f"{run.entry_title} on {run.dataset} / {run.partition} / {run.model}"


def _index(plan: Plan) -> PlanIndex:
    studies = {
        name: IndexedStudy(
            hash=study.hash,
            bundles=study.bundles,
            partitions=sorted({run.partition_id for run in study.runs}),
            analyses=[analysis.analysis for analysis in study.analyses],
        )
        for name, study in plan.studies.items()
    }
    bundles = {
        name: IndexedBundle(
            runs={run.run: run.keep for run in bundle.runs},
            dataset=bundle.dataset,
            partition=bundle.partition,
            after=bundle.after,
        )
        for name, bundle in plan.bundles.items()
    }
    analyses = {name: study.bundles for study in studies.values() for name in study.analyses}
    return PlanIndex(plan.key, plan.settings, plan.watched, studies, bundles, analyses)


def supply(runs: Mapping[str, Run], settings: Settings) -> None:
    """Adopt the runs of a plan that the store has under earlier names.

    Args:
        runs: The runs by id.
        settings: The folders of the store and of results.
    """
    from fl.plan import adoption  # It imports pandas, which takes time.

    adoption.adopt(runs, runs.__getitem__, settings)


def supply_index(index: PlanIndex, settings: Settings) -> None:
    """Adopt runs of a written plan, of which only these are read, see `supply`."""
    from fl.plan import adoption  # It imports pandas, which takes time.

    bundles = {run: name for name, bundle in index.bundles.items() for run in bundle.runs}

    def read_run(run: str) -> Run:
        bundle = plan_files.read_bundle(settings.results, bundles[run])
        return next(planned for planned in bundle.runs if planned.run == run)

    adoption.adopt(bundles, read_run, settings)
