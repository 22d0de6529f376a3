"""From a study to its runs: every combination, with every default filled in.

A run's *spec* holds every choice that decides its numbers and nothing else. Its *point* is the spec
without the seed, with the hashes of its code and data. Point and seed make the run's identity.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fl.api.task import DEFAULT, Task
from fl.base import identity
from fl.base.errors import ConfigError, FedloomError, Location, unknown
from fl.base.places import path_of
from fl.base.schema import REWEIGHTED
from fl.data import materials
from fl.data.contents import stamp
from fl.plan import config
from fl.plan.components import Choice, OwnFiles, choices
from fl.plan.config import Execution, Settings, Study
from fl.plan.grids import Point, too_many
from fl.plan.method_entries import MethodEntry, method_entries
from fl.plan.rehearsal import Rehearsal, Rehearsed
from fl.plan.run_spec import RunSpec
from fl.plan.scenario import Scenario, check_alike


@dataclass(frozen=True)
class Run:
    """One run of a study.

    Attributes:
        label: The study's name for its method entry.
        title: The entry's name in print.
        grid: The grid values of the entry, and as ``start.<key>`` those of what it starts from, as
            ``train_on.<key>`` those of what made its samples.
        execution: How to compute it; no part of its identity.
        unstackable: Why its clients cannot be trained in one stack; "" if they can.
        start: The run whose model it starts from.
    """

    id: str
    point: str
    spec: dict[str, Any]
    code: dict[str, str]
    defaults: list[str]
    label: str
    title: str
    grid: dict[str, Any]
    dataset: Choice
    partition: Choice
    model: Choice
    execution: Execution
    unstackable: str
    start: str | None = None


@dataclass(frozen=True)
class Expansion:
    """A study's runs.

    Attributes:
        watched: By path, the `stamp` of each file outside the config that the runs depend on.
        parameters: The size of each model, by the texts of the model and the data set.
        analyses: Those that the study asks for.
        execution: How the study's runs are computed where an entry says nothing else.
    """

    name: str
    study: Study
    location: Location
    runs: list[Run]
    watched: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    analyses: list[Choice] = field(default_factory=list)
    execution: Execution = field(default_factory=Execution)

    @property
    def needs_weights(self) -> bool:
        """Whether final weights are read, by an analysis or because the study says so."""
        targets = [analysis.entry.target for analysis in self.analyses]
        read = any(getattr(target, "weights", False) for target in targets)
        return self.study.keep_weights or read

    @property
    def needs_predictions(self) -> bool:
        """Whether predictions are kept, for metrics or because the study says so."""
        return self.study.keep_predictions or bool(self.study.metrics)


def expand(
    folder: Path,
    name: str,
    study: Study,
    location: Location,
    execution: Execution | None = None,
    users_files: OwnFiles | None = None,
    rehearsals: dict[str, Rehearsal] | None = None,
    checked: bool = True,
) -> Expansion:
    """All runs of a study.

    Args:
        study, location: What the study says, and where it stands, as of `fl.plan.config.study`.
        execution: How runs are computed where the study says nothing else.
        users_files: Finds the user's own files behind data sets.
        rehearsals: Those of other studies, which are not repeated.
        checked: Whether models and methods are tried at all. If not, the runs are the same, but
            no model's size is known.

    Raises:
        ConfigError: For anything in the study that is not understood.
    """
    users_files = users_files or OwnFiles()
    execution = config.override_execution(
        execution or Execution(), study.execution, location / "execution"
    )
    entries = method_entries(folder, study, location, execution, users_files.settle)
    most = study.max_runs
    datasets = choices("data set", study.datasets, location / "datasets", most)
    datasets = list(map(users_files.settle, datasets))
    models = choices("model", study.models, location / "models", most)
    schemes = choices("partition scheme", study.partitions, location / "partitions", most)
    analyses = choices("analysis", study.analyses, location / "analyses", most)
    task, metric = _settled(study, datasets[0], location)
    for dataset in datasets:
        check_alike(dataset, task)
    study = replace(study, metric=metric)
    _check_named(study, analyses, location)
    points = sum(entry.size for entry in entries)
    count = len(datasets) * len(models) * len(schemes) * len(study.seeds) * points
    if count > most:
        raise too_many(count, "runs", most, location)
    runs: dict[tuple[str, str], Run] = {}
    counts: dict[str, dict[str, int]] = {model.text: {} for model in models}
    rehearsals = {} if rehearsals is None else rehearsals
    for dataset, scheme, model in itertools.product(datasets, schemes, models):
        here = Scenario.of(dataset, scheme, model, task)
        scenarios = {entry.label: entry.scenario(here) for entry in entries}
        for scenario in [here, *(each for each in scenarios.values() if each is not here)]:
            check_analyses(analyses, scenario)
            if checked:
                parameters = Rehearsal.of(scenario, rehearsals).parameters
                counts[model.text].setdefault(scenario.dataset.text, parameters)
        tried: dict[int, Rehearsed] = {}
        for entry in entries:
            entry.check(scenarios)
            if checked:
                scenario = scenarios[entry.label]
                tried |= entry.rehearse(Rehearsal.of(scenario, rehearsals), scenario)
        check_traces(analyses, tried.values())
        place = _Place(study, scenarios, tried)
        for entry, seed in itertools.product(entries, study.seeds):
            if entry.declared.distils and seed != study.seeds[0]:
                continue  # Its images are the same for all seeds.
            for run in place.runs(entry, seed):
                runs[run.label, run.id] = run
    tables = [path_of(scheme.values["path"]) for scheme in schemes if "path" in scheme.values]
    watched = {**users_files.watched, **{str(path): stamp([path]) for path in tables}}
    planned = list(runs.values())
    return Expansion(name, study, location, planned, watched, counts, analyses, execution)


def _settled(study: Study, dataset: Choice, location: Location) -> tuple[Task, str]:
    """The task of a study, which is that of its first data set, and its metric: the one that it
    says, or the usual one.

    Raises:
        ConfigError: If the task has no such metric, or no classes where the study counts on them.
    """
    task = materials.task_of(dataset.spec)
    reweighted = [REWEIGHTED] if study.test == "reweighted" else []
    if reweighted and not task.counted:
        problem = f"is reweighted, but {dataset.text} has {task.given}"
        raise ConfigError(location / "test", problem, "own or global")
    for key in ("metrics", "keep_predictions"):
        if getattr(study, key) and task.name != DEFAULT:
            problem = f"is {getattr(study, key)!r}, but {dataset.text} has {task.given}"
            raise ConfigError(location / key, problem, "none, or data sets with class labels")
    if study.metrics and study.scored == "best":
        problem = "are of the final round, and scored is best"
        raise ConfigError(location / "metrics", problem, "none, or scored: last")
    given, allowed = study.metric, (*task.metrics, *reweighted)
    if given is not None and given not in allowed:
        raise unknown(location / "metric", "metric", given, allowed)
    return task, given or allowed[0]


def _check_named(study: Study, analyses: list[Choice], location: Location) -> None:
    """Refuse (`ConfigError`) names of entries that the study does not have, and vain contrasts."""
    rows = study.best.rows if study.best else ()
    named = [(location / "best" / "rows" / label, label) for label in rows]
    for analysis in analyses:
        labels = enumerate(analysis.values.get("methods", ()))
        named += [(analysis.at / "methods" / i, label) for i, label in labels]
    if study.baseline is not None:
        named.append((location / "baseline", study.baseline))
    elif study.contrasts:
        problem = "is set, but the study has no baseline, so that every pair is compared"
        raise ConfigError(location / "contrasts", problem, "contrasts beside a baseline")
    for label, other in study.contrasts.items():
        named += [(location / "contrasts" / label, each) for each in (label, other)]
    for at, label in named:
        if label not in study.methods:
            raise unknown(at, "entry", label, study.methods)
    for label, other in study.contrasts.items():
        if (
            other == label
            or study.baseline in (label, other)
            or study.contrasts.get(other) == label
        ):
            problem = f"is {other!r}, and the two are one or compared already"
            raise ConfigError(
                location / "contrasts" / label, problem, "pairs that nothing else tests"
            )


def check_analyses(analyses: Iterable[Choice], scenario: Scenario) -> None:
    """Refuse (`ConfigError`) an analysis that cannot look at what runs there: one for another task,
    one that passes inputs of one kind through one network, and one that says itself that it cannot.

    Its ``check`` is given the shape of a sample and the number of clients, as far as it is known.
    """
    shape = scenario.dataset.entry.make(scenario.dataset.values).shape
    for analysis in analyses:
        scenario.check(analysis.entry, analysis.at)
        alike = ("weights", "one_modality")
        if scenario.differ and any(getattr(analysis.entry.target, name, False) for name in alike):
            problem = "takes all clients for alike, but they have several modalities"
            allowed = "a partition without `modalities`"
            raise ConfigError(analysis.at, f"{analysis.entry.name} {problem}", allowed)
        check = getattr(analysis.entry.make(analysis.values), "check", None)
        try:
            if check:
                check(shape, scenario.clients)
        except FedloomError as error:
            raise ConfigError(analysis.at, f"on {scenario.dataset.text}: {error}") from None


def check_traces(analyses: Iterable[Choice], rehearsed: Iterable[Rehearsed]) -> None:
    """Refuse (`ConfigError`) an analysis of traces that no entry of the study keeps."""
    kept = [tried.traces for tried in rehearsed]
    for analysis in analyses:
        read = {*getattr(analysis.entry.target, "traces", ())}
        if read and kept and not any(names is None or read <= names for names in kept):
            problem = f"reads {', '.join(sorted(read))} of every round, which no entry here keeps"
            raise ConfigError(analysis.at, problem, "beside an entry of a method that keeps it")


@dataclass(frozen=True)
class _Place:
    """One data set, partition and model of the study; scenarios: by entry, mostly that of all."""

    study: Study
    scenarios: Mapping[str, Scenario]
    tried: Mapping[int, Rehearsed]
    _codes: dict[int, tuple[dict[str, str], list[str]]] = field(default_factory=dict)

    def _code(self, method: Point, spec: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
        """The code of a point, and its keys at their defaults, for all seeds and starts."""
        if id(method) not in self._codes:
            self._codes[id(method)] = RunSpec(spec).code, RunSpec(spec).default_keys
        return self._codes[id(method)]

    def runs(self, entry: MethodEntry, seed: int) -> Iterator[Run]:
        """The runs of an entry: every point, from every point of what it starts from."""
        scenario, starts = self.scenarios[entry.label], entry.by == "start"
        parents: list[Run | None] = [None]
        if entry.before:
            parents = [*self.runs(entry.before, seed if starts else self.study.seeds[0])]
        for method, parent in itertools.product(entry.points, parents):
            before = parent.grid if parent else {}
            spec: dict[str, Any] = {
                "dataset": scenario.dataset.spec,
                "partition": scenario.scheme.spec,
                "model": scenario.model.spec,
                "method": method.spec,
                "terms": method.added["terms"],
                "training": method.training,
                "start": parent.point if parent and starts else None,
            }
            spec |= {key: its for key, its in method.added.items() if its}
            if self.study.test != "own":
                spec["test"] = self.study.test
            if entry.samples or not starts:
                spec["train_on"] = entry.samples or (parent.id if parent else None)
            code, defaults = self._code(method, spec)
            point, tried = identity.point(spec, code, defaults), self.tried.get(id(method))
            yield Run(
                id=identity.run(point, seed),
                point=point,
                spec={**spec, "seed": seed},
                code=code,
                defaults=defaults,
                label=entry.label,
                title=entry.title,
                grid={f"{entry.by}.{key}": value for key, value in before.items()} | method.grid,
                dataset=scenario.dataset,
                partition=scenario.scheme,
                model=scenario.model,
                execution=entry.execution,
                unstackable=tried.unstackable if tried else "",
                start=parent.id if parent else None,
            )


def check_resources(expansion: Expansion, settings: Settings, folder: Path) -> None:
    """Refuse (`ConfigError`) a job that fits on no node of its partition, and would never start;
    and more processes than clients that take part in a round, as the rest would have nothing to do.
    Where only the data say how many clients there are, the job refuses.
    """
    general = Location(os.path.relpath(folder / "config.yaml"))
    for run in expansion.runs:
        asked, clients = run.execution, run.partition.spec.get("clients")
        lacking = [
            n.shortages(asked) for n in settings.nodes if n.slurm_partition == asked.slurm_partition
        ]
        if lacking and all(lacking):
            name = asked.slurm_partition
            place = f"Slurm partition {name!r}" if name else "the default partition"
            problem = f"no node of {place} can hold a job of {run.title}, which asks for "
            allowed = "less in its `execution`, or a node that has it"
            raise ConfigError(general / "nodes", problem + ", ".join(lacking[-1]), allowed)
        if asked.processes == 1 or not isinstance(clients, int):
            continue
        there = max(1, round(run.spec["training"]["participation"] * clients))
        if asked.processes > there:
            by_all = settings.execution.processes == asked.processes
            at = (general if by_all else expansion.location) / "execution" / "processes"
            taking = f"{there} clients take part in a round of {run.title}"
            raise ConfigError(at, f"is {asked.processes}, but {taking}", f"1 to {there}")
