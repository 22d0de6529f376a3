"""From a study to its runs: every combination, with every default filled in.

A run's *spec* holds every choice that decides its numbers and nothing else. Its *point* is the spec
without the seed, with the hashes of its code and data. Point and seed make the run's identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from fl.base import identity
from fl.base.errors import ConfigProblems, Location
from fl.base.folders import path_of
from fl.base.specs import Spec
from fl.data.dataset import task_of
from fl.data.own_files import change_stamp
from fl.plan import config
from fl.plan.components import Choice, OwnFiles, choices
from fl.plan.config import Draft, Execution, Study, Values
from fl.plan.grids import Point, too_many
from fl.plan.method_entries import MethodEntry, method_entries
from fl.plan.published_tables import Best, Cells, read_table
from fl.plan.rehearsal import Rehearsal, Rehearsed
from fl.plan.run_spec import RunSpec
from fl.plan.scenario import Scenario, check_same_task
from fl.plan.study_checks import (
    check_analyses,
    check_partition_seed,
    check_references,
    check_traces,
    metric_of,
)


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
    rehearsals: dict[str, Rehearsal] | None = None,
    checked: bool = True,
) -> Expansion:
    """Return all runs of a study.

    Args:
        folder: The config folder.
        name: The study's name.
        draft: The study.
        execution: How runs are computed where the study says nothing else.
        own_files: Finds the user's own files behind data sets.
        rehearsals: Rehearsals of other studies, which are not repeated.
        checked: Whether models and methods are tried. If not, the runs are the same, but no
            model's size is known.

    Raises:
        ConfigError: For what is wrong with the study, all at once. What is right is checked
            although other parts are wrong; nothing is told that another error causes.
    """
    study, location, problems = draft.study, draft.location, ConfigProblems(draft.errors)
    own_files = own_files or OwnFiles()
    rehearsals = {} if rehearsals is None else rehearsals
    execution = execution or Execution()
    with problems.collected():
        execution = config.override_execution(execution, study.execution, location / "execution")
    components = _components(folder, draft, execution, own_files, problems)
    check_references(draft, components.analyses, problems)
    cells_by_location: dict[Location, Cells | Best] = {
        location / "published" / i: cells for i, cells in enumerate(study.published)
    }
    cells_by_location |= {location / "best": study.best} if study.best else {}
    for cells_location, cells in cells_by_location.items():
        with problems.collected():
            read_table(folder, cells.source, cells.table, cells_location)
    if components.are_right and (count := _count(study, components)) > study.max_runs:
        problems.errors.append(too_many(count, "runs", study.max_runs, location))
        problems.raise_all()
    if not components.datasets:
        problems.raise_all()
    task = task_of(components.datasets[0].spec)
    study = replace(study, metric=metric_of(draft, task, components.datasets[0], problems))
    for dataset in components.datasets:
        with problems.collected():
            check_same_task(dataset, task)
    runs: dict[tuple[str, str], Run] = {}
    parameters: dict[str, dict[str, int]] = {model.text: {} for model in components.models}
    heads: dict[str, str] = {}
    schemes: list[Choice | None] = [*components.schemes] or [None]
    models: list[Choice | None] = [*components.models] or [None]
    for dataset, scheme, model in itertools.product(components.datasets, schemes, models):
        scenario = Scenario.of(dataset, scheme, model, task, problems)
        if scenario is None:
            continue
        with problems.collected():
            expanded = _ExpandedScenario(study, scenario, components, location)
            if checked and model:
                expanded.rehearse(rehearsals, parameters[model.text], heads)
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
        parameters=parameters,
        heads=heads,
        analyses=components.analyses,
        execution=execution,
    )


def _components(
    folder: Path,
    draft: Draft,
    execution: Execution,
    own_files: OwnFiles,
    problems: ConfigProblems,
) -> _Components:
    """Return the components that a study names, as far as they are right."""
    study, location, error_count = draft.study, draft.location, len(problems.errors)
    entries = method_entries(folder, draft, execution, own_files.settle, problems)
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
            datasets.append(own_files.settle(dataset))
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


class _ExpandedScenario:
    """The runs of a study in one scenario; some entries have a scenario of their own.

    Attributes:
        scenarios: The scenario of each entry by label.
        rehearsed: What trying a point showed, by label and `Point.key`.
        problems: What is wrong.
    """

    def __init__(
        self, study: Study, scenario: Scenario, components: _Components, location: Location
    ) -> None:
        self._study, self._components = study, components
        self.problems = ConfigProblems()
        self.scenarios: dict[str, Scenario] = {}
        for entry in components.entries:
            if own_scenario := entry.scenario(scenario, self.problems):
                self.scenarios[entry.label] = own_scenario
        own_scenarios = [own for own in self.scenarios.values() if own is not scenario]
        self._distinct = [scenario, *own_scenarios]
        self.rehearsed: dict[tuple[str, str], Rehearsed] = {}
        self._codes: dict[tuple[str, str], tuple[dict[str, str], list[str]]] = {}
        for own_scenario in self._distinct:
            check_analyses(components.analyses, own_scenario, self.problems)
            if study.seeds == config.PER_DRAW:
                with self.problems.collected():
                    check_partition_seed(own_scenario.scheme, location / "seeds")
        self._right_entries: list[MethodEntry] = []
        for entry in components.entries:
            with self.problems.collected():
                if entry.label in self.scenarios:
                    entry.check(self.scenarios)
                    self._right_entries += [entry] if entry.is_right else []

    def rehearse(
        self, rehearsals: dict[str, Rehearsal], parameters: dict[str, int], heads: dict[str, str]
    ) -> None:
        """Try models, and methods of which nothing is known to be wrong.

        Args:
            rehearsals: Rehearsals so far, to which those of this scenario are added.
            parameters: Number of weights by data set, to which this scenario's is added.
            heads: Layers that make the outputs by model, to which this scenario's are added.
        """
        works: list[Scenario] = []
        for scenario in self._distinct:
            with self.problems.collected():
                rehearsal = Rehearsal.of(scenario, rehearsals)
                parameters.setdefault(scenario.dataset.text, rehearsal.parameters)
                if rehearsal.head:
                    heads[scenario.model.text] = rehearsal.head
                works.append(scenario)
        for entry in self._right_entries:
            scenario = self.scenarios[entry.label]
            if scenario not in works:
                continue
            with self.problems.collected():
                by_point = entry.rehearse(Rehearsal.of(scenario, rehearsals), scenario)
                self.rehearsed |= {(entry.label, key): result for key, result in by_point.items()}
        if not self.problems.errors and len(self._right_entries) == len(self._study.methods):
            with self.problems.collected():
                check_traces(self._components.analyses, self.rehearsed.values())

    def runs(self) -> Iterator[Run]:
        """Yield the runs of all entries."""
        for entry in self._components.entries:
            seeds = self._seeds(entry)
            # Its images are the same for all seeds.
            for seed in seeds[:1] if entry.declared.distils else seeds:
                yield from self._runs_of(entry, seed)

    def _seeds(self, entry: MethodEntry) -> list[int]:
        """Return the training seeds of an entry: the study's, or the seed of its partition."""
        if isinstance(self._study.seeds, list):
            return self._study.seeds
        return [self.scenarios[entry.label].scheme.values["seed"]]

    def _runs_of(self, entry: MethodEntry, seed: int) -> Iterator[Run]:
        """Yield the runs of an entry: every point, for every run of its parent."""
        parents: list[Run | None] = [None]
        if entry.parent:
            parent_seeds = self._seeds(entry.parent)
            parent_seed = seed if entry.starts and seed in parent_seeds else parent_seeds[0]
            parents = [*self._runs_of(entry.parent, parent_seed)]
        for point, parent in itertools.product(entry.points, parents):
            yield self._run(entry, point, parent, seed)

    def _run(self, entry: MethodEntry, point: Point, parent: Run | None, seed: int) -> Run:
        scenario = self.scenarios[entry.label]
        spec = self._spec(entry, point, parent)
        code, defaults = self._code(entry, point, spec)
        point_id = identity.point_id(spec, code, defaults)
        rehearsed = self.rehearsed.get((entry.label, point.key)) if self.rehearsed else None
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
            unstackable=rehearsed.unstackable if rehearsed else "",
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
        if self._study.test != "own":
            spec["test"] = self._study.test
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
