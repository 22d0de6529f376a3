"""From a study to its runs: every combination, with every default filled in.

A run's *spec* holds every choice that decides its numbers and nothing else. Its *point* is the spec
without the seed, with the hashes of its code and data. Point and seed make the run's identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from fl.api.task import DEFAULT, Task
from fl.base import identity
from fl.base.errors import ConfigError, ConfigProblems, FedloomError, Location, unknown_name
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.base.schema import REWEIGHTED
from fl.base.seams import Seam
from fl.base.specs import Spec
from fl.data.dataset import task_of
from fl.plan import config
from fl.plan.budgets import budget_notes
from fl.plan.components import Choice, OwnFiles, choices
from fl.plan.config import Draft, Execution, Study, Values
from fl.plan.grids import Point, too_many
from fl.plan.method_entries import MethodEntry, method_entries
from fl.plan.run_spec import RunSpec
from fl.plan.scenario import Scenario, check_same_task

STUDY_CHECKS = Seam[Callable[[Path, Draft, ConfigProblems], None]]("study checks")
"""Functions of the config folder and a study that collect what is wrong with keys of extras."""


@dataclass(frozen=True)
class Run:
    """A run of a study.

    Attributes:
        id: The run's id.
        point: Id of its point.
        spec: Every choice that decides its numbers.
        code: Hashes of its code and data (`RunSpec.code`).
        defaults: Keys at their defaults (`RunSpec.default_keys`).
        label: Label of its method entry.
        title: Name of the entry in print.
        grid: Values of the keys that the entry's grid varies; those of its parent's grid as
            ``start.<key>`` or ``train_on.<key>``.
        dataset: Its data set.
        partition: Its partition.
        model: Its model.
        execution: How it is computed; no part of its identity.
        unstackable: Why clients cannot be trained in one stack; empty if they can.
        start: Id of the run whose model it starts from.
    """

    id: str
    point: str
    spec: Spec
    code: dict[str, str]
    defaults: list[str]
    label: str
    title: str
    grid: Values
    dataset: Choice
    partition: Choice
    model: Choice
    execution: Execution
    unstackable: str
    start: str | None = None


@dataclass(frozen=True)
class Expansion:
    """The runs of a study.

    Attributes:
        name: The study's name.
        study: The study, with its metric.
        location: Location of the study.
        runs: Its runs.
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
    watched: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    analyses: list[Choice] = field(default_factory=list)
    execution: Execution = field(default_factory=Execution)

    @property
    def needs_weights(self) -> bool:
        """Whether final weights are read, by an analysis or because the study says so."""
        targets = [analysis.component.target for analysis in self.analyses]
        are_read = any(getattr(target, "weights", False) for target in targets)
        return self.study.keep_weights or are_read

    @property
    def needs_predictions(self) -> bool:
        """Whether predictions are kept, for metrics or because the study says so."""
        return self.study.keep_predictions or bool(self.study.metrics)


@dataclass(frozen=True)
class _Components:
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


