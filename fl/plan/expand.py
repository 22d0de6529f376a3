"""From a study to its runs: every combination, with every default filled in.

A run's *spec* holds every choice that decides its numbers and nothing else. Its *point* is the spec
without the seed, with the hashes of its code and data. Point and seed make the run's identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

from fl.base import arithmetic, identity
from fl.base.arithmetic import NATIVE, PORTABLE
from fl.base.dataclass_json import as_json
from fl.base.errors import ConfigProblems, Location
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.base.specs import Spec
from fl.base.units import size
from fl.data.dataset import task_of
from fl.plan import checks, config
from fl.plan.budgets import budget_notes
from fl.plan.bundle import Run
from fl.plan.components import Choice, OwnFiles, choices
from fl.plan.config import Draft, Execution, Study
from fl.plan.grids import Point, too_many
from fl.plan.method_entries import MethodEntry, method_entries
from fl.plan.published_tables import check_tables
from fl.plan.rehearsal import Findings, Rehearsal, Rehearsed, check_traces, rehearse
from fl.plan.run_spec import RunSpec, added_files
from fl.plan.scenario import Scenario, check_same_task
from fl.plan.study_settings import ScenarioKey, StudySettings, scenario_key, study_settings
from fl.store.run_record import PREDICTIONS, WEIGHTS

CHOICE_KINDS = {
    "datasets": "data set",
    "models": "model",
    "partitions": "partition scheme",
    "analyses": "analysis",
}
"""Kinds of the components that a study lists, by key."""


AUTO = "auto"
"""Value of the key ``arithmetic`` by which the model decides."""


@dataclass(frozen=True)
class Expansion:
    """The runs of a study.

    Attributes:
        name: The study's name.
        study: The study, with its metric.
        location: Location of the study.
        runs: Its runs; the bundle of each is not known yet.
        scenarios: The data set, the partition and the model of runs, by `scenario_key`.
        settings: Its settings.
        entries: The method entries by label.
        watched: The `change_stamp` of each file outside the config that runs depend on, by path.
        parameters: Number of trained weights, by the texts of model and data set.
        heads: Layers that make the outputs, by the text of the model; only of models with a head.
        notes: What its author should know of it (`fl.plan.budgets`).
        analyses: The analyses that it asks for.
        execution: How runs of an entry are computed that does not set it.
    """

    name: str
    study: Study
    location: Location
    runs: list[Run]
    scenarios: dict[ScenarioKey, Scenario]
    settings: StudySettings
    entries: dict[str, MethodEntry]
    watched: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    analyses: list[Choice] = field(default_factory=list)
    execution: Execution = field(default_factory=Execution)

    def scenario(self, run: Run) -> Scenario:
        """Return the data set, the partition and the model of a run."""
        return self.scenarios[run.dataset_id, run.partition_id, run.model]


@dataclass(frozen=True)
class Components:
    """The components that a study names, as far as they are right.

    Attributes:
        entries: The method entries.
        datasets: The data sets.
        schemes: The partitions.
        models: The models.
        analyses: The analyses.
        are_right: Whether nothing is wrong with any of them.
    """

    entries: list[MethodEntry]
    datasets: list[Choice]
    schemes: list[Choice]
    models: list[Choice]
    analyses: list[Choice]
    are_right: bool


class Combination(NamedTuple):
    """A run of a study before it has a name.

    Attributes:
        dataset: The study's data set; an entry may have its own.
        scheme: The study's partition; an entry may have its own.
        model: The model.
        entry: The method entry.
        point: The point of the entry's grid.
        seed: The seed of training.
        parent: The run from whose model, or on whose images, it trains.
    """

    dataset: Choice
    scheme: Choice
    model: Choice
    entry: MethodEntry
    point: Point
    seed: int
    parent: Combination | None

    @property
    def point_key(self) -> Hashable:
        """All that it has in common with the runs of other seeds, and no other run has."""
        choices = (*self.entry.population(self.dataset, self.scheme), self.model)
        parent: Hashable = None
        if self.parent:
            parent = self.parent.point_key if self.entry.starts else self.parent.key
        keys = tuple(choice.key for choice in choices)
        return keys, self.point.key, parent, self.entry.samples_per_class

    @property
    def key(self) -> Hashable:
        """All that distinguishes it from other runs of its study; labels and titles do not."""
        return self.point_key, self.seed


def combinations(study: Study, components: Components) -> Iterator[Combination]:
    """Yield every run of a study, of each scenario and entry; equal ones as often as they occur."""
    for dataset, scheme, model in itertools.product(
        components.datasets, components.schemes, components.models
    ):
        for entry in components.entries:
            seeds = _seeds(study, entry, dataset, scheme)
            if entry.declared.distils:  # Its images are the same for all seeds.
                seeds = seeds[:1]
            for seed in seeds:
                yield from _of_entry(study, (dataset, scheme, model), entry, seed)


def _of_entry(
    study: Study, choices: tuple[Choice, Choice, Choice], entry: MethodEntry, seed: int
) -> Iterator[Combination]:
    """Yield the runs of an entry with a seed: of every point, for every run of its parent."""
    parents: list[Combination | None] = [None]
    if entry.parent:
        seeds = _seeds(study, entry.parent, *choices[:2])
        parent_seed = seed if entry.starts and seed in seeds else seeds[0]
        parents = [*_of_entry(study, choices, entry.parent, parent_seed)]
    for point, parent in itertools.product(entry.points, parents):
        yield Combination(*choices, entry, point, seed, parent)


def _seeds(study: Study, entry: MethodEntry, dataset: Choice, scheme: Choice) -> list[int]:
    """Return the training seeds of an entry: the study's own, or the seed of the partition."""
    own_scheme = entry.population(dataset, scheme)[1]
    return study.seeds if isinstance(study.seeds, list) else [own_scheme.values["seed"]]


