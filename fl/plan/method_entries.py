"""The method entries of a study: their points, where they run, and what they start from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from fl.api.training import WEIGHTS, Training
from fl.base import fields, registry
from fl.base.declaration import declaration_of
from fl.base.errors import (
    ConfigError,
    ConfigProblems,
    printed_form,
    quoted_names,
    unknown_name,
)
from fl.base.fields import Count
from fl.base.registry import Component
from fl.plan import config
from fl.plan.components import Choice, choice
from fl.plan.config import Draft, Execution
from fl.plan.grids import EntryLayers, Layer, checked_layer, checked_layers, points
from fl.plan.scenario import Scenario

TUNED = "-ft"
"""End of the name of an entry that trains another's model further: ``fedavg-ft``, FedAvg-FT."""


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
        self._keys, self.study, self.study_location = keys, draft.study, location
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
        layers = EntryLayers(
            Layer(
                {} if draft.study.devices is None else {"devices": draft.study.devices}, location
            ),
            training,
            Layer(defaults, file_location),
            Layer(keys, self.location),
        )
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
            checked_layer(self.study, Layer(keys, self.location), declared, self.problems)
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
        unknown = self.study.methods.keys() - entries.keys()
        if any(isinstance(key, str) and key in unknown for key in (start, train_on)):
            self._parent_is_known = False
            return
        other_entries = {label: entry for label, entry in entries.items() if entry is not self}
        if start is not None or self.declared.starts:
            self.parent = self._starting_entry(start, other_entries)
            if "title" not in self._keys and self.label == f"{self.parent.label}{TUNED}":
                self.title = f"{self.parent.title}{TUNED.upper()}"
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
            allowed = ", ".join(sorted(self.study.methods.keys() - {self.label}))
            advice = "" if allowed else "another entry, such as fedavg"
            raise self.error("start", "is missing", allowed, advice)
        if start == self.label:
            raise self.error("start", f"makes a circle: {start} <- {start}")
        if not isinstance(start, str) or start not in other_entries:
            labels = self.study.methods.keys() - {self.label}
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

    def raw_value(self, key: str) -> Any:
        """Return the value of a key of the entry as the study has it; None if it is not set."""
        return self._keys.get(key)

    def error(self, key: str, problem: str, allowed: str = "", advice: str = "") -> ConfigError:
        """Return the error for a key of the entry, at the last layer that sets it."""
        return self.layers.error(key, (), problem, allowed, advice)


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
    for entry in entries.values():
        with entry.problems.collected():
            entry.link(entries)
    _check_titles(entries.values())
    for entry in entries.values():
        with entry.problems.collected():
            _check_parents(entry)
    for entry in entries.values():
        problems.errors += entry.problems.errors
    return list(entries.values())


def _check_titles(entries: Iterable[MethodEntry]) -> None:
    """Add to the problems of entries that they have the title of an earlier one."""
    first_by_title: dict[str, MethodEntry] = {}
    for entry in entries:
        first = first_by_title.setdefault(printed_form(entry.title), entry)
        if first.label != entry.label:
            title, first_title = quoted_names([entry.title, first.title])
            problem = f"is {title}, which is the title of {first.label} too"
            if first.title != entry.title:
                problem = f"is {title}, which prints as {first_title}, the title of {first.label}"
            advice = "a title of its own"
            error = ConfigError(entry.location / "title", problem, advice=advice)
            entry.problems.errors.append(error)


def _check_parents(entry: MethodEntry) -> None:
    """Raise `ConfigError` for parents in a circle, and for weights of another precision."""
    ancestors, child = [entry.label], entry
    while child.parent:
        if child.parent.label in ancestors:
            circle = " <- ".join([*ancestors, child.parent.label])
            raise child.error(child.parent_key, f"makes a circle: {circle}")
        child = child.parent
        ancestors.append(child.label)
    if not (entry.parent and entry.is_right and entry.parent.is_right):
        return
    for point, parent_point in itertools.product(entry.points, entry.parent.points):
        precision, stored = (
            entry_point.training["precision"] for entry_point in (point, parent_point)
        )
        if WEIGHTS[precision] != WEIGHTS[stored]:
            problem = f"is {precision}, but the model of {entry.parent.label!r}, from which it "
            allowed = [name for name, kind in WEIGHTS.items() if kind == WEIGHTS[stored]]
            problem += f"starts, has {stored}"
            raise entry.error("precision", problem, ", ".join(allowed))