def expand(
    folder: Path,
    name: str,
    draft: Draft,
    execution: Execution | None = None,
    own_files: OwnFiles | None = None,
    cache: dict[str, object] | None = None,
    checked: bool = True,
) -> Expansion:
    """Return all runs of a study.

    Args:
        folder: The config folder.
        name: The study's name.
        draft: The study.
        execution: How runs are computed where the study says nothing else.
        own_files: Finds the user's own files behind data sets.
        cache: What `SCENARIO_CHECKS` found out for other studies, which is not repeated.
        checked: Whether `SCENARIO_CHECKS` are called. If not, the runs are the same, but no
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
    components = _components(folder, draft, execution, own_files.settle, problems)
    check_references(draft, components.analyses, problems)
    for check_study in STUDY_CHECKS.hooks():
        check_study(folder, draft, problems)
    if components.are_right and (count := _count(study, components)) > study.max_runs:
        problems.errors.append(too_many(count, "runs", study.max_runs, location))
        problems.raise_all()
    if not components.datasets:
        problems.raise_all()
    task = task_of(components.datasets[0].instance, components.datasets[0].component.name)
    study = replace(study, metric=metric_of(draft, task, components.datasets[0], problems))
    for dataset in components.datasets:
        with problems.collected():
            check_same_task(dataset, task)
    runs: dict[tuple[str, str], Run] = {}
    findings = Findings(
        {model.text: {} for model in components.models},
        {},
        {} if cache is None else cache,
        set(),
        [],
    )
    schemes: list[Choice | None] = [*components.schemes] or [None]
    models: list[Choice | None] = [*components.models] or [None]
    for dataset, scheme, model in itertools.product(components.datasets, schemes, models):
        scenario = Scenario.of(dataset, scheme, model, task, problems)
        if scenario is None:
            continue
        with problems.collected():
            expanded = ExpandedScenario(study, scenario, components, location)
            if checked and model:
                check_modalities(expanded)
            for check_scenario in SCENARIO_CHECKS.hooks() if checked and model else ():
                check_scenario(expanded, findings)
            problems.errors += expanded.problems.errors
            for run in () if problems.errors else expanded.runs():
                runs[run.label, run.id] = run
    problems.raise_all()
    tables = [path_of(s.values["path"]) for s in components.schemes if "path" in s.values]
    watched = {**own_files.watched, **{str(path): change_stamp([path]) for path in tables}}
    return Expansion(
        name=name,
        study=study,
        location=location,
        runs=list(runs.values()),
        watched=watched,
        parameters=findings.parameters,
        heads=findings.heads,
        notes=[
            *dict.fromkeys(findings.notes),
            *budget_notes(components.entries, findings.without_passes),
        ],
        analyses=components.analyses,
        execution=execution,
    )


@dataclass(frozen=True)
class Extent:
    """Data sets, methods and number of runs of a study, without the ids of its runs.

    Attributes:
        datasets: Names of its data sets.
        methods: Names of its methods.
        runs: Number of its runs; runs of two entries that have the same spec count once.
    """

    datasets: list[str]
    methods: list[str]
    runs: int


def extent(folder: Path, draft: Draft) -> Extent:
    """Return the extent of a study, in a small part of the time that `expand` takes.

    The keys of all entries are checked, but not whether they go together in a scenario.

    Args:
        folder: The config folder.
        draft: The study.

    Raises:
        ConfigError: For what is wrong with the study, as far as it is checked.
    """
    problems = ConfigProblems(draft.errors)
    components = _components(folder, draft, Execution(), lambda choice: choice, problems)
    problems.raise_all()
    study, names, keys = draft.study, set[str](), set[_RunKey]()
    for dataset, scheme, model in itertools.product(
        components.datasets, components.schemes, components.models
    ):
        populations = {e.label: e.population(dataset, scheme) for e in components.entries}
        names |= {choice.component.name for choice, _ in populations.values()}
        specs = {
            label: str([*(choice.spec for choice in population), model.spec])
            for label, population in populations.items()
        }

        def seeds(entry: MethodEntry, populations: Populations = populations) -> list[int]:
            return training_seeds(study, populations[entry.label][1])

        def key(
            entry: MethodEntry,
            point: Point,
            parent: _RunKey | None,
            seed: int,
            specs: Mapping[str, str] = specs,
        ) -> _RunKey:
            started = parent.point if parent and entry.starts else parent
            return _RunKey((specs[entry.label], point.key, started, entry.samples_per_class), seed)

        keys |= {*runs_of_entries(components.entries, seeds, key)}
    methods = {entry.method.name for entry in components.entries}
    return Extent(sorted(names), sorted(methods), len(keys))


Populations = Mapping[str, tuple[Choice, Choice]]
"""Data set and partition of each entry by label."""


class _RunKey(NamedTuple):
    """The choices that distinguish a run from all others of its study."""

    point: Hashable
    seed: int


Parent = TypeVar("Parent")


def runs_of_entries(
    entries: Iterable[MethodEntry],
    seeds: Callable[[MethodEntry], list[int]],
    make_run: Callable[[MethodEntry, Point, Parent | None, int], Parent],
) -> Iterator[Parent]:
    """Yield what is made of each run: of every point of an entry, for every run of its parent.

    Args:
        entries: The entries.
        seeds: Returns the training seeds of an entry.
        make_run: Function of an entry, a point, the parent's run as it was made, and a seed.
    """

    def of_entry(entry: MethodEntry, seed: int) -> Iterator[Parent]:
        parents: list[Parent | None] = [None]
        if entry.parent:
            parent_seeds = seeds(entry.parent)
            parent_seed = seed if entry.starts and seed in parent_seeds else parent_seeds[0]
            parents = [*of_entry(entry.parent, parent_seed)]
        for point, parent in itertools.product(entry.points, parents):
            yield make_run(entry, point, parent, seed)

    for entry in entries:
        entry_seeds = seeds(entry)
        # Its images are the same for all seeds.
        for seed in entry_seeds[:1] if entry.declared.distils else entry_seeds:
            yield from of_entry(entry, seed)


def training_seeds(study: Study, scheme: Choice) -> list[int]:
    """Return the training seeds of a study with a partition: its own, or the partition's seed."""
    return study.seeds if isinstance(study.seeds, list) else [scheme.values["seed"]]


