"""The method entries of a study: their points, where they run, and what they start from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl.api.task import DEFAULT
from fl.api.training import WEIGHTS, Training
from fl.base import faults, fields, registry
from fl.base.declaration import declared
from fl.base.errors import ConfigError, FedloomError, Location, unknown
from fl.base.fields import Count
from fl.base.registry import ADDED, entry_key
from fl.base.schema import SERVER
from fl.engine.wire import check_count
from fl.plan import config
from fl.plan.components import Choice, choice
from fl.plan.config import Execution, Study
from fl.plan.grids import Point, points
from fl.plan.rehearsal import Rehearsal, Rehearsed, TooFew
from fl.plan.scenario import Scenario


class MethodEntry:
    """A method entry of a study.

    Attributes:
        label, given, at: Its name in the study, what that says of it, and where.
        method, declared: Its method, and what that declares.
        points: Every point of its grid.
        title: What tables call it.
        execution: How it is computed: as the study, the method or the entry says, the last wins.
        before: The entry that it starts from, or on whose images it trains.
        by: The key that names ``before``, ``start`` or ``train_on``.
        samples: Of each class, the real samples on which it trains; None: on all.
    """

    def __init__(
        self,
        folder: Path,
        study: Study,
        location: Location,
        label: str,
        execution: Execution,
        settle: Callable[[Choice], Choice],
    ) -> None:
        self.label, self.at = label, location / "methods" / label
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", label):
            raise ConfigError(self.at, f"the name {label!r}", "letters, digits and . _ + -")
        given = fields.mapping(study.methods[label], self.at)
        given = registry.with_current_keys(given, self.at)
        self.method = registry.find("method", str(given.get("method", label)), self.at)
        self.declared = declared(self.method.target)
        self.given, self._study, self._where = given, study, location
        defaults, defaults_at = config.method_defaults(folder, self.method.name)
        defaults = registry.with_current_keys(defaults, defaults_at)
        self._layers = [
            (study.training, location / "training"),
            (defaults, defaults_at),
            (given, self.at),
        ]
        self.points = list(points(folder, study, location, label, self.method, self._layers))
        title = self.declared.title if given.get("method", label) == label else label
        self.title = str(fields.value(str, given.get("title", title), self.at / "title"))
        for layer, place in self._layers[1:]:
            execution = config.override_execution(
                execution, layer.get("execution"), place / "execution"
            )
        self.execution = execution
        self._dataset, self._scheme = (
            choice(kind, given[key], self.at / key) if key in given else None
            for key, kind in (("dataset", "data set"), ("partition", "partition scheme"))
        )
        self._dataset = self._dataset and settle(self._dataset)
        self.before: MethodEntry | None = None
        self.by = "start"
        self.samples: int | None = None

    @property
    def size(self) -> int:
        """The number of its points, each for every point of what it starts from."""
        return len(self.points) * (self.before.size if self.before else 1)

    def link(self, entries: Mapping[str, MethodEntry]) -> None:
        """Find what it starts from, or trains on, among the entries of the study.

        Raises:
            ConfigError: For none, one that is not there, and one that has nothing to give.
        """
        start, on = self.given.get("start"), self.given.get("train_on")
        others = {label: entry for label, entry in entries.items() if entry is not self}
        if start is not None or self.declared.starts:
            self.before = self._start(start, others)
        if isinstance(on, int) and not isinstance(on, bool):
            self.samples = int(fields.value(Count, on, self.at / "train_on"))
        elif on is not None:
            self.before, self.by = self._maker(on, others), "train_on"

    def _start(self, start: Any, others: Mapping[str, MethodEntry]) -> MethodEntry:
        if not self.declared.starts:
            starting = [e.name for e in registry.entries("method") if declared(e.target).starts]
            problem = f"is {start!r}, but {self.method.name} does not start from a stored model"
            raise self._wrong("start", problem, f"no start; or as method {', '.join(starting)}")
        if start is None:
            none = "another entry, such as fedavg, which is not there yet"
            raise self._wrong("start", "is missing", ", ".join(sorted(others)) or none)
        if start == self.label:
            raise self._wrong("start", f"goes round in a circle: {start} <- {start}")
        if not isinstance(start, str) or start not in others:
            raise unknown(self.at / "start", "entry of this study", start, others)
        before, wanted = others[start], self.declared.goes_on
        name = before.method.name
        if "global" not in before.declared.stages:
            raise self._wrong("start", f"{start!r} ({name}) has no shared model to start from")
        if wanted and name not in wanted:
            problem = f"{start!r} is {name}, whose result says nothing of how to go on"
            raise self._wrong("start", problem, f"an entry of {' or '.join(wanted)}")
        return before

    def _maker(self, on: Any, others: Mapping[str, MethodEntry]) -> MethodEntry:
        makers = {label: entry for label, entry in others.items() if entry.declared.distils}
        if not isinstance(on, str) or on not in makers:
            allowed = "a number of images of every class, or an entry of this study that makes "
            allowed += f"virtual ones: {', '.join(makers) or 'none'}"
            raise self._wrong("train_on", f"is {on!r}", allowed)
        if self.before:
            raise self._wrong("train_on", "stands beside start", "one of both")
        if makers[on].given.get("train_on") is not None:
            problem = f"{on!r} does not train on all samples itself"
            raise self._wrong("train_on", problem, "one that does")
        return makers[on]

    def check_linked(self) -> None:
        """Refuse (`ConfigError`) to start in a circle, or from weights of another precision."""
        ancestors, entry = [self.label], self
        while entry.before:
            if entry.before.label in ancestors:
                circle = " <- ".join([*ancestors, entry.before.label])
                raise entry._wrong(entry.by, f"goes round in a circle: {circle}")
            entry = entry.before
            ancestors.append(entry.label)
        if self.before is None:
            return
        for point, other in itertools.product(self.points, self.before.points):
            mine, stored = point.training["precision"], other.training["precision"]
            if WEIGHTS[mine] != WEIGHTS[stored]:
                problem = f"is {mine}, but what comes of {self.before.label!r}, where it starts, "
                allowed = [name for name, kind in WEIGHTS.items() if kind == WEIGHTS[stored]]
                raise self._wrong("precision", f"{problem}is {stored}", ", ".join(allowed))

    def scenario(self, study: Scenario) -> Scenario:
        """Where it runs while the study is somewhere."""
        if self._dataset is None and self._scheme is None:
            return study
        dataset, scheme = self._dataset or study.dataset, self._scheme or study.scheme
        return Scenario.of(dataset, scheme, study.model, study.task)

    def check(self, scenarios: Mapping[str, Scenario]) -> None:
        """Raise `ConfigError` if the entry cannot work in its scenario.

        Args:
            scenarios: The scenarios of all entries by label.
        """
        scenario = scenarios[self.label]
        if self.before and self.by == "start":
            scenario.check_start(self.before.label, scenarios[self.before.label], self.at / "start")
        elif self.before and scenarios[self.before.label] != scenario:
            problem = f"{self.before.label!r} makes images for other clients than those of "
            allowed = "an entry of the same data set and partition"
            raise self._wrong("train_on", problem + scenario.scheme.text, allowed)
        self._check_samples(scenario)
        scenario.check(self.method, self.at)
        for key, kind in ADDED.items():
            for spec in self.points[0].added[key]:
                at = self.at / entry_key(key) / spec["name"]
                scenario.check(registry.find(kind, spec["name"], at), at)
        on = self.given.get("train_on")
        if on is not None and scenario.differ:
            problem = f"is {on!r}, but clients differ in modality"
            allowed = "a partition without `modalities`, or no `train_on`"
            raise self._wrong("train_on", problem, allowed)
        for point in self.points:
            self._check_training(point.training, scenario)
            self._check_round(point, scenario)

    def _check_samples(self, scenario: Scenario) -> None:
        """Whether there are samples to choose a point or a round by, and what a method needs."""
        scheme = scenario.scheme.text
        if not scenario.has("val"):
            none, remedy = f"but {scheme} has no validation samples", "a partition with val > 0"
            if len(self.points) > 1:
                problem = f"is a grid, {none} to choose by"
                raise ConfigError(self.at, problem, f"one point, or {remedy}")
            if self._study.scored == "best":
                problem = f"is best, {none} to tell by"
                raise ConfigError(self._where / "scored", problem, "last, or a val > 0")
            if self.points[0].training["early_stopping"]:
                problem = f"is set, {none} to stop by"
                raise self._wrong("early_stopping", problem, "null, or a val > 0")
            if self.declared.validates:
                problem = f"learns by validation samples, of which {scheme} has none"
                raise ConfigError(self.at, problem, remedy)
        if self.declared.server_data and not scenario.has(SERVER):
            problem = f"trains on the server, which holds no samples in {scheme}"
            raise ConfigError(self.at, problem, "a partition with server > 0")

    def _check_training(self, training: Mapping[str, Any], scenario: Scenario) -> None:
        """Whether there is cross-entropy, where its targets and weights are set, and a batch of no
        more samples than there are; the default one is, of any set.
        """
        for key, plain in (("label_smoothing", 0.0), ("class_weights", "none")):
            if training[key] != plain and scenario.task.name != DEFAULT:
                problem = (
                    f"is {training[key]!r}, but {scenario.dataset.text} has {scenario.task.given}"
                )
                raise self._wrong(key, problem, f"{plain}, or a data set with class labels")
        size, batch = scenario.size, training["batch_size"]
        if size is not None and batch > max(size, Training.batch_size):
            problem = f"is {batch}, more than the {size} samples of {scenario.dataset.text}"
            raise self._wrong("batch_size", problem, f"1 to {size}")

    def _check_round(self, point: Point, scenario: Scenario) -> None:
        """Whether as many clients take part in a round as an aggregation, or noise behind a clip
        that counts them, needs, as far as keys tell.
        """
        clients = scenario.clients
        if clients is None or scenario.holds_out:
            return
        taking = max(1, round(point.training["participation"] * clients))
        for spec in point.added["aggregation"]:
            least = getattr(registry.entry_of("aggregation", spec)[1], "fewest_clients", 1)
            if taking < least:
                at = self.at / "aggregation" / spec["name"]
                problem = (
                    f"needs {least} clients in a round with these keys, and {taking} take part"
                )
                allowed = "fewer attackers or chosen, or more clients in a round"
                raise ConfigError(at, problem, allowed)
        specs = point.added["wire"]
        filters = [registry.entry_of("upload filter", spec)[1] for spec in specs]
        for clip, before, noise in zip(specs, filters, filters[1:], strict=False):
            counted, z = getattr(before, "count_noise", None), getattr(noise, "multiplier", 0)
            if counted is None or not z:
                continue
            try:
                check_count(clip["name"], counted, z, taking)
            except FedloomError as error:
                raise ConfigError(self.at, str(error)) from None

    def rehearse(self, rehearsal: Rehearsal, scenario: Scenario) -> dict[int, Rehearsed]:
        """What is found out of each point, by its identity (`id`).

        Raises:
            ConfigError: If the method cannot be built for the scenario's model or cannot train it.
        """
        model, dataset, rehearsed = scenario.model.text, scenario.dataset.text, {}
        for point in self.points:
            try:
                rehearsed[id(point)] = rehearsal.try_point(point, int(scenario.holds_out))
            except TooFew as error:
                problem = f"is {point.training['batch_size']}, too few for {self.label} with "
                problem += f"{model} on {dataset} ({error})"
                raise self._wrong("batch_size", problem, f"{error.least} or more") from None
            except FedloomError as error:
                raise ConfigError(self.at, f"with {model}: {error}") from None
            except (Exception, SystemExit) as error:
                problem = f"{self.method.name} cannot train {model} on {dataset} "
                allowed = "a method, terms and training keys that fit this model and its inputs"
                allowed = "" if faults.own_line(error) else allowed
                raise ConfigError(self.at, f"{problem}({faults.told(error)})", allowed) from None
        return rehearsed

    def _wrong(self, key: str, problem: str, allowed: str = "") -> ConfigError:
        """The error for one of its keys, at the last layer that sets it."""
        places = (place for layer, place in reversed(self._layers) if key in layer)
        return ConfigError(next(places, self.at) / key, problem, allowed)


def method_entries(
    folder: Path,
    study: Study,
    location: Location,
    execution: Execution,
    settle: Callable[[Choice], Choice],
) -> list[MethodEntry]:
    """The method entries of a study, checked against each other (`ConfigError`).

    Args:
        execution: How an entry is computed that says nothing else.
        settle: Finds the user's own files behind a data set.
    """
    entries = {
        label: MethodEntry(folder, study, location, label, execution, settle)
        for label in study.methods
    }
    titles: dict[str, str] = {}
    for entry in entries.values():
        entry.link(entries)
        if titles.setdefault(entry.title, entry.label) != entry.label:
            problem = f"is {entry.title!r}, what tables call {titles[entry.title]} already"
            raise ConfigError(entry.at / "title", problem, "a title of its own")
    for entry in entries.values():
        entry.check_linked()
    return list(entries.values())
