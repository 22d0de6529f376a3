"""The plan of studies, written to files: runs, the bundles that train them, and what they need.

Snakemake parses `current_summary`. It is kept in ``<results>/plan/`` and made again only when
config or code changed, so that reading it does not wait for the expansion.

Runs that a plan needs and the store lacks may be there under earlier names (`fl.plan.adoption`). A
store or a folder of results that cannot be written stays as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fl.api.training import Training
from fl.base import identity
from fl.base.errors import ConfigError, ConfigProblems, DataError, Location
from fl.base.files import check_writable
from fl.base.hashes import change_stamp
from fl.base.specs import ComponentSpec
from fl.base.units import quantity
from fl.data.download import LOCK_FILE as LOCK
from fl.plan import config, plan_files
from fl.plan.analyses import PlannedAnalysis
from fl.plan.bundle import Bundle, Member
from fl.plan.config import Draft, Settings
from fl.plan.plan_files import PlannedPartition, PlanSummary
from fl.plan.study_plan import StudyPlan
from fl.store.run_record import PREDICTIONS, WEIGHTS

if TYPE_CHECKING:
    from fl.plan.expand import Expansion, Run

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """The plan of some studies.

    Attributes:
        settings: What ``config.yaml`` says.
        studies: The studies by name.
        bundles: The bundles by id.
        datasets: Specs of the data sets by id.
        partitions: The partitions by id.
        watched: The `change_stamp` of each file outside config that the plan depends on, by path.
        analyses: The analyses by id.
    """

    settings: Settings
    studies: dict[str, StudyPlan]
    bundles: dict[str, Bundle]
    datasets: dict[str, ComponentSpec]
    partitions: dict[str, PlannedPartition]
    watched: dict[str, str]
    analyses: dict[str, PlannedAnalysis]

    @property
    def members(self) -> dict[str, Member]:
        """The runs of all bundles by id."""
        return {member.run: member for bundle in self.bundles.values() for member in bundle.runs}


def make(folder: Path, studies: Sequence[str] = (), checked: bool = True) -> Plan:
    """Make the plan of the studies that a config folder or ``studies`` names.

    Args:
        folder: The config folder.
        studies: Names of studies; by default those of ``config.yaml``.
        checked: Whether models and methods are tried. If not, runs and bundles are the same.

    Raises:
        ConfigError: For anything in the config that is wrong.
    """
    problems = ConfigProblems()
    settings, names, location = _draft_request(folder, studies, problems)
    drafts: dict[str, Draft] = {}
    for name in names:
        with problems.collected():
            drafts[name] = config.read_draft(folder, name, location)
    return make_from(folder, settings, drafts, checked, problems.errors)


def make_from(
    folder: Path,
    settings: Settings,
    drafts: Mapping[str, Draft],
    checked: bool = True,
    errors: Iterable[ConfigError] = (),
) -> Plan:
    """Make the plan of studies that were read from files or are arguments of a call.

    Args:
        folder: The config folder, for methods and published numbers.
        settings: What its ``config.yaml`` says.
        drafts: Each study, as far as its keys are right, by name.
        checked: Whether models and methods are tried.
        errors: What is wrong with the config of all studies.

    Raises:
        ConfigError: For anything that is wrong with the config and the studies, all at once.
    """
    if not drafts:
        ConfigProblems(errors).raise_all()
    if checked:
        names = quantity(len(drafts), "study") if len(drafts) > 3 else ", ".join(drafts)
        log.info("planning %s, which takes seconds", names)
    from fl.plan.components import OwnFiles  # These import torch, which takes seconds, too.
    from fl.plan.expand import expand
    from fl.plan.study_planning import plan_study

    own_files = OwnFiles(Path(settings.data), settings.sources, folder / LOCK)
    cache: dict[str, object] = {}
    problems = ConfigProblems(errors)
    expansions: list[Expansion] = []
    for name, draft in drafts.items():
        with problems.collected():
            expansion = expand(
                folder=folder,
                name=name,
                draft=draft,
                execution=settings.execution,
                own_files=own_files,
                cache=cache,
                checked=checked,
            )
            expansions.append(expansion)
            _check_resources(expansion, settings, folder)
    problems.raise_all()
    runs = {run.id: run for expansion in expansions for run in expansion.runs}
    bundles = _bundles(runs, _files_to_keep(expansions, runs), settings, folder)
    bundle_of_run = {
        member.run: bundle.bundle for bundle in bundles.values() for member in bundle.runs
    }
    planned_studies: dict[str, StudyPlan] = {}
    analyses: dict[str, PlannedAnalysis] = {}
    for expansion in expansions:
        planned = plan_study(expansion, bundle_of_run, folder)
        planned_studies[expansion.name] = planned.study
        analyses |= {analysis.analysis: analysis for analysis in planned.analyses}
    return Plan(
        settings=settings,
        studies=planned_studies,
        bundles=bundles,
        datasets={run.dataset.id: run.dataset.spec for run in runs.values()},
        partitions={run.partition.id: _planned_partition(run) for run in runs.values()},
        watched=dict(sorted(pair for e in expansions for pair in e.watched.items())),
        analyses=analyses,
    )


def read_request(folder: Path, studies: Sequence[str]) -> tuple[Settings, list[str], Location]:
    """Return settings, the names of the studies to plan, and where they are named.

    Raises:
        ConfigError: For what is wrong with the config of all studies, all at once.
    """
    problems = ConfigProblems()
    request = _draft_request(folder, studies, problems)
    if problems.errors:
        make(folder, studies)  # It raises them together with what is wrong with the studies.
    return request


def _draft_request(
    folder: Path, studies: Sequence[str], problems: ConfigProblems
) -> tuple[Settings, list[str], Location]:
    """Return what `read_request` returns, as far as the config is right.

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