def read_components(
    folder: Path,
    draft: Draft,
    problems: ConfigProblems,
    execution: Execution | None = None,
    settle: Callable[[Choice], Choice] | None = None,
) -> Components:
    """Return the components that a study names, as far as they are right.

    Args:
        folder: The config folder.
        draft: The study.
        problems: Collects what is wrong.
        execution: How runs of an entry are computed that does not set it.
        settle: Finds the user's own files behind a data set; by default it stays as it is.
    """
    study, location, error_count = draft.study, draft.location, len(problems.errors)
    settle = settle or _as_it_is
    entries = method_entries(folder, draft, execution or Execution(), settle, problems)
    of_key = {
        key: choices(kind, getattr(study, key), location / key, study.max_runs, problems)
        for key, kind in CHOICE_KINDS.items()
    }
    datasets: list[Choice] = []
    for dataset in of_key["datasets"]:
        with problems.collected():
            datasets.append(settle(dataset))
    return Components(
        entries=entries,
        datasets=datasets,
        schemes=of_key["partitions"],
        models=of_key["models"],
        analyses=of_key["analyses"],
        are_right=len(problems.errors) == error_count,
    )


def _as_it_is(choice: Choice) -> Choice:
    return choice


def _count(study: Study, components: Components) -> int:
    """Return the number of `combinations`, before any of them is made."""
    points = sum(entry.size for entry in components.entries)
    scenarios = len(components.datasets) * len(components.models) * len(components.schemes)
    seeds = 1 if study.seeds == config.PER_DRAW else len(study.seeds)
    return points * scenarios * seeds


def expand(
    folder: Path,
    name: str,
    draft: Draft,
    execution: Execution | None = None,
    own_files: OwnFiles | None = None,
    cache: dict[str, Rehearsal] | None = None,
    checked: bool = True,
) -> Expansion:
    """Return all runs of a study.

    Args:
        folder: The config folder.
        name: The study's name.
        draft: The study.
        execution: How runs are computed where the study says nothing else.
        own_files: Finds the user's own files behind data sets.
        cache: Rehearsals of other studies, which are not repeated.
        checked: Whether models and methods are tried. If not, the runs are the same, but no
            model's size is known.

    Raises:
        ConfigError: For what is wrong with the study, all at once. What is right is checked
            although other parts are wrong; nothing is told that another error causes.
    """
    study, location, problems = draft.study, draft.location, ConfigProblems(draft.errors)
    own_files = own_files or OwnFiles()
    execution = execution or Execution()
    with problems.collected():
        execution = config.override_execution(execution, study.execution, location / "execution")
    components = read_components(folder, draft, problems, execution, own_files.settle)
    checks.check_references(draft, components.analyses, problems)
    check_tables(folder, draft, problems)
    if components.are_right and (count := _count(study, components)) > study.max_runs:
        problems.errors.append(too_many(count, "runs", study.max_runs, location))
        problems.raise_all()
    if not components.datasets:
        problems.raise_all()
    first = components.datasets[0]
    task = task_of(first.instance, first.component.name)
    checks.check_metric(draft, task, first, problems)
    study = replace(study, metric=study.metric or task.metrics[0])
    for dataset in components.datasets:
        with problems.collected():
            check_same_task(dataset, task)
    findings = Findings(
        {model.text: {} for model in components.models},
        {},
        {} if cache is None else cache,
        set(),
        [],
    )
    expanded: list[ExpandedScenario] = []
    schemes: list[Choice | None] = [*components.schemes] or [None]
    models: list[Choice | None] = [*components.models] or [None]
    for dataset, scheme, model in itertools.product(components.datasets, schemes, models):
        scenario = Scenario.of(dataset, scheme, model, task, problems)
        if scenario is None:
            continue
        with problems.collected():
            of_scenario = ExpandedScenario(study, scenario, components, location)
            expanded.append(of_scenario)
            if checked and model:
                of_scenario.rehearse(findings)
            problems.errors += of_scenario.problems.errors
    problems.raise_all()
    scenarios = {
        scenario_key(scenario): scenario
        for of_scenario in expanded
        for scenario in of_scenario.scenarios.values()
    }
    settings = study_settings(scenarios)
    runs = _runs(study, components, expanded, settings)
    tables = [path_of(s.values["path"]) for s in components.schemes if "path" in s.values]
    tables += {path for run in runs for _, path in added_files(run.spec)}
    watched = {**own_files.watched, **{str(path): change_stamp([path]) for path in tables}}
    return Expansion(
        name=name,
        study=study,
        location=location,
        runs=runs,
        scenarios=scenarios,
        settings=settings,
        entries={entry.label: entry for entry in components.entries},
        watched=watched,
        parameters=findings.parameters,
        heads=findings.heads,
        notes=[
            *draft.notes,
            *dict.fromkeys(findings.notes),
            *dict.fromkeys(filter(None, (s.partition.note for s in scenarios.values()))),
            *budget_notes(components.entries, findings.without_passes),
            *_native_notes(runs, components.entries),
        ],
        analyses=components.analyses,
        execution=execution,
    )


