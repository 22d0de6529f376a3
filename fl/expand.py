"""From a study to its runs: every combination, settled down to the last default.

A run's *spec* holds every choice that decides its numbers and nothing else. Its *point* is the spec
without the seed, with the code and data behind it; point and seed make its identity.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fl import config, fields, identity, materials, published, registry
from fl.config import Execution, Study
from fl.errors import ConfigError, FedloomError, Where, unknown
from fl.method import Setting
from fl.network import Network
from fl.registry import Entry
from fl.training import Training

RESERVED = ("method", "start", "title", "terms", "execution")
EXCLUSIVE = ("local_epochs", "local_steps")


@dataclass(frozen=True)
class Choice:
    """One settled data set, partition or model: its entry, all its values, and the id of its data.

    text: as the study wrote it, ``dirichlet(clients=8, alpha=0.3)``; at: where.
    """

    entry: Entry
    values: dict[str, Any]
    text: str
    at: Where
    id: str = ""

    @property
    def spec(self) -> dict[str, Any]:
        """Its part of a run's spec."""
        return {"name": self.entry.name, **self.values}


@dataclass(frozen=True)
class Run:
    """One run of a study.

    label: the study's name for its method entry; title: for print; grid: the entry's grid values.
    execution: how to compute it, which is no part of what it is. start: the run whose model it
    starts from.
    """

    id: str
    point: str
    spec: dict[str, Any]
    code: dict[str, str]
    label: str
    title: str
    grid: dict[str, Any]
    dataset: Choice
    partition: Choice
    model: Choice
    execution: Execution
    start: str | None = None


@dataclass(frozen=True)
class Expansion:
    """A study's runs, and the files outside the config folder that they depend on."""

    name: str
    study: Study
    where: Where
    runs: list[Run]
    watched: list[Path] = field(default_factory=list)


def expand(
    folder: Path, name: str, asked_at: Where, execution: Execution | None = None
) -> Expansion:
    """All runs of a study; `ConfigError` for anything in it that is not understood.

    execution: how runs are computed where the study says nothing else.
    """
    study, where = config.study(folder, name, asked_at)
    methods = _Methods(folder, study, where, execution or Execution())
    datasets = _once(_choices("data set", study.datasets, where / "datasets"))
    models = _once(_choices("model", study.models, where / "models"))
    schemes = _once(_choices("partition scheme", study.partitions, where / "partitions"))
    runs: dict[tuple[str, str], Run] = {}
    for dataset, scheme, model in itertools.product(datasets, schemes, models):
        dataset = replace(dataset, id=materials.dataset_id(dataset.spec))
        materials.check_fit(scheme.spec, dataset.spec, scheme.at)
        scheme = replace(scheme, id=materials.partition_id(scheme.spec, dataset.id))
        shape = dataset.entry.make(dataset.values).shape
        methods.check(_network(model, dataset), shape, model, scheme)
        for run in methods.runs(dataset, scheme, model):
            runs[run.label, run.id] = run
    files = [Path(s.values["path"]) for s in schemes if "path" in s.values]
    return Expansion(name, study, where, list(runs.values()), files)


def _choices(kind: str, items: list[Any], where: Where) -> Iterator[Choice]:
    """``name`` or ``{name: {key: value}}``, each with its grid."""
    for i, item in enumerate(items):
        if isinstance(item, Mapping) and len(item) == 1:
            ((name, given),) = item.items()
        elif isinstance(item, str):
            name, given = item, None
        else:
            raise ConfigError(where / i, f"is {item!r}", "a name, or one name with its keys")
        entry = registry.find(kind, str(name), where / i)
        at = where / i / name
        for values in grid(fields.fields(entry.target), fields.mapping(given, at)):
            yield Choice(entry, entry.parse(values, at), _text(entry.name, values), at)


def _once(choices: Iterable[Choice]) -> list[Choice]:
    """All of them, or a `ConfigError` where one is settled to the same values as one before it."""
    found: list[Choice] = []
    for choice in choices:
        for other in found:
            if other.spec == choice.spec:
                problem = f"{choice.text} stands twice: {other.at.key} is the same"
                raise ConfigError(choice.at, problem, f"each {choice.entry.kind} once")
        found.append(choice)
    return found


def _text(name: str, values: Mapping[str, Any]) -> str:
    inside = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({inside})" if inside else name


