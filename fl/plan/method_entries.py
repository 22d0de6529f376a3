"""The method entries of a study: their points, where they run, and what they start from."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from fl.api.task import DEFAULT
from fl.api.training import WEIGHTS, Training, check_stragglers
from fl.api.uploads import check_attackers, check_noise_on_count
from fl.base import fields, registry
from fl.base.declaration import declaration_of
from fl.base.errors import ConfigError, ConfigProblems, FedloomError, unknown_name
from fl.base.fields import Count
from fl.base.registry import ADDED_KINDS, Component, entry_key
from fl.base.schema import SERVER
from fl.plan import config
from fl.plan.components import Choice, choice
from fl.plan.config import Draft, Execution
from fl.plan.grids import EntryLayers, Layer, Point, checked_layer, checked_layers, points
from fl.plan.scenario import Scenario


class MethodEntry:
    """A method entry of a study.

    Attributes:
        label: The entry's name in the study.
        location: Location of the entry.
        method: The method.
        declared: What the method declares of itself.
        layers: The right keys of the study's ``training``, of the method's file and of the entry.
        points: The points of the entry's grid.
        problems: What is wrong with the entry.
        title: Name in print.
        execution: How its runs are computed.
        parent: The entry from whose model, or on whose images, it trains.
        parent_key: The key that names the parent.
        samples_per_class: Number of real samples of each class to train on; None for all.
    """

    def __init__(
        self,
        folder: Path,
        draft: Draft,
        training: Layer,
        label: str,
        execution: Execution,
        settle: Callable[[Choice], Choice],
    ) -> None:
        location = draft.location
        self.label, self.location = label, location / "methods" / label
        self.problems = ConfigProblems()
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", label):
            error = ConfigError(self.location, f"the name {label!r}", "letters, digits and . _ + -")
            self.problems.errors.append(error)
        keys = fields.mapping(draft.study.methods[label], self.location)
        keys = registry.with_current_keys(keys, self.location)
        self._keys, self._study, self._study_location = keys, draft.study, location
        self.execution, self._dataset, self._scheme = execution, None, None
        self._parent_is_known = True
        self.parent: MethodEntry | None = None
        self.parent_key: Literal["start", "train_on"] = "start"
        self.samples_per_class: int | None = None
        with self.problems.collected():
            dataset = self._own_choice("dataset", "data set")
            self._dataset = dataset and settle(dataset)
        with self.problems.collected():
            self._scheme = self._own_choice("partition", "partition scheme")
        self.method = self._find_method(training)
        self.declared = declaration_of(self.method.target)
        defaults, file_location = config.method_defaults(folder, self.method.name)
        defaults = registry.with_current_keys(defaults, file_location)
        layers = EntryLayers(training, Layer(defaults, file_location), Layer(keys, self.location))
        self.layers = checked_layers(draft.study, self.method, layers, self.problems)
        self.points = points(folder, draft, label, self.method, self.layers, self.problems)
        title = self.declared.title if keys.get("method", label) == label else label
        self.title = label
        with self.problems.collected():
            self.title = fields.value(str, keys.get("title", title), self.location / "title")
        for layer in (self.layers.method, self.layers.entry):
            with self.problems.collected():
                self.execution = config.override_execution(
                    self.execution, layer.values.get("execution"), layer.location / "execution"
                )

    @property
    def is_right(self) -> bool:
        """Whether nothing is known to be wrong with the entry or with what it starts from."""
        return bool(self.points) and self._parent_is_known and not self.problems.errors

    def _find_method(self, training: Layer) -> Component:
        """Return the method.

        Raises:
            ConfigError: For an unknown method, and for what is wrong with keys of training.
        """
        try:
            name = str(self._keys.get("method", self.label))
            return registry.find("method", name, self.location)
        except ConfigError as error:
            self.problems.errors.append(error)
            declared = fields.fields(Training)
            keys = {key: value for key, value in self._keys.items() if key in declared}
            checked_layer(self._study, Layer(keys, self.location), declared, self.problems)
            self.problems.raise_all()
            raise

    def _own_choice(self, key: str, kind: str) -> Choice | None:
        """Return the data set or partition that the entry sets for itself, if any."""
        return choice(kind, self._keys[key], self.location / key) if key in self._keys else None

    @property
    def size(self) -> int:
        """The number of its points, each for every point of its parent."""
        return len(self.points) * (self.parent.size if self.parent else 1)

    @property
    def starts(self) -> bool:
        """Whether runs start from the model of the parent's runs."""
        return self.parent_key == "start"

    def link(self, entries: Mapping[str, MethodEntry]) -> None:
        """Find the parent among the entries of the study.

        Args:
            entries: The entries by label, without those of which nothing is known.

        Raises:
            ConfigError: If it is missing, unknown, or has no model or images.
        """
        start, train_on = self._keys.get("start"), self._keys.get("train_on")
        unknown = self._study.methods.keys() - entries.keys()
        if any(isinstance(key, str) and key in unknown for key in (start, train_on)):
            self._parent_is_known = False
            return
        other_entries = {label: entry for label, entry in entries.items() if entry is not self}
        if start is not None or self.declared.starts:
            self.parent = self._starting_entry(start, other_entries)
        if isinstance(train_on, int) and not isinstance(train_on, bool):
            count = fields.value(Count, train_on, self.location / "train_on")
            self.samples_per_class = int(count)
        elif train_on is not None:
            self.parent, self.parent_key = self._image_entry(train_on, other_entries), "train_on"

    def _starting_entry(self, start: Any, other_entries: Mapping[str, MethodEntry]) -> MethodEntry:
        """Return the entry from whose stored model the runs start."""
        if not self.declared.starts:
            starting = [
                e.name for e in registry.components("method") if declaration_of(e.target).starts
            ]
            problem = f"is {start!r}, but {self.method.name} does not start from a stored model"
            allowed = f"no start; or as method {', '.join(starting)}"
            raise self.error("start", problem, allowed)
        if start is None:
            allowed = ", ".join(sorted(self._study.methods.keys() - {self.label}))
            advice = "" if allowed else "another entry, such as fedavg"
            raise self.error("start", "is missing", allowed, advice)
        if start == self.label:
            raise self.error("start", f"makes a circle: {start} <- {start}")
        if not isinstance(start, str) or start not in other_entries:
            labels = self._study.methods.keys() - {self.label}
            raise unknown_name(self.location / "start", "entry of this study", start, labels)
        parent, methods = other_entries[start], self.declared.required_starts
        name = parent.method.name
        if "global" not in parent.declared.stages:
            raise self.error("start", f"{start!r} ({name}) has no shared model to start from")
        if methods and name not in methods:
            problem = f"{start!r} is {name}, from whose result {self.method.name} cannot go on"
            raise self.error("start", problem, f"an entry of {' or '.join(methods)}")
        return parent

    def _image_entry(self, train_on: Any, other_entries: Mapping[str, MethodEntry]) -> MethodEntry:
        """Return the entry whose virtual images the runs train on."""
        makers = {label: entry for label, entry in other_entries.items() if entry.declared.distils}
        if not isinstance(train_on, str) or train_on not in makers:
            allowed = "a number of images of every class, or an entry of this study that makes "
            allowed += f"virtual ones: {', '.join(makers) or 'none'}"
            raise self.error("train_on", f"is {train_on!r}", allowed)
        if self.parent:
            raise self.error("train_on", "is set beside start", advice="set one of both")
        if makers[train_on]._keys.get("train_on") is not None:
            problem = f"{train_on!r} does not train on all samples itself"
            raise self.error("train_on", problem, advice="name an entry that does")
        return makers[train_on]

    def check_parents(self) -> None:
        """Raise `ConfigError` for parents in a circle, and for weights of another precision."""
        ancestors, entry = [self.label], self
        while entry.parent:
            if entry.parent.label in ancestors:
                circle = " <- ".join([*ancestors, entry.parent.label])
                raise entry.error(entry.parent_key, f"makes a circle: {circle}")
            entry = entry.parent
            ancestors.append(entry.label)
        if not (self.parent and self.is_right and self.parent.is_right):
            return
        for point, parent_point in itertools.product(self.points, self.parent.points):
            precision, stored = (
                entry_point.training["precision"] for entry_point in (point, parent_point)
            )
            if WEIGHTS[precision] != WEIGHTS[stored]:
                problem = f"is {precision}, but the model of {self.parent.label!r}, from which it "
                allowed = [name for name, kind in WEIGHTS.items() if kind == WEIGHTS[stored]]
                problem += f"starts, has {stored}"
                raise self.error("precision", problem, ", ".join(allowed))

    def scenario(self, study_scenario: Scenario, problems: ConfigProblems) -> Scenario | None:
        """Return the scenario of the entry: the study's, with its own data set and partition.

        Args:
            study_scenario: The study's scenario.
            problems: Collects what is wrong with the entry's own; None is returned if it is of no
                use (`Scenario.of`).
        """
        if self._dataset is None and self._scheme is None:
            return study_scenario
        dataset, scheme = self.population(study_scenario.dataset, study_scenario.scheme)
        return Scenario.of(dataset, scheme, study_scenario.model, study_scenario.task, problems)

    def population(self, dataset: Choice, scheme: Choice) -> tuple[Choice, Choice]:
        """Return the entry's data set and partition, which may be its own.

        Args:
            dataset: The study's data set.
            scheme: The study's partition.
        """
        return self._dataset or dataset, self._scheme or scheme

    def check(self, scenarios: Mapping[str, Scenario]) -> None:
        """Raise `ConfigError` if the entry cannot work in its scenario.

        Args:
            scenarios: The scenarios of all entries by label.
        """
        scenario, problems = scenarios[self.label], ConfigProblems()
        if self.parent and self.parent.label in scenarios:
            with problems.collected():
                self._check_parent(self.parent, scenarios[self.parent.label], scenario)
        self._check_samples(scenario, problems)
        with problems.collected():
            scenario.check(self.method, self.location)
        for key, kind in ADDED_KINDS.items():
            for spec in self.points[0].added_components[key] if self.points else ():
                location = self.location / entry_key(key) / spec["name"]
                with problems.collected():
                    scenario.check(registry.find(kind, spec["name"], location), location)
        for point in self.points:
            self._check_training(point.training, scenario, problems)
            if self.is_right:
                with problems.collected():
                    self._check_participants(point, scenario)
        problems.raise_all()

    def _check_parent(
        self, parent: MethodEntry, parent_scenario: Scenario, scenario: Scenario
    ) -> None:
        """Raise `ConfigError` if the parent has a model or images of other inputs or clients."""
        if self.starts:
            scenario.check_start(parent.label, parent_scenario, self.location / "start")
        elif parent_scenario != scenario:
            problem = f"{parent.label!r} makes images for other clients than those of "
            problem += scenario.scheme.text
            advice = "an entry of the same data set and partition"
            raise self.error("train_on", problem, advice=advice)

    def _check_samples(self, scenario: Scenario, problems: ConfigProblems) -> None:
        """Collect that validation samples or samples of the server are lacking."""
        scheme = scenario.scheme.text
        if not scenario.partition.has_split("val"):
            reason, advice = f"but {scheme} has no validation samples", "a partition with val > 0"
            if len(self.points) > 1:
                problem, more = (
                    f"is a grid, {reason} to choose a point by",
                    f"one point, or {advice}",
                )
                problems.errors.append(ConfigError(self.location, problem, advice=more))
            if self._study.scored == "best":
                problem, allowed = f"is best, {reason} to choose a round by", "last, or a val > 0"
                scored = ConfigError(self._study_location / "scored", problem, allowed)
                problems.errors.append(scored)
            if any(point.training["early_stopping"] for point in self.points):
                problem = f"is set, {reason} to stop by"
                problems.errors.append(self.error("early_stopping", problem, "null, or a val > 0"))
            if self.declared.needs_validation:
                problem = f"{self.method.name} learns by validation samples, but {scheme} has none"
                problems.errors.append(ConfigError(self.location, problem, advice=advice))
        if self.declared.needs_server_data and not scenario.partition.has_split(SERVER):
            problem = f"{self.method.name} trains on the server, but {scheme} gives it no samples"
            advice = "a partition with server > 0"
            problems.errors.append(ConfigError(self.location, problem, advice=advice))

    def _check_training(
        self, training: config.Values, scenario: Scenario, problems: ConfigProblems
    ) -> None:
        """Collect keys of cross-entropy without it, augmentation without images, large batches.

        The default batch size fits any data set.
        """
        for key, default in (("label_smoothing", 0.0), ("class_weights", "none")):
            if training[key] != default and scenario.task.name != DEFAULT:
                problem = f"is {training[key]!r}, but {scenario.dataset.text} has "
                problem += scenario.task.label_name
                allowed = f"{default}, or a data set with class labels"
                problems.errors.append(self.error(key, problem, allowed))
        if training["augmentation"] != "none" and not scenario.has_images:
            problem = f"is {training['augmentation']}, but {scenario.dataset.text} has no images"
            problems.errors.append(self.error("augmentation", problem, "none"))
        size, batch = scenario.size, training["batch_size"]
        if size is not None and batch > max(size, Training.batch_size):
            problem = f"is {batch}, more than the {size} samples of {scenario.dataset.text}"
            problems.errors.append(self.error("batch_size", problem, f"1 to {size}"))

    def _check_participants(self, point: Point, scenario: Scenario) -> None:
        """Raise `ConfigError` if too few clients take part in a round, as far as keys tell.

        An aggregation may need several, and so does noise behind a clip that counts clients.
        """
        clients = scenario.partition.clients
        if clients is None or scenario.partition.has_unseen_clients:
            return
        participants = Training(**point.training).participants(clients)
        for spec in point.added_components["aggregation"]:
            fewest = getattr(registry.component_of("aggregation", spec)[1], "fewest_clients", 1)
            if participants < fewest:
                problem = f"needs {fewest} clients in a round with these keys, and {participants} "
                raise ConfigError(
                    self.location / "aggregation" / spec["name"],
                    problem + "take part",
                    advice="fewer attackers or chosen clients, or more clients in a round",
                )
        specs = point.added_components["wire"]
        filters = [registry.component_of("upload filter", spec)[1] for spec in specs]
        shares = {
            spec["name"]: upload_filter.share
            for spec, upload_filter in zip(specs, filters, strict=True)
            if getattr(upload_filter, "attacks", False)
        }
        with self._located():
            for name, share in shares.items():
                check_attackers(name, share, clients)
            check_stragglers(point.training["stragglers"], participants)
        for spec, (clip, noise) in zip(specs[:-1], itertools.pairwise(filters), strict=True):
            count_noise = getattr(clip, "count_noise", None)
            multiplier = getattr(noise, "multiplier", 0)
            if count_noise is None or not multiplier:
                continue
            with self._located():
                check_noise_on_count(spec["name"], count_noise, multiplier, participants)

    @contextlib.contextmanager
    def _located(self) -> Iterator[None]:
        """Raise errors of the context as errors of this entry."""
        try:
            yield
        except FedloomError as error:
            raise ConfigError(self.location, str(error)) from None

    def raw_value(self, key: str) -> Any:
        """Return the value of a key of the entry as the study has it; None if it is not set."""
        return self._keys.get(key)

    def error(self, key: str, problem: str, allowed: str = "", advice: str = "") -> ConfigError:
        """Return the error for a key of the entry, at the last layer that sets it."""
        return ConfigError(self.layers.location_of(key), problem, allowed, advice)