def _runs(
    study: Study,
    components: Components,
    expanded: Iterable[ExpandedScenario],
    settings: StudySettings,
) -> list[Run]:
    """Return the runs of a study, equal ones of an entry once."""
    runs: dict[tuple[str, str], Run] = {}
    choices = itertools.product(components.datasets, components.schemes, components.models)
    by_choices = dict(zip((_keys(*three) for three in choices), expanded, strict=True))
    for combination in combinations(study, components):
        of_scenario = by_choices[_keys(*combination[:3])]
        run = of_scenario.run(combination, settings)
        runs[run.method, run.run] = run
    starts = {run.start for run in runs.values()}
    reads_weights = any(
        getattr(analysis.component.target, "weights", False) for analysis in components.analyses
    )
    needs_weights = study.keep_weights or reads_weights
    needs_predictions = study.keep_predictions or bool(study.metrics)
    kept: list[Run] = []
    for run in runs.values():
        keep = [WEIGHTS] if needs_weights or run.run in starts else []
        keep += [PREDICTIONS] if needs_predictions else []
        kept.append(replace(run, keep=keep) if keep else run)
    return kept


def _keys(*choices: Choice) -> tuple[str, ...]:
    return tuple(choice.key for choice in choices)


class ExpandedScenario:
    """The entries of a study in one scenario; some have a scenario of their own.

    Attributes:
        study: The study.
        analyses: Its analyses.
        distinct: The different scenarios of its entries, the study's own first.
        right_entries: Entries of which nothing is known to be wrong.
        scenarios: The scenario of each entry by label.
        rehearsed: What was found out about points that were tried, by label and `Point.key`.
        problems: What is wrong.
    """

    def __init__(
        self, study: Study, scenario: Scenario, components: Components, location: Location
    ) -> None:
        self.study, self.analyses = study, components.analyses
        self.problems = ConfigProblems()
        self.scenarios: dict[str, Scenario] = {}
        for entry in components.entries:
            if own_scenario := entry.scenario(scenario, self.problems):
                self.scenarios[entry.label] = own_scenario
        own_scenarios = [own for own in self.scenarios.values() if own is not scenario]
        self.distinct = [scenario, *own_scenarios]
        self.rehearsed: dict[tuple[str, str], Rehearsed] = {}
        self._points: dict[tuple[str, Hashable], Run] = {}
        self._codes: dict[tuple[str, str], tuple[dict[str, str], list[str]]] = {}
        for own_scenario in self.distinct:
            checks.check_analyses(components.analyses, own_scenario, self.problems)
            if study.seeds == config.PER_DRAW:
                with self.problems.collected():
                    checks.check_partition_seed(own_scenario.scheme, location / "seeds")
        self.right_entries: list[MethodEntry] = []
        for entry in components.entries:
            with self.problems.collected():
                if entry.label in self.scenarios:
                    checks.check_entry(entry, self.scenarios)
                    self.right_entries += [entry] if entry.is_right else []

    def rehearse(self, findings: Findings) -> None:
        """Try its models, and methods of which nothing is known to be wrong."""
        entries = {entry: self.scenarios[entry.label] for entry in self.right_entries}
        checks.check_modalities(entries, self.distinct, self.analyses, self.problems)
        self.rehearsed = rehearse(self.distinct, entries, findings, self.problems)
        findings.notes.extend(self._memory_notes())
        if not self.problems.errors and len(self.right_entries) == len(self.study.methods):
            with self.problems.collected():
                check_traces(self.analyses, self.rehearsed.values())

    def _memory_notes(self) -> Iterator[str]:
        """Yield notes on servers that keep so much of clients that they need most of the memory."""
        entries = {entry.label: entry for entry in self.right_entries}
        for (label, _), tried in self.rehearsed.items():
            clients = self.scenarios[label].partition.clients
            needed = tried.participation_bytes(clients)[1] if clients else 0
            memory_mb = entries[label].execution.memory_mb
            if needed > memory_mb * 2**20 / 2:
                yield (
                    f"{label}: what its server keeps of {clients:,} clients needs about "
                    f"{size(needed)}, and memory_mb is {memory_mb}. Try: `execution: {{memory_mb: "
                    f"{round(needed / 2**20) + memory_mb}}}`, fewer clients, or a smaller model"
                )

    def run(self, combination: Combination, settings: StudySettings) -> Run:
        """Return the run of a combination in this scenario, with its name.

        Args:
            combination: What the run combines.
            settings: The settings of the study.
        """
        label, seed = combination.entry.label, combination.seed
        parent = self.run(combination.parent, settings) if combination.parent else None
        place = label, combination.point_key
        if place not in self._points:
            self._points[place] = self._point(combination, parent, settings)
        of_point = self._points[place]
        return replace(
            of_point,
            run=identity.run_id(of_point.point_id, seed),
            spec={**of_point.spec, "seed": seed},
            start=parent.run if parent else None,
        )

    def _point(self, combination: Combination, parent: Run | None, settings: StudySettings) -> Run:
        """Return what the runs of a point have in common."""
        entry, point = combination.entry, combination.point
        scenario = self.scenarios[entry.label]
        spec = self._spec(entry, point, parent)
        key = entry.label, point.key
        if key not in self._codes:  # Its parents change neither.
            run_spec = RunSpec(spec)
            self._codes[key] = run_spec.code, run_spec.default_keys
        code, defaults = self._codes[key]
        parent_point = parent.point if parent else {}
        tried = self.rehearsed.get(key)
        server, client = tried.state_bytes if tried else (0, 0)
        clients = scenario.partition.clients
        kept = tried.participation_bytes(clients)[0] if tried and clients else 0
        place = scenario_key(scenario)
        return Run(
            run="",
            spec=spec,
            code=code,
            defaults=defaults,
            point_id=identity.point_id(spec, code, defaults),
            unstackable=tried.unstackable if tried else "",
            is_linear=tried.is_linear if tried else False,
            state_bytes=0 if clients is None else server + client * clients + kept,
            method=entry.label,
            title=entry.title,
            point={
                **{f"{entry.parent_key}.{key}": value for key, value in parent_point.items()},
                **point.grid,
            },
            dataset=scenario.dataset.text,
            partition=scenario.scheme.text,
            model=scenario.model.text,
            setting=settings.setting_ids[place],
            draw=settings.draws[place],
        )

    def _spec(self, entry: MethodEntry, point: Point, parent: Run | None) -> Spec:
        """Return the spec of a run without its seed, as JSON has it."""
        scenario = self.scenarios[entry.label]
        spec: Spec = {
            "dataset": scenario.dataset.spec,
            "partition": scenario.scheme.spec,
            "model": scenario.model.spec,
            "method": point.spec,
            "terms": point.added_components["terms"],
            "training": {**point.training, "arithmetic": _arithmetic(point, scenario.model)},
            "start": parent.point_id if parent and entry.starts else None,
        }
        spec |= cast("Spec", {key: specs for key, specs in point.added_components.items() if specs})
        if self.study.test != "own":
            spec["test"] = self.study.test
        if entry.samples_per_class or not entry.starts:
            spec["train_on"] = entry.samples_per_class or (parent.run if parent else None)
        return cast("Spec", as_json(spec))


def _native_notes(runs: Iterable[Run], entries: Iterable[MethodEntry]) -> Iterator[str]:
    """Yield a note for each model whose runs have native arithmetic, although no key says so."""
    by_rule = {e.label for e in entries if any(p.training["arithmetic"] == AUTO for p in e.points)}
    of_rule = [run for run in runs if run.method in by_rule]
    for model in sorted({r.model for r in of_rule if arithmetic.of_spec(r.spec) == NATIVE}):
        yield (
            f"{model}: its steps are large, so its runs have native arithmetic, whose last digits "
            "depend on the processor. Try: `arithmetic: portable` under `training` for equal ones, "
            "which takes up to twice as long"
        )


def _arithmetic(point: Point, model: Choice) -> str:
    """Return the arithmetic of a point's runs: a large model says that its steps are native."""
    by_model: str = getattr(model.component.target, "arithmetic", PORTABLE)
    return by_model if point.training["arithmetic"] == AUTO else point.training["arithmetic"]