def grid(
    declared: Mapping[str, fields.Field], values: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Every combination of the values that are lists where one value is expected."""
    options = {
        key: value if _is_grid(declared.get(key), value) else [value]
        for key, value in values.items()
    }
    for combination in itertools.product(*options.values()):
        yield dict(zip(options, combination, strict=True))


def _is_grid(declared: fields.Field | None, value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    if declared is not None and fields.is_sequence(declared.hint):
        return all(isinstance(item, list) for item in value)
    return True


def _network(model: Choice, dataset: Choice) -> Network:
    """The model on that data set, or a `ConfigError` when it does not take its inputs."""
    data = dataset.entry.make(dataset.values)
    try:
        network = Network(lambda: model.entry.make(model.values).build(data.shape, data.classes))
        with torch.no_grad():  # Not on "meta", whose first use imports much more of torch.
            variables = network.init(0)
            network.eval(variables["params"], variables["buffers"], _probe(data))
    except FedloomError as error:
        raise ConfigError(model.at, str(error)) from None
    except Exception as error:
        raise ConfigError(
            model.at,
            f"{model.text} does not take the inputs of {dataset.text}, {_inputs(data)} "
            f"({type(error).__name__}: {error})",
            "a model for such inputs",
        ) from None
    return network


def _probe(data: Any) -> torch.Tensor:
    """One input: zeros, or for a set of tokens the last of them, which the model must know."""
    if tokens := getattr(data, "tokens", 0):
        return torch.full((1, *data.shape), tokens - 1)
    return torch.zeros(1, *data.shape)


def _inputs(data: Any) -> str:
    tokens = getattr(data, "tokens", 0)
    return f"of shape {data.shape}" + (f", {tokens} different tokens" if tokens else "")


@dataclass(frozen=True)
class _Method:
    """A method entry of a study at one point of its grid; terms: specs of those it adds."""

    entry: Entry
    values: dict[str, Any]
    terms: list[dict[str, Any]]
    training: dict[str, Any]
    grid: dict[str, Any]

    @property
    def spec(self) -> dict[str, Any]:
        """Its part of a run's spec."""
        return {"name": self.entry.name, **self.values}


class _Methods:
    """The method entries of a study, and their runs on one data set, partition and model."""

    def __init__(self, folder: Path, study: Study, where: Where, execution: Execution) -> None:
        self._folder, self._study, self._where = folder, study, where
        self._given: dict[str, Mapping[str, Any]] = {}
        for label, given in study.methods.items():
            at = where / "methods" / label
            if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", label):
                raise ConfigError(at, f"the name {label!r}", "letters, digits and . _ + -")
            self._given[label] = fields.mapping(given, at)
        self._points = {label: list(self._expanded(label)) for label in self._given}
        if study.baseline is not None and study.baseline not in self._given:
            raise unknown(where / "baseline", "entry", study.baseline, self._given)
        for label in self._given:
            self._ancestors(label)
        for label in study.best.rows if study.best else ():
            if label not in self._given:
                raise unknown(where / "best" / "rows" / label, "entry", label, self._given)
        shared = config.execution(execution, study.execution, where / "execution")
        self._executions = {label: self._execution(label, shared) for label in self._given}

    def check(
        self, network: Network, shape: tuple[int, ...], model: Choice, scheme: Choice
    ) -> None:
        """Refuse (`ConfigError`) a method that cannot be built for a model, or a grid that nothing
        can be chosen from.
        """
        for label, points in self._points.items():
            if len(points) > 1 and not materials.validates(scheme.spec):
                problem = f"is a grid, but {scheme.text} has no validation samples to choose by"
                at = self._where / "methods" / label
                raise ConfigError(at, problem, "one point, or a partition with val > 0")
            for point in points:
                training = Training(**point.training)
                setting = Setting(network, training, classes=2, clients=2, shape=shape)
                try:
                    materials.build({"method": point.spec, "terms": point.terms}, setting)
                except FedloomError as error:
                    at = self._where / "methods" / label
                    raise ConfigError(at, f"with {model.text}: {error}") from None

    def runs(self, dataset: Choice, scheme: Choice, model: Choice) -> Iterator[Run]:
        """Every entry, grid point and seed."""
        for label in self._given:
            for seed in self._study.seeds:
                yield from self._runs(label, dataset, scheme, model, seed)

    def _runs(
        self, label: str, dataset: Choice, scheme: Choice, model: Choice, seed: int
    ) -> Iterator[Run]:
        parents: list[Run | None] = [None]
        if self._start(label) is not None:
            parents = list(self._runs(self._start(label) or "", dataset, scheme, model, seed))
        for method, parent in itertools.product(self._points[label], parents):
            spec = {
                "dataset": dataset.spec,
                "partition": scheme.spec,
                "model": model.spec,
                "method": method.spec,
                "terms": method.terms,
                "training": method.training,
                "start": parent.point if parent else None,
            }
            if self._study.test != "own":
                spec["test"] = self._study.test
            code = materials.code(spec)
            point = identity.point(spec, code)
            yield Run(
                id=identity.run(point, seed),
                point=point,
                spec={**spec, "seed": seed},
                code=code,
                label=label,
                title=self._title(label),
                grid={**(parent.grid if parent else {}), **method.grid},
                dataset=dataset,
                partition=scheme,
                model=model,
                execution=self._executions[label],
                start=parent.id if parent else None,
            )

    def _expanded(self, label: str) -> Iterator[_Method]:
        at = self._where / "methods" / label
        given = self._given[label]
        entry = registry.find("method", str(given.get("method", label)), at)
        own, training = fields.fields(entry.target), fields.fields(Training)
        defaults, defaults_at = config.method_defaults(self._folder, entry.name)
        shared, shared_at = self._study.training, self._where / "training"
        declared = {**training, **own}
        _check_layer(shared, training, (), shared_at)
        for layer, place in ((defaults, defaults_at), (given, at)):
            _check_layer(layer, declared, RESERVED, place)
        fixed = getattr(entry.target, "training", {})
        merged = _layered(shared, fixed, defaults, given)
        terms = self._terms(merged.get("terms"), at / "terms")
        merged = {key: value for key, value in merged.items() if key not in RESERVED}
        for name, (term, values) in terms.items():
            declared |= {
                f"{name}.{key}": field for key, field in fields.fields(term.target).items()
            }
            merged |= {f"{name}.{key}": value for key, value in values.items()}
        merged |= self._published(label, declared)
        several = [k for k, v in merged.items() if _is_grid(declared.get(k), v) and len(v) > 1]
        for values in grid(declared, merged):
            hyper = entry.parse({k: v for k, v in values.items() if k in own}, at)
            rest = {k: v for k, v in values.items() if k in training}
            settled = Training.settle(fields.parse(Training, rest, at), at)
            added = [
                {"name": name, **term.parse({k: values[f"{name}.{k}"] for k in keys}, at / "terms")}
                for name, (term, keys) in terms.items()
            ]
            yield _Method(entry, hyper, added, settled, {k: values[k] for k in several})

    def _published(self, label: str, declared: Mapping[str, fields.Field]) -> dict[str, float]:
        """What ``grid: published`` sets of an entry, by key."""
        best, where = self._study.best, self._where / "best"
        if self._study.grid != "published":
            return {}
        if best is None:
            raise ConfigError(where, "is missing", "what to take, as grid is published")
        cells, found = published.table(self._folder, best.source, best.table, where), {}
        for key, row in best.rows.get(label, {}).items():
            at = where / "rows" / label / key
            if key not in declared:
                raise unknown(at, "key", key, declared)
            found[key] = published.number(published.cell(cells, row, best.column, at), at)
        return found

    def _terms(self, given: Any, where: Where) -> dict[str, tuple[Entry, Mapping[str, Any]]]:
        """The terms that an entry adds, by name, and the keys that it sets of each."""
        found = {}
        for name, values in fields.mapping(given, where).items():
            entry = registry.find("term", name, where / name)
            values = fields.mapping(values, where / name)
            for key in values:
                if key not in fields.fields(entry.target):
                    raise unknown(where / name / key, "key", key, fields.fields(entry.target))
            found[name] = (entry, values)
        return found

    def _execution(self, label: str, shared: Execution) -> Execution:
        """How an entry is computed: as the study, the method or the entry says, the last wins."""
        name = self._points[label][0].entry.name
        defaults, defaults_at = config.method_defaults(self._folder, name)
        own = config.execution(shared, defaults.get("execution"), defaults_at / "execution")
        at = self._where / "methods" / label / "execution"
        return config.execution(own, self._given[label].get("execution"), at)

    def _start(self, label: str) -> str | None:
        """The entry whose model this one starts from."""
        at, given = self._where / "methods" / label, self._given[label]
        entry = registry.find("method", str(given.get("method", label)), at)
        start, wanted = given.get("start"), getattr(entry.target, "starts", False)
        if not wanted and start is not None:
            raise ConfigError(at / "start", f"{entry.name} does not start from a stored model")
        if wanted and (not isinstance(start, str) or start not in self._given):
            raise unknown(at / "start", "entry of this study", start, set(self._given) - {label})
        return start

    def _ancestors(self, label: str) -> None:
        seen = [label]
        while (start := self._start(seen[-1])) is not None:
            at = self._where / "methods" / seen[-1] / "start"
            if start in seen:
                raise ConfigError(at, f"goes round in a circle: {' <- '.join([*seen, start])}")
            entry = self._points[start][0].entry
            if "global" not in entry.target.stages:
                raise ConfigError(at, f"{start!r} ({entry.name}) has no shared model to start from")
            seen.append(start)

    def _title(self, label: str) -> str:
        given = self._given[label]
        if "title" in given:
            return str(given["title"])
        target = self._points[label][0].entry.target
        name = str(getattr(target, "title", target.__name__))
        return name if given.get("method", label) == label else label


def _check_layer(
    layer: Mapping[str, Any],
    declared: Mapping[str, fields.Field],
    reserved: tuple[str, ...],
    where: Where,
) -> None:
    """Every key and value is allowed, said where it stands."""
    for key in layer:
        if key not in declared and key not in reserved:
            raise unknown(where / key, "key", key, (*declared, *reserved))
    for values in grid(declared, layer):
        for key, given in values.items():
            if key in declared:
                fields.value(declared[key].hint, given, where / key)
        if all(values.get(key) is not None for key in EXCLUSIVE):
            Training.settle({"participation": 1.0, **values}, where)


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Later layers win; one that says how long a client works unsays the earlier ones."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if any(key in layer for key in EXCLUSIVE):
            merged = {key: value for key, value in merged.items() if key not in EXCLUSIVE}
        merged.update(layer)
    return merged
