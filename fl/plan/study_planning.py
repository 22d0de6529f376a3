"""From the runs of a study to its plan: settings, draws, titles, how entries train.

Settings are found from the values of runs: those that differ only in seeds of data set and
partition are draws of one setting. Nothing here decides a number.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fl.base import identity, registry
from fl.base.files import sha256
from fl.base.hashes import digest
from fl.base.seams import Seam
from fl.base.specs import Spec, component_specs
from fl.data.dataset import task_name
from fl.plan import plan_files
from fl.plan.analyses import PlannedAnalysis, planned_analyses
from fl.plan.components import Choice, filled_title, keys_text, text_of
from fl.plan.config import Values
from fl.plan.run_spec import COMPONENT_KINDS
from fl.plan.study_plan import (
    AnalysisReference,
    ComparedCell,
    EntrySummary,
    PlannedRun,
    Setting,
    StudyPlan,
)

if TYPE_CHECKING:
    from fl.plan.expand import Expansion, Run

PUBLISHED_CELLS = Seam[Callable[["Expansion", Path], list[ComparedCell]]]("published cells")
"""Functions of a study and the config folder that return published cells for its report."""

ScenarioKey = tuple[str, str, str]
"""The ids of data set and partition, and the text of the model."""

DRAWN = ("data set", "partition")
"""The components of a scenario whose seeds make draws; the third is the model."""

INTRODUCTION = re.compile(r"[^\w(){}\[\]]*(?:\b(?:draw|seed)[\s=:]*)?(?:(?<![\w}])\w+)?$")
"""The end of a title before a seed that introduces it: a comma, ``, seed ``, `` v``."""


@dataclass(frozen=True)
class StudySettings:
    """The settings of a study.

    Attributes:
        settings: The settings in the study's order.
        shared: What all of them have in common, in words; empty if there is only one.
        setting_ids: The setting's id by scenario.
        draws: The draw's text by scenario (`PlannedRun.draw`).
    """

    settings: list[Setting]
    shared: str
    setting_ids: dict[ScenarioKey, str]
    draws: dict[ScenarioKey, str]


@dataclass(frozen=True)
class _Description:
    """A component of a setting, described for reports; ``title`` is the user's, if any."""

    name: str
    written: Values
    title: str

    @property
    def text(self) -> str:
        return self.title or text_of(self.name, self.written)


def scenario_key(run: Run) -> ScenarioKey:
    """Return what identifies a run's data set, partition and model."""
    return run.dataset.id, run.partition.id, run.model.text


def study_settings(runs: Iterable[Run]) -> StudySettings:
    """Return the settings of a study's runs."""
    scenarios = {scenario_key(run): (run.dataset, run.partition, run.model) for run in runs}
    setting_ids = {key: _setting_id(choices) for key, choices in scenarios.items()}
    draws: dict[ScenarioKey, str] = {}
    described: dict[str, list[_Description]] = {}
    for setting_id in dict.fromkeys(setting_ids.values()):
        keys = [key for key in scenarios if setting_ids[key] == setting_id]
        by_component = [*zip(*(scenarios[key] for key in keys), strict=True)]
        varied = [_varied_seeds(choices) for choices in by_component]
        for key in keys:
            draws[key] = _draw_text(scenarios[key], varied)
        described[setting_id] = list(map(_described, by_component, varied))
    shared, short_titles = _short_titles(list(described.values()))
    settings = [
        Setting(
            setting_id,
            " · ".join(description.text for description in descriptions),
            short_title,
            *(text_of(description.name, description.written) for description in descriptions),
        )
        for (setting_id, descriptions), short_title in zip(
            described.items(), short_titles, strict=True
        )
    ]
    return StudySettings(settings, shared, setting_ids, draws)


def _setting_id(choices: tuple[Choice, Choice, Choice]) -> str:
    """Hash of the values of a data set, a partition and a model without the seeds of draws."""
    *drawn, model = choices
    values = [
        {key: value for key, value in choice.spec.items() if key not in choice.seed_keys}
        for choice in drawn
    ]
    return digest([*values, model.spec])


def _varied_seeds(choices: Sequence[Choice]) -> list[str]:
    """The seed keys in which draws of a component differ."""
    return [
        key for key in choices[0].seed_keys if len({choice.values[key] for choice in choices}) > 1
    ]


def _draw_text(choices: Sequence[Choice], varied: Sequence[Sequence[str]]) -> str:
    """The seeds of a draw in words, ``partition seed 10``."""
    return ", ".join(
        f"{component} {key} {choice.values[key]}"
        for component, choice, keys in zip(DRAWN, choices[:-1], varied[:-1], strict=True)
        for key in keys
    )


def _described(draws: Sequence[Choice], varied: Sequence[str]) -> _Description:
    """Describe a component without the seeds in which its draws differ."""
    first = draws[0]
    written = {key: value for key, value in first.written.items() if key not in varied}
    titles = {choice.title for choice in draws}
    templates = {choice.title_template for choice in draws}
    title = first.title if len(titles) == 1 else ""
    if len(titles) > 1 and len(templates) == 1:
        title = filled_title(_without_fields(first.title_template, varied), first.values)
    return _Description(first.component.name, written, title)


def _without_fields(title_template: str, keys: Sequence[str]) -> str:
    """Return a title template without the fields of some keys and the words that introduce them.

    ``Dirichlet {alpha}, seed {seed}`` becomes ``Dirichlet {alpha}``.
    """
    template = ""
    for literal, name, form, conversion in string.Formatter().parse(title_template):
        template += literal.replace("{", "{{").replace("}", "}}")
        if name in keys:
            template = INTRODUCTION.sub("", template)
        elif name is not None:
            template += "{" + name + (f"!{conversion}" if conversion else "")
            template += (f":{form}" if form else "") + "}"
    return re.sub(r"\s*\(\s*\)", "", template).strip(" ,;:-")