def _components(
    folder: Path,
    draft: Draft,
    execution: Execution,
    settle: Callable[[Choice], Choice],
    problems: ConfigProblems,
) -> _Components:
    """Return the components that a study names, as far as they are right."""
    study, location, error_count = draft.study, draft.location, len(problems.errors)
    entries = method_entries(folder, draft, execution, settle, problems)
    choices_of_key: dict[str, list[Choice]] = {}
    for key, kind in (
        ("datasets", "data set"),
        ("models", "model"),
        ("partitions", "partition scheme"),
        ("analyses", "analysis"),
    ):
        items, limit = getattr(study, key), study.max_runs
        choices_of_key[key] = choices(kind, items, location / key, limit, problems)
    datasets: list[Choice] = []
    for dataset in choices_of_key["datasets"]:
        with problems.collected():
            datasets.append(settle(dataset))
    return _Components(
        entries=entries,
        datasets=datasets,
        schemes=choices_of_key["partitions"],
        models=choices_of_key["models"],
        analyses=choices_of_key["analyses"],
        are_right=len(problems.errors) == error_count,
    )


def _count(study: Study, components: _Components) -> int:
    """Return the number of runs."""
    points = sum(entry.size for entry in components.entries)
    scenarios = len(components.datasets) * len(components.models) * len(components.schemes)
    seeds = 1 if study.seeds == config.PER_DRAW else len(study.seeds)
    return scenarios * seeds * points


@dataclass(frozen=True)
class Findings:
    """Facts about the models of a study that `SCENARIO_CHECKS` find out.

    Attributes:
        parameters: Number of trained weights, by the texts of model and data set.
        heads: Layers that make the outputs, by the text of the model.
        cache: Objects that are made once for all studies of a plan.
        without_passes: Labels of entries of which no client makes a training pass.
        notes: What the study's author should know of the models.
    """

    parameters: dict[str, dict[str, int]]
    heads: dict[str, str]
    cache: dict[str, object]
    without_passes: set[str]
    notes: list[str]


