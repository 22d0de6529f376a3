"""From a study to its runs: every combination, with every default filled in.

A run's *spec* holds every choice that decides its numbers and nothing else. Its *point* is the spec
without the seed, with the hashes of its code and data. Point and seed make the run's identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fl.api.task import DEFAULT, Task
from fl.base import identity
from fl.base.errors import ConfigError, Location, unknown
from fl.base.places import path_of
from fl.base.schema import REWEIGHTED
from fl.data import materials
from fl.data.contents import stamp
from fl.plan import analysis_check, config, specs
from fl.plan.components import Choice, choices
from fl.plan.config import Execution, Study
from fl.plan.grids import too_many
from fl.plan.method_entries import MethodEntry, method_entries
from fl.plan.own_files import Own
from fl.plan.points import Point
from fl.plan.rehearsal import Rehearsal, Rehearsed
from fl.plan.site import Site, check_alike


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
    users_files: Own | None = None,
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
    users_files = users_files or Own()
    execution = config.execution(execution or Execution(), study.execution, location / "execution")
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
        here = Site.of(dataset, scheme, model, task)
        sites = {entry.label: entry.site(here) for entry in entries}
        for site in {id(site): site for site in (here, *sites.values())}.values():
            analysis_check.check(analyses, site)
            if checked:
                parameters = Rehearsal.of(site, rehearsals).parameters
                counts[model.text].setdefault(site.dataset.text, parameters)
        tried: dict[int, Rehearsed] = {}
        for entry in entries:
            entry.check(sites)
            if checked:
                site = sites[entry.label]
                tried |= entry.rehearse(Rehearsal.of(site, rehearsals), site)
        analysis_check.check_traces(analyses, tried.values())
        place = _Place(study, sites, tried)
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


@dataclass(frozen=True)
class _Place:
    """One data set, partition and model of the study; sites: by entry, mostly that of all."""

    study: Study
    sites: Mapping[str, Site]
    tried: Mapping[int, Rehearsed]
    _codes: dict[int, tuple[dict[str, str], list[str]]] = field(default_factory=dict)

    def _code(self, method: Point, spec: dict[str, Any]) -> tuple[dict[str, str], list[str]]:
        """The code of a point, and its keys at their defaults, for all seeds and starts."""
        if id(method) not in self._codes:
            self._codes[id(method)] = specs.code(spec), specs.defaults(spec)
        return self._codes[id(method)]

    def runs(self, entry: MethodEntry, seed: int) -> Iterator[Run]:
        """The runs of an entry: every point, from every point of what it starts from."""
        site, starts = self.sites[entry.label], entry.by == "start"
        parents: list[Run | None] = [None]
        if entry.before:
            parents = [*self.runs(entry.before, seed if starts else self.study.seeds[0])]
        for method, parent in itertools.product(entry.points, parents):
            before = parent.grid if parent else {}
            spec: dict[str, Any] = {
                "dataset": site.dataset.spec,
                "partition": site.scheme.spec,
                "model": site.model.spec,
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
                dataset=site.dataset,
                partition=site.scheme,
                model=site.model,
                execution=entry.execution,
                unstackable=tried.unstackable if tried else "",
                start=parent.id if parent else None,
            )
