"""The plan of studies, written to files: runs, the bundles that train them, and what they need.

Snakemake parses `current_summary`. It is kept in ``<results>/plan/`` and made again only when
config or code changed, so that reading it does not wait for the expansion.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base import identity
from fl.base.errors import ConfigError, DataError, Location
from fl.base.files import check_writable, sha256
from fl.base.units import counted
from fl.data.contents import stamp
from fl.data.lock import NAME as LOCK
from fl.plan import config, plan_files
from fl.plan.analyses import planned_analyses
from fl.plan.config import Settings, Study
from fl.plan.published_cells import published_cells
from fl.plan.study_plan import AnalysisReference, PlannedRun, StudyPlan
from fl.pytorch import allocator
from fl.store.layout import PREDICTIONS, WEIGHTS

if TYPE_CHECKING:
    from fl.plan.captions import StudySettings
    from fl.plan.expand import Expansion, Run
    from fl.plan.rehearsal import Rehearsal

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """The plan of some studies.

    Attributes:
        studies: By name: title, metric, hash and runs, for `fl.report.tables`.
        bundles: By id: runs with their specs, needs and execution, for `fl.runner.job`.
        datasets, partitions: By id, how to make them.
        analyses: By id, what they read, for `fl.report.make_analysis`.
        watched: By path, the `stamp` of each file outside config that the plan depends on.
    """

    settings: Settings
    studies: dict[str, dict[str, Any]]
    bundles: dict[str, dict[str, Any]]
    datasets: dict[str, dict[str, Any]]
    partitions: dict[str, dict[str, Any]]
    watched: dict[str, str]
    analyses: dict[str, dict[str, Any]]


def make(
    folder: Path,
    studies: Sequence[str] = (),
    checked: bool = True,
) -> Plan:
    """The plan of the studies that a config folder or ``studies`` names.

    Args:
        checked: Whether models and methods are tried. If not, runs and bundles are the same.

    Raises:
        ConfigError: For anything in the config that is wrong.
    """
    settings, wanted, location = read_request(folder, studies)
    given = {name: config.read_study(folder, name, location) for name in wanted}
    return make_from(folder, settings, given, checked)


def make_from(
    folder: Path,
    settings: Settings,
    studies: Mapping[str, tuple[Study, Location]],
    checked: bool = True,
) -> Plan:
    """The plan of studies that are given, wherever they were written.

    Args:
        folder: The config's, for all but the studies.
        settings: What its ``config.yaml`` says.
        studies: By name, what a study says and where it stands.
        checked: See `make`.

    Raises:
        ConfigError: For anything in the studies that is wrong.
    """
    if checked:
        told = counted(len(studies), "study") if len(studies) > 3 else ", ".join(studies)
        log.info("planning %s: each method is tried on its model, which takes seconds", told)
    from fl.plan.captions import study_settings
    from fl.plan.components import OwnFiles
    from fl.plan.expand import (  # They import torch, which takes seconds, too.
        check_resources,
        expand,
    )

    users_files = OwnFiles(Path(settings.data), settings.sources, folder / LOCK)
    rehearsals: dict[str, Rehearsal] = {}
    with allocator.kept():
        expansions = [
            expand(
                folder, name, study, location, settings.execution, users_files, rehearsals, checked
            )
            for name, (study, location) in studies.items()
        ]
    runs = {run.id: run for e in expansions for run in e.runs}
    starts = {run.start for run in runs.values() if run.start}
    kept = {
        WEIGHTS: {run.id for e in expansions if e.needs_weights for run in e.runs} | starts,
        PREDICTIONS: {run.id for e in expansions if e.needs_predictions for run in e.runs},
    }
    bundles = _bundles(runs, kept, settings, folder)
    for expansion in expansions:
        check_resources(expansion, settings, folder)
    home = {member["run"]: name for name, bundle in bundles.items() for member in bundle["runs"]}
    settings_of = {e.name: study_settings(e.runs) for e in expansions}
    listed = {e.name: _listed(e, settings_of[e.name], home) for e in expansions}
    analyses = {
        e.name: list(planned_analyses(e, [asdict(run) for run in listed[e.name]]))
        for e in expansions
    }
    return Plan(
        settings=settings,
        studies={
            e.name: _study(
                e, settings_of[e.name], listed[e.name], analyses[e.name], folder
            ).to_json()
            for e in expansions
        },
        bundles=bundles,
        datasets={r.dataset.id: r.dataset.spec for r in runs.values()},
        partitions={r.partition.id: _partition(r) for r in runs.values()},
        watched=dict(sorted((path, was) for e in expansions for path, was in e.watched.items())),
        analyses={made["analysis"]: made for of_study in analyses.values() for made in of_study},
    )


def read_request(folder: Path, studies: Sequence[str]) -> tuple[Settings, list[str], Location]:
    """The settings of a config folder, the studies asked for, and where they are named.

    Raises:
        ConfigError: For what is wrong with the config of all studies.
    """
    settings = config.read_settings(folder)
    config.check_methods(folder)
    location = Location(os.path.relpath(folder / "config.yaml")) / "studies"
    location = Location("the command line") if studies else location
    wanted = list(dict.fromkeys(studies or settings.studies))
    if not wanted:
        raise ConfigError(location, "is empty", "at least one study")
    return settings, wanted, location


def _bundles(
    runs: Mapping[str, Run],
    kept: Mapping[str, set[str]],
    settings: Settings,
    folder: Path,
) -> dict[str, dict[str, Any]]:
    """All seeds of a point are one bundle, over all studies; named by its members."""
    points: dict[str, list[Run]] = {}
    for run in runs.values():
        points.setdefault(run.point, []).append(run)
    names = {
        point: identity.digest(sorted(run.id for run in members))
        for point, members in points.items()
    }
    home = {run.id: names[run.point] for run in runs.values()}
    return {
        names[point]: {
            "bundle": names[point],
            "title": _title(members[0]),
            "runs": [
                {
                    "run": run.id,
                    "spec": run.spec,
                    "code": run.code,
                    "defaults": run.defaults,
                    "start": run.start,
                    "keep": [name for name, its in kept.items() if run.id in its],
                }
                for run in sorted(members, key=lambda r: r.spec["seed"])
            ],
            "dataset": members[0].dataset.id,
            "partition": members[0].partition.id,
            "after": sorted({home[run.start] for run in members if run.start}),
            "unstackable": members[0].unstackable,
            "results": settings.results,
            "data": settings.data,
            "sources": settings.sources,
            "lock": str(folder / LOCK),
            "plugins": list(settings.plugins),
            "execution": asdict(members[0].execution),
        }
        for point, members in sorted(points.items(), key=lambda item: names[item[0]])
    }


def _title(run: Run) -> str:
    """What sets a bundle apart from others: ``FedProx(mu=0.5) on digits / natural / cnn``."""
    point = ", ".join(f"{key}={value}" for key, value in run.grid.items())
    place = " / ".join(choice.text for choice in (run.dataset, run.partition, run.model))
    return f"{run.title}{f'({point})' if point else ''} on {place}"


def _partition(run: Run) -> dict[str, Any]:
    return {
        "dataset": run.dataset.id,
        "spec": run.dataset.spec,
        "scheme": run.partition.spec,
        "text": run.partition.text,
    }


def _listed(
    expansion: Expansion, settings: StudySettings, home: Mapping[str, str]
) -> list[PlannedRun]:
    """List the runs of a study; ``home`` has the bundle of each run."""
    from fl.plan.captions import scenario_key  # It imports pandas, as planning has by now.

    return [
        PlannedRun(
            run=run.id,
            method=run.label,
            title=run.title,
            point=run.grid,
            dataset=run.dataset.text,
            partition=run.partition.text,
            model=run.model.text,
            partition_id=run.partition.id,
            seed=run.spec["seed"],
            bundle=home[run.id],
            setting=settings.setting_ids[scenario_key(run)],
            draw=settings.draws[scenario_key(run)],
            start=run.start,
        )
        for run in expansion.runs
    ]


def _study(
    expansion: Expansion,
    settings: StudySettings,
    runs: list[PlannedRun],
    analyses: Iterable[Mapping[str, Any]],
    folder: Path,
) -> StudyPlan:
    from fl.plan import captions  # It imports pandas, as planning has by now.

    study = expansion.study
    assert study.metric is not None, "`expand` settles it"
    plan = StudyPlan(
        study=expansion.name,
        title=study.title or expansion.name,
        question=study.question,
        departures=study.departures,
        metric=study.metric,
        test=study.test,
        scored=study.scored,
        metrics=[*study.metrics],
        baseline=study.baseline,
        contrasts=study.contrasts,
        runs=runs,
        settings=settings.settings,
        shared=settings.shared,
        published=published_cells(expansion, folder),
        analyses=[
            AnalysisReference(made["analysis"], made["text"], made["title"]) for made in analyses
        ],
        titles=captions.titles(expansion.runs),
        models=expansion.parameters,
        seeds=list(dict.fromkeys(run.spec["seed"] for run in expansion.runs)),
        entries=captions.entries(expansion),
        names=captions.names(expansion),
    )
    return plan.sealed(*_presentation(plan_files.TEMPLATES))


@cache
def _presentation(templates: Path) -> tuple[str, dict[str, str]]:
    """What shows a study's numbers; once a process, as it takes longer than a small plan."""
    looks = {path.name: sha256(path) for path in templates.glob("report.*")}
    return identity.room("report"), looks