class ExpandedScenario:
    """The runs of a study in one scenario; some entries have a scenario of their own.

    Attributes:
        study: The study.
        analyses: Its analyses.
        distinct: The different scenarios of its entries, the study's own first.
        right_entries: Entries of which nothing is known to be wrong.
        scenarios: The scenario of each entry by label.
        unstackable: Why clients cannot be trained in one stack, as far as `SCENARIO_CHECKS` found
            out, by label and `Point.key`; empty if they can.
        problems: What is wrong.
    """

    def __init__(
        self, study: Study, scenario: Scenario, components: _Components, location: Location
    ) -> None:
        self.study, self.analyses = study, components.analyses
        self._entries = components.entries
        self.problems = ConfigProblems()
        self.scenarios: dict[str, Scenario] = {}
        for entry in components.entries:
            if own_scenario := entry.scenario(scenario, self.problems):
                self.scenarios[entry.label] = own_scenario
        own_scenarios = [own for own in self.scenarios.values() if own is not scenario]
        self.distinct = [scenario, *own_scenarios]
        self.unstackable: dict[tuple[str, str], str] = {}
        self._codes: dict[tuple[str, str], tuple[dict[str, str], list[str]]] = {}
        for own_scenario in self.distinct:
            check_analyses(components.analyses, own_scenario, self.problems)
            if study.seeds == config.PER_DRAW:
                with self.problems.collected():
                    check_partition_seed(own_scenario.scheme, location / "seeds")
        self.right_entries: list[MethodEntry] = []
        for entry in components.entries:
            with self.problems.collected():
                if entry.label in self.scenarios:
                    entry.check(self.scenarios)
                    self.right_entries += [entry] if entry.is_right else []

    def runs(self) -> Iterator[Run]:
        """Yield the runs of all entries."""

        def seeds(entry: MethodEntry) -> list[int]:
            return training_seeds(self.study, self.scenarios[entry.label].scheme)

        yield from runs_of_entries(self._entries, seeds, self._run)

    def _run(self, entry: MethodEntry, point: Point, parent: Run | None, seed: int) -> Run:
        scenario = self.scenarios[entry.label]
        spec = self._spec(entry, point, parent)
        code, defaults = self._code(entry, point, spec)
        point_id = identity.point_id(spec, code, defaults)
        parent_grid = parent.grid if parent else {}
        return Run(
            id=identity.run_id(point_id, seed),
            point=point_id,
            spec={**spec, "seed": seed},
            code=code,
            defaults=defaults,
            label=entry.label,
            title=entry.title,
            grid={
                **{f"{entry.parent_key}.{key}": value for key, value in parent_grid.items()},
                **point.grid,
            },
            dataset=scenario.dataset,
            partition=scenario.scheme,
            model=scenario.model,
            execution=entry.execution,
            unstackable=self.unstackable.get((entry.label, point.key), ""),
            start=parent.id if parent else None,
        )

    def _spec(self, entry: MethodEntry, point: Point, parent: Run | None) -> Spec:
        """Return the spec of a run without its seed."""
        scenario = self.scenarios[entry.label]
        spec: Spec = {
            "dataset": scenario.dataset.spec,
            "partition": scenario.scheme.spec,
            "model": scenario.model.spec,
            "method": point.spec,
            "terms": point.added_components["terms"],
            "training": point.training,
            "start": parent.point if parent and entry.starts else None,
        }
        spec |= cast("Spec", {key: specs for key, specs in point.added_components.items() if specs})
        if self.study.test != "own":
            spec["test"] = self.study.test
        if entry.samples_per_class or not entry.starts:
            spec["train_on"] = entry.samples_per_class or (parent.id if parent else None)
        return spec

    def _code(
        self, entry: MethodEntry, point: Point, spec: Spec
    ) -> tuple[dict[str, str], list[str]]:
        """Return code and default keys of a point, which seeds and parents do not change."""
        key = entry.label, point.key
        if key not in self._codes:
            run_spec = RunSpec(spec)
            self._codes[key] = run_spec.code, run_spec.default_keys
        return self._codes[key]


SCENARIO_CHECKS = Seam[Callable[[ExpandedScenario, Findings], None]]("scenario checks")
"""Functions that check the entries of a scenario by more than their keys, before anything is
trained. They add to `ExpandedScenario.problems`, `ExpandedScenario.unstackable` and `Findings`.
"""


def check_modalities(expanded: ExpandedScenario) -> None:
    """Collect entries and analyses that cannot work if clients differ in modality."""
    for entry in expanded.right_entries:
        train_on = entry.raw_value("train_on")
        if train_on is not None and len(expanded.scenarios[entry.label].inputs) > 1:
            problem = f"is {train_on!r}, but clients differ in modality"
            advice = "a partition without `modalities`, or no `train_on`"
            expanded.problems.errors.append(entry.error("train_on", problem, advice=advice))
    for analysis in expanded.analyses:
        target = analysis.component.target
        needs_one = any(getattr(target, n, False) for n in ("weights", "one_modality"))
        if needs_one and any(len(scenario.inputs) > 1 for scenario in expanded.distinct):
            problem = f"{analysis.component.name} needs clients of one modality, but they have "
            advice = "a partition without `modalities`"
            error = ConfigError(analysis.location, problem + "several", advice=advice)
            expanded.problems.errors.append(error)


