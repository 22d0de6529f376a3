"""From the runs of a study to its plan: titles, how entries train, what its report shows.

Nothing here decides a number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fl.base import identity, registry
from fl.base.files import sha256
from fl.base.specs import component_specs
from fl.data.dataset import task_name
from fl.plan import plan_files
from fl.plan.analyses import PlannedAnalysis
from fl.plan.bundle import Run
from fl.plan.components import Choice
from fl.plan.config import Execution, Values
from fl.plan.expand import Expansion
from fl.plan.published_cells import published_cells
from fl.plan.run_spec import COMPONENT_KINDS
from fl.plan.scenario import Scenario
from fl.plan.study_plan import EntrySummary, StudyPlan

IDENTIFYING = ("run", "method", "dataset", "partition", "model", "seed")
"""Fields of the runs that an analysis reads that are part of its identity; titles are not."""


def entries(expansion: Expansion) -> dict[str, EntrySummary]:
    """Return a summary of each method entry by label."""
    summaries: dict[str, EntrySummary] = {}
    for run in expansion.runs:
        if run.method not in summaries:
            entry = expansion.entries[run.method]
            parent = entry.parent.label if entry.parent else None
            summaries[run.method] = EntrySummary(entry.method.name, parent, {}, {})
        summary = summaries[run.method]
        _add_values(summary.training, run.spec["training"])
        _add_values(summary.values, run.spec["method"])
        for _, _, added in registry.added_components(run.spec):
            _add_values(summary.values, added, f"{added['name']}.")
    return summaries


def _add_values(by_key: dict[str, list[Any]], values: Values, prefix: str = "") -> None:
    """Add each value to those of its key, ``mu`` or ``mk-mmd.mu``, unless it is there."""
    for key, value in values.items():
        if key == "name":
            continue
        known = by_key.setdefault(prefix + key, [])
        if value not in known:
            known.append(value)


def names(expansion: Expansion) -> dict[str, list[str]]:
    """Return the names of all components that a study uses, by kind of the registry."""
    names: dict[str, set[str]] = {
        "analysis": {analysis.component.name for analysis in expansion.analyses},
        "task": {task_name(s.dataset.instance) for s in expansion.scenarios.values()},
    }
    for run in expansion.runs:
        for key, kind in COMPONENT_KINDS.items():
            for spec in component_specs(run.spec, key):
                names.setdefault(kind, set()).add(spec["name"])
    return {kind: sorted(names.get(kind, ())) for kind in registry.FOLDER_BY_KIND}


def titles(scenarios: Iterable[Scenario]) -> dict[str, dict[str, str]]:
    """Return the user's titles of data sets, partitions and models, by kind and text."""
    titles: dict[str, dict[str, str]] = {"dataset": {}, "partition": {}, "model": {}}
    for scenario in scenarios:
        choices = (scenario.dataset, scenario.scheme, scenario.model)
        for of_kind, choice in zip(titles.values(), choices, strict=True):
            if choice.title:
                of_kind[choice.text] = choice.title
    return titles


def _analyses(expansion: Expansion) -> list[PlannedAnalysis]:
    """Return the analyses of a study."""
    metric = expansion.study.metric
    assert metric is not None, "`fl.plan.expand` settles it"
    analyses: list[PlannedAnalysis] = []
    for choice in expansion.analyses:
        code = identity.root_code(identity.entry("analysis", choice.component.name))
        identifying = [[getattr(run, key) for key in IDENTIFYING] for run in expansion.runs]
        digest = identity.digest([choice.spec, code, metric, identifying])
        analyses.append(
            PlannedAnalysis(
                analysis=f"{choice.component.name}-{digest}",
                text=choice.text,
                title=choice.title,
                spec=choice.spec,
                code=code,
                execution=_analysis_execution(expansion, choice),
            )
        )
    return analyses


def _analysis_execution(expansion: Expansion, choice: Choice) -> Execution:
    """Execution of an analysis: the study's, by one process.

    Only an analysis that reads weights computes models, and so needs a GPU.
    """
    if getattr(choice.component.target, "weights", False):
        return replace(expansion.execution, processes=1)
    return replace(expansion.execution, processes=1, device="cpu", gpus=0)


def plan_study(expansion: Expansion, runs: list[Run], folder: Path) -> StudyPlan:
    """Return the plan of a study.

    Args:
        expansion: The study.
        runs: Its runs, with their bundles.
        folder: The config folder, for published numbers.

    Raises:
        ConfigError: For published cells that do not exist.
    """
    study = expansion.study
    assert study.metric is not None, "`fl.plan.expand` settles it"
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
        ours=study.ours,
        choice=study.choice,
        goal=study.goal,
        contrasts=study.contrasts,
        runs=runs,
        settings=expansion.settings.settings,
        shared=expansion.settings.shared,
        published=published_cells(expansion, folder),
        analyses=_analyses(expansion),
        titles=titles(expansion.scenarios.values()),
        models=expansion.parameters,
        heads=expansion.heads,
        seeds=list(dict.fromkeys(run.spec["seed"] for run in expansion.runs)),
        entries=entries(expansion),
        names=names(expansion),
        notes=expansion.notes,
    )
    return plan.sealed(*_presentation(plan_files.TEMPLATES))


@cache
def _presentation(templates: Path) -> tuple[str, dict[str, str]]:
    """Hashes of the code and the templates of reports.

    They are computed once in a process, as that takes longer than a small plan.
    """
    hashes = {path.name: sha256(path) for path in templates.glob("report.*")}
    return identity.room_hash("report"), hashes