def current_summary(folder: Path, studies: Sequence[str] = ()) -> dict[str, Any]:
    """``<results>/plan/plan.json``, made again first if config or code changed.

    It has the settings, by name each study's hash and bundles, and each bundle's needs.
    """
    studies = config.split_names(studies)
    settings, wanted, _ = read_request(folder, studies)
    known = _valid_summary(folder, settings)
    if [*known.get("studies", ())] == wanted:
        return known
    return make_and_write(folder, studies)[1]


def read_or_make(folder: Path, studies: Sequence[str] = (), checked: bool = True) -> Plan:
    """`make`, or without torch what is in ``<results>/plan``, if that is what would be made."""
    settings, wanted, _ = read_request(folder, studies)
    known = _valid_summary(folder, settings)
    if not {*wanted} <= {*known.get("studies", ())}:
        return make(folder, studies, checked)
    summaries = [known["studies"][name] for name in wanted]
    names: dict[str, Iterable[str]] = {"studies": wanted}
    for kind in ("bundles", "partitions", "analyses"):
        names[kind] = sorted({name for summary in summaries for name in summary[kind]})
    names["datasets"] = {known["bundles"][name]["dataset"] for name in names["bundles"]}
    home = Path(settings.results) / "plan"
    made = {
        kind: {name: plan_files.read_item(home, kind, name) for name in names[kind]}
        for kind in names
    }
    return Plan(settings=settings, watched=known["watched"], **made)