def _files_to_keep(expansions: Iterable[Expansion], runs: Mapping[str, Run]) -> dict[str, set[str]]:
    """Return the runs that must have each optional file, by the file's name."""
    runs_of_file: dict[str, set[str]] = {
        WEIGHTS: {run.start for run in runs.values() if run.start},
        PREDICTIONS: set(),
    }
    for expansion in expansions:
        ids = {run.id for run in expansion.runs}
        runs_of_file[WEIGHTS] |= ids if expansion.needs_weights else set()
        runs_of_file[PREDICTIONS] |= ids if expansion.needs_predictions else set()
    return runs_of_file


def _bundles(
    runs: Mapping[str, Run],
    files_to_keep: Mapping[str, set[str]],
    settings: Settings,
    folder: Path,
) -> dict[str, Bundle]:
    """Put all seeds of a point, over all studies, into a bundle that is named by its runs."""
    points: dict[str, list[Run]] = {}
    for run in runs.values():
        points.setdefault(run.point, []).append(run)
    names = {
        point: identity.digest(sorted(run.id for run in members))
        for point, members in points.items()
    }
    bundles: dict[str, Bundle] = {}
    for point, members in sorted(points.items(), key=lambda item: names[item[0]]):
        first = members[0]
        bundles[names[point]] = Bundle(
            bundle=names[point],
            title=_title(first),
            runs=[
                Member(
                    run=run.id,
                    spec={**run.spec},
                    code=run.code,
                    defaults=run.defaults,
                    start=run.start,
                    keep=[name for name, ids in files_to_keep.items() if run.id in ids],
                )
                for run in sorted(members, key=lambda run: run.spec["seed"])
            ],
            dataset=first.dataset.id,
            partition=first.partition.id,
            after=sorted({names[runs[run.start].point] for run in members if run.start}),
            unstackable=first.unstackable,
            results=settings.results,
            data=settings.data,
            sources=settings.sources,
            lock=str(folder / LOCK),
            plugins=[*settings.plugins],
            execution=first.execution,
        )
    return bundles


def _title(run: Run) -> str:
    """Title of the bundle of a run: ``FedProx(mu=0.5) on digits / natural / cnn``."""
    point = ", ".join(f"{key}={value}" for key, value in run.grid.items())
    scenario = " / ".join(choice.text for choice in (run.dataset, run.partition, run.model))
    return f"{run.title}{f'({point})' if point else ''} on {scenario}"