def _short_titles(settings: Sequence[Sequence[_Description]]) -> tuple[str, list[str]]:
    """Return what settings share, in words, and of each setting the words for what differs."""
    if len(settings) < 2:
        return "", [" · ".join(description.text for description in setting) for setting in settings]
    shared: list[str] = []
    words: list[list[str]] = [[] for _ in settings]
    for descriptions in zip(*settings, strict=True):
        common, distinct = _compared(descriptions)
        shared += common
        if distinct:
            for setting_words, text in zip(words, distinct, strict=True):
                setting_words.append(text)
    return " · ".join(shared), [" · ".join(setting_words) for setting_words in words]


def _compared(descriptions: Sequence[_Description]) -> tuple[list[str], list[str]]:
    """Return what descriptions of one component share, and a text for each of what differs."""
    texts = [description.text for description in descriptions]
    if len(set(texts)) == 1:
        return [texts[0]], []
    first = descriptions[0]
    common = {
        key: value
        for key, value in first.written.items()
        if all(
            key in description.written and description.written[key] == value
            for description in descriptions
        )
    }
    differences = [
        {key: value for key, value in description.written.items() if key not in common}
        for description in descriptions
    ]
    has_one_name = all(description.name == first.name for description in descriptions)
    has_title = any(description.title for description in descriptions)
    if not has_one_name or has_title or not all(differences):
        return [], texts
    return [text_of(first.name, common)], [keys_text(values) for values in differences]


def entries(expansion: Expansion) -> dict[str, EntrySummary]:
    """Return a summary of each method entry by label."""
    specs: dict[str, list[Spec]] = {}
    for run in expansion.runs:
        specs.setdefault(run.label, []).append(run.spec)
    return {
        label: _entry(of_entry, _parent(expansion.study.methods[label] or {}))
        for label, of_entry in specs.items()
    }


def names(expansion: Expansion) -> dict[str, list[str]]:
    """Return the names of all components that a study uses, by kind of the registry."""
    names: dict[str, set[str]] = {
        "analysis": {analysis.component.name for analysis in expansion.analyses},
        "task": {task_name(run.dataset.instance) for run in expansion.runs},
    }
    for run in expansion.runs:
        for key, kind in COMPONENT_KINDS.items():
            for spec in component_specs(run.spec, key):
                names.setdefault(kind, set()).add(spec["name"])
    return {kind: sorted(names.get(kind, ())) for kind in registry.FOLDER_BY_KIND}


def titles(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    """Return the user's titles of data sets, partitions and models, by kind and text."""
    return {
        kind: {choice.text: choice.title for choice in map(attrgetter(kind), runs) if choice.title}
        for kind in ("dataset", "partition", "model")
    }


def _parent(entry: Values) -> str | None:
    """Return the entry from whose model or on whose images an entry trains."""
    train_on = entry.get("train_on")
    return train_on if isinstance(train_on, str) else entry.get("start")


def _entry(specs: list[Spec], start: str | None) -> EntrySummary:
    return EntrySummary(
        method=specs[0]["method"]["name"],
        start=start,
        training=_values(spec["training"] for spec in specs),
        values=_values(map(_hyper, specs)),
    )


def _hyper(spec: Spec) -> Values:
    """Return the keys of a method and of what is added to it, ``mk-mmd.mu``."""
    hyper = {key: value for key, value in spec["method"].items() if key != "name"}
    for _, _, added in registry.added_components(spec):
        hyper |= {f"{added['name']}.{key}": value for key, value in added.items() if key != "name"}
    return hyper


def _values(mappings: Iterable[Values]) -> dict[str, list[Any]]:
    """Return the different values of each key."""
    by_key: dict[str, list[Any]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values = by_key.setdefault(key, [])
            if value not in values:
                values.append(value)
    return by_key


class PlannedStudy(NamedTuple):
    """The plan of a study, and its analyses."""

    study: StudyPlan
    analyses: list[PlannedAnalysis]


def plan_study(
    expansion: Expansion, bundle_of_run: Mapping[str, str], folder: Path
) -> PlannedStudy:
    """Return the plan of a study.

    Args:
        expansion: The runs of the study.
        bundle_of_run: Id of the bundle of each run.
        folder: The config folder, for published numbers.

    Raises:
        ConfigError: For published cells that do not exist.
    """
    settings = study_settings(expansion.runs)
    runs = _planned_runs(expansion, settings, bundle_of_run)
    analyses = list(planned_analyses(expansion, runs))
    return PlannedStudy(_study_plan(expansion, settings, runs, analyses, folder), analyses)


def _planned_runs(
    expansion: Expansion, settings: StudySettings, bundle_of_run: Mapping[str, str]
) -> list[PlannedRun]:
    """List the runs of a study."""
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
            bundle=bundle_of_run[run.id],
            setting=settings.setting_ids[scenario_key(run)],
            draw=settings.draws[scenario_key(run)],
            start=run.start,
        )
        for run in expansion.runs
    ]


def _study_plan(
    expansion: Expansion,
    settings: StudySettings,
    runs: list[PlannedRun],
    analyses: Iterable[PlannedAnalysis],
    folder: Path,
) -> StudyPlan:
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
        contrasts=study.contrasts,
        runs=runs,
        settings=settings.settings,
        shared=settings.shared,
        published=[
            cell for find_cells in PUBLISHED_CELLS.hooks() for cell in find_cells(expansion, folder)
        ],
        analyses=[
            AnalysisReference(analysis.analysis, analysis.text, analysis.title)
            for analysis in analyses
        ],
        titles=titles(expansion.runs),
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