def study_plan(folder: Path, name: str) -> dict[str, Any]:
    """A study, for the config as it is now; read where it is planned."""
    return read_or_make(folder, [name]).studies[name]


def _valid_summary(folder: Path, settings: Settings) -> dict[str, Any]:
    """``plan.json``, if nothing has to be made for its studies; else empty."""
    home = Path(settings.results) / "plan"
    try:
        known = plan_files.read_summary(home)
    except DataError:
        return {}
    if not known or known["key"] != plan_files.fingerprint(folder, [*known["studies"]], settings):
        return {}
    return known if are_unchanged(known["watched"]) and _is_complete(home, known) else {}


def make_and_write(folder: Path, studies: Sequence[str] = ()) -> tuple[Plan, dict[str, Any]]:
    """Make and write a plan; the content of its ``plan.json``.

    Raises:
        FedloomError: If the disk refuses, where possible before anything is planned.
    """
    studies = config.split_names(studies)
    settings, wanted, _ = read_request(folder, studies)
    home = Path(settings.results) / "plan"
    check_writable(home)
    # Taken before the plan is made: what is edited meanwhile makes it anew the next time.
    key = plan_files.fingerprint(folder, wanted, settings)
    plan = make(folder, studies)
    write_files(plan)
    return plan, dict(plan_files.write(home / "plan.json", _summary(plan, key)))


def write_files(plan: Plan) -> None:
    """Write the files of a plan, but for the summary by which Snakemake goes."""
    home = Path(plan.settings.results) / "plan"
    for kind in plan_files.KINDS:
        for name, content in getattr(plan, kind).items():
            plan_files.write(home / kind / f"{name}.json", content)


def _is_complete(home: Path, known: Mapping[str, Any]) -> bool:
    """Whether the files of all studies and bundles that a plan names are there."""
    return all(
        (home / kind / f"{name}.json").exists()
        for kind in ("studies", "bundles", "analyses")
        for name in known[kind]
    )


def _summary(plan: Plan, key: str) -> dict[str, Any]:
    return {
        "key": key,
        "settings": asdict(plan.settings),
        "watched": plan.watched,
        "runs": sorted({m["run"] for b in plan.bundles.values() for m in b["runs"]}),
        "studies": {
            name: {
                "hash": study["hash"],
                "bundles": sorted({run["bundle"] for run in study["runs"]}),
                "partitions": sorted({run["partition_id"] for run in study["runs"]}),
                "analyses": [analysis["analysis"] for analysis in study["analyses"]],
            }
            for name, study in plan.studies.items()
        },
        "bundles": {
            name: {
                "runs": [m["run"] for m in bundle["runs"]],
                "keep": {m["run"]: m["keep"] for m in bundle["runs"] if m["keep"]},
                **{key: bundle[key] for key in ("dataset", "partition", "after")},
            }
            for name, bundle in plan.bundles.items()
        },
        "analyses": {
            name: {"bundles": analysis["bundles"]} for name, analysis in plan.analyses.items()
        },
    }


def are_unchanged(watched: Mapping[str, str]) -> bool:
    """Whether the user's files are unchanged."""
    return all(stamp([Path(path)]) == was for path, was in watched.items())