def _planned_partition(run: Run) -> PlannedPartition:
    return PlannedPartition(
        dataset=run.dataset.id,
        spec=run.dataset.spec,
        scheme=run.partition.spec,
        text=run.partition.text,
    )


def _check_resources(expansion: Expansion, settings: Settings, folder: Path) -> None:
    """Raise `ConfigError` for a job that no node can hold, and for processes with nothing to do.

    The latter are more than the clients that take part in a round. Where only the data can tell how
    many clients there are, the job refuses.
    """
    config_file = Location(os.path.relpath(folder / "config.yaml"))
    for run in expansion.runs:
        execution, clients = run.execution, run.partition.spec.get("clients")
        slurm_partition = execution.slurm_partition
        nodes = [node for node in settings.nodes if node.slurm_partition == slurm_partition]
        shortages = [node.shortages(execution) for node in nodes]
        if shortages and all(shortages):
            nodes_text = f"Slurm partition {slurm_partition!r}"
            nodes_text = nodes_text if slurm_partition else "the default partition"
            problem = f"no node of {nodes_text} can hold a job of {run.title}, which asks for "
            problem += ", ".join(shortages[-1])
            advice = "less in its `execution`, or a node that has it"
            raise ConfigError(config_file / "nodes", problem, advice=advice)
        if execution.processes == 1 or not isinstance(clients, int):
            continue
        participants = Training(**run.spec["training"]).participants(clients)
        if execution.processes > participants:
            is_general = settings.execution.processes == execution.processes
            location = config_file if is_general else expansion.location
            problem = f"is {execution.processes}, but {participants} clients take part in a round "
            problem += f"of {run.title}"
            location = location / "execution" / "processes"
            raise ConfigError(location, problem, f"1 to {participants}")


def current_summary(folder: Path, studies: Sequence[str] = ()) -> PlanSummary:
    """Return ``<results>/plan/plan.json``, made again first if config or code changed."""
    studies = config.split_names(studies)
    settings, names, _ = read_request(folder, studies)
    summary = _valid_summary(folder, settings)
    if summary is None or [*summary.studies] != names:
        summary = make_and_write(folder, studies)[1]
    supply_summary(summary, settings)
    return summary


def read_or_make(folder: Path, studies: Sequence[str] = (), checked: bool = True) -> Plan:
    """Read the plan of some studies if it is current; else `make` it, which imports torch."""
    settings, names, _ = read_request(folder, studies)
    summary = _valid_summary(folder, settings)
    if summary is None or not {*names} <= {*summary.studies}:
        return make(folder, studies, checked)
    results = settings.results
    of_studies = [summary.studies[name] for name in names]
    bundles = _sorted_names(study.bundles for study in of_studies)
    partitions = _sorted_names(study.partitions for study in of_studies)
    analyses = _sorted_names(study.analyses for study in of_studies)
    datasets = {summary.bundles[name].dataset for name in bundles}
    return Plan(
        settings=settings,
        watched=summary.watched,
        studies={name: plan_files.read_study(results, name) for name in names},
        bundles={name: plan_files.read_checked_bundle(results, name) for name in bundles},
        datasets={name: plan_files.read_dataset(results, name) for name in datasets},
        partitions={name: plan_files.read_partition(results, name) for name in partitions},
        analyses={name: plan_files.read_analysis(results, name) for name in analyses},
    )


def _sorted_names(names: Iterable[Iterable[str]]) -> list[str]:
    return sorted({name for several in names for name in several})


def written_studies(folder: Path, settings: Settings) -> set[str]:
    """Return the studies of the written plan; none if config or code has changed since."""
    summary = _valid_summary(folder, settings)
    return set() if summary is None else {*summary.studies}


def study_plan(folder: Path, name: str) -> StudyPlan:
    """Return the plan of a study for the config as it is now."""
    plan = read_or_make(folder, [name])
    supply(plan.members, plan.settings)
    return plan.studies[name]