def method_entries(
    folder: Path,
    draft: Draft,
    execution: Execution,
    settle: Callable[[Choice], Choice],
    problems: ConfigProblems,
) -> list[MethodEntry]:
    """Return the method entries of a study, checked against each other.

    Args:
        folder: The config folder.
        draft: The study.
        execution: How runs of an entry are computed that does not set it.
        settle: Finds the user's own files behind a data set.
        problems: Collects what is wrong. Entries of which nothing is known are left out.
    """
    study = draft.study
    training = Layer(study.training, draft.location / "training", draft.wrong_keys)
    training = checked_layer(study, training, fields.fields(Training), problems)
    entries: dict[str, MethodEntry] = {}
    for label in study.methods:
        with problems.collected():
            entries[label] = MethodEntry(folder, draft, training, label, execution, settle)
    label_of_title: dict[str, str] = {}
    for entry in entries.values():
        with entry.problems.collected():
            entry.link(entries)
            first = label_of_title.setdefault(entry.title, entry.label)
            if first != entry.label:
                problem = f"is {entry.title!r}, which is the title of {first} too"
                advice = "a title of its own"
                raise ConfigError(entry.location / "title", problem, advice=advice)
    for entry in entries.values():
        with entry.problems.collected():
            entry.check_parents()
    for entry in entries.values():
        problems.errors += entry.problems.errors
    return list(entries.values())