def metric_of(draft: Draft, task: Task, dataset: Choice, problems: ConfigProblems) -> str:
    """Return the study's metric, or the usual one of its task.

    Args:
        draft: The study.
        task: The task of its data sets.
        dataset: The first data set.
        problems: Collects that the task has no such metric, or no classes where the study counts on
            them.
    """
    study, location = draft.study, draft.location
    reweighted = [REWEIGHTED] if study.test == "reweighted" else []
    if reweighted and not task.has_classes:
        problem = f"is reweighted, but {dataset.text} has {task.label_name}"
        problems.errors.append(ConfigError(location / "test", problem, "own, global"))
    for key in ("metrics", "keep_predictions"):
        if getattr(study, key) and task.name != DEFAULT:
            problem = f"is {getattr(study, key)!r}, but {dataset.text} has {task.label_name}"
            allowed = "none, or data sets with class labels"
            problems.errors.append(ConfigError(location / key, problem, allowed))
    if study.metrics and study.scored == "best":
        problem = "are of the final round, but scored is best"
        allowed = "none, or scored: last"
        problems.errors.append(ConfigError(location / "metrics", problem, allowed))
    metrics = (*task.metrics, *reweighted)
    is_reweighted = study.metric == REWEIGHTED and "test" in draft.wrong_keys
    if study.metric is not None and study.metric not in metrics and not is_reweighted:
        problems.errors.append(unknown_name(location / "metric", "metric", study.metric, metrics))
    return study.metric or metrics[0]


def check_references(draft: Draft, analyses: list[Choice], problems: ConfigProblems) -> None:
    """Collect unknown entries that keys name, and needless contrasts.

    Args:
        draft: The study.
        analyses: Its analyses.
        problems: Collects what is wrong.
    """
    study, location = draft.study, draft.location
    if "methods" in draft.wrong_keys:
        return
    references: list[tuple[Location, str]] = []
    for analysis in analyses:
        labels = enumerate(analysis.values.get("methods", ()))
        references += [(analysis.location / "methods" / i, label) for i, label in labels]
    if study.ours is not None:
        references.append((location / "ours", study.ours))
    if study.baseline is not None:
        references.append((location / "baseline", study.baseline))
    elif study.contrasts and "baseline" not in draft.wrong_keys:
        problem = "is set, but the study has no baseline, so that every pair is compared"
        advice = "set a baseline too"
        problems.errors.append(ConfigError(location / "contrasts", problem, advice=advice))
    for label, reference_label in study.contrasts.items():
        references += [(location / "contrasts" / label, name) for name in (label, reference_label)]
    problems.errors += [
        unknown_name(reference, "entry", label, study.methods)
        for reference, label in references
        if label not in study.methods
    ]
    for label, reference_label in study.contrasts.items():
        is_known = (
            study.baseline in (label, reference_label)
            or study.contrasts.get(reference_label) == label
        )
        if {label, reference_label} <= {*study.methods} and (reference_label == label or is_known):
            problem = f"is {reference_label!r}, and the two are one or compared already"
            advice = "name pairs that nothing else tests"
            error = ConfigError(location / "contrasts" / label, problem, advice=advice)
            problems.errors.append(error)


def check_partition_seed(scheme: Choice, location: Location) -> None:
    """Raise `ConfigError` if a partition has no seed that its runs could be trained with."""
    if "seed" not in scheme.seed_keys:
        problem = f"is per-draw, but the partition {scheme.text} has no seed"
        advice = "a list of seeds, or a partition scheme with the key seed"
        raise ConfigError(location, problem, advice=advice)


def check_analyses(
    analyses: Iterable[Choice], scenario: Scenario, problems: ConfigProblems
) -> None:
    """Collect analyses that cannot read the runs of a scenario.

    One may be made for another task, pass inputs of one kind through one network, or say itself
    that it cannot: its ``check`` gets the shape of a sample and the number of clients, if it is
    known.

    Args:
        analyses: The study's analyses.
        scenario: The scenario.
        problems: Collects what is wrong.
    """
    for analysis in analyses:
        with problems.collected():
            _check_analysis(analysis, scenario)


def _check_analysis(analysis: Choice, scenario: Scenario) -> None:
    component, location = analysis.component, analysis.location
    scenario.check(component, location)
    check = getattr(analysis.instance, "check", None)
    try:
        if check:
            check(scenario.dataset.instance.shape, scenario.partition.clients)
    except FedloomError as error:
        raise ConfigError(location, f"on {scenario.dataset.text}: {error}") from None