def _valid_summary(folder: Path, settings: Settings) -> PlanSummary | None:
    """Return the written plan's summary if nothing must be made again for its studies."""
    try:
        summary = plan_files.read_summary(settings.results)
    except DataError:
        return None
    if summary is None:
        return None
    if summary.key != plan_files.fingerprint(folder, [*summary.studies], settings):
        return None
    return (
        summary
        if are_unchanged(summary.watched) and _is_complete(settings.results, summary)
        else None
    )


def make_and_write(folder: Path, studies: Sequence[str] = ()) -> tuple[Plan, PlanSummary]:
    """Make and write a plan; return it and the content of its ``plan.json``.

    Raises:
        FedloomError: If the disk refuses, where possible before anything is planned.
    """
    studies = config.split_names(studies)
    settings, names, _ = read_request(folder, studies)
    check_writable(plan_files.plan_folder(settings.results))
    # Taken before the plan is made: an edit meanwhile makes it again the next time.
    key = plan_files.fingerprint(folder, names, settings)
    plan = make(folder, studies)
    write_files(plan)
    summary = _summary(plan, key)
    plan_files.write(plan_files.summary_file(settings.results), summary)
    return plan, summary


def write_files(plan: Plan) -> None:
    """Write the files of a plan except the summary by which Snakemake goes."""
    items_by_kind: dict[plan_files.Kind, Mapping[str, object]] = {
        "studies": plan.studies,
        "bundles": plan.bundles,
        "datasets": plan.datasets,
        "partitions": plan.partitions,
        "analyses": plan.analyses,
    }
    for kind, items in items_by_kind.items():
        for name, item in items.items():
            plan_files.write(plan_files.file_of(plan.settings.results, kind, name), item)


def _is_complete(results: str, summary: PlanSummary) -> bool:
    """Whether the files of all studies, bundles and analyses that a summary names exist."""
    names_by_kind: dict[plan_files.Kind, Iterable[str]] = {
        "studies": summary.studies,
        "bundles": summary.bundles,
        "analyses": summary.analyses,
    }
    return all(
        plan_files.file_of(results, kind, name).exists()
        for kind, names in names_by_kind.items()
        for name in names
    )


def _summary(plan: Plan, key: str) -> PlanSummary:
    return PlanSummary(
        key=key,
        settings=plan.settings,
        watched=plan.watched,
        runs=sorted(plan.members),
        studies={
            name: plan_files.StudySummary(
                hash=study.hash,
                bundles=study.bundles,
                partitions=sorted({run.partition_id for run in study.runs}),
                analyses=[analysis.analysis for analysis in study.analyses],
            )
            for name, study in plan.studies.items()
        },
        bundles={
            name: plan_files.BundleSummary(
                runs=[member.run for member in bundle.runs],
                keep={member.run: member.keep for member in bundle.runs if member.keep},
                dataset=bundle.dataset,
                partition=bundle.partition,
                after=bundle.after,
            )
            for name, bundle in plan.bundles.items()
        },
        analyses={
            name: plan_files.AnalysisSummary(item.bundles) for name, item in plan.analyses.items()
        },
    )


def are_unchanged(watched: Mapping[str, str]) -> bool:
    """Whether the user's files still have their stamps."""
    return all(change_stamp([Path(path)]) == expected for path, expected in watched.items())


def supply(members: Mapping[str, Member], settings: Settings) -> None:
    """Adopt the runs of a plan that the store has under earlier names.

    Args:
        members: The runs by id.
        settings: The folders of the store and of results.
    """
    from fl.plan import adoption  # It imports pandas, which takes time.

    adoption.adopt(members, members.__getitem__, settings)


def supply_summary(summary: PlanSummary, settings: Settings) -> None:
    """Adopt runs of a written plan, of which only these are read, see `supply`."""
    from fl.plan import adoption  # It imports pandas, which takes time.

    bundles = {run: name for name, bundle in summary.bundles.items() for run in bundle.runs}

    def read_member(run: str) -> Member:
        bundle = plan_files.read_bundle(settings.results, bundles[run])
        return next(member for member in bundle.runs if member.run == run)

    adoption.adopt(bundles, read_member, settings)
