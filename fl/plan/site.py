"""Where runs take place: a data set, a partition of it and a model, and what works there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from fl.api.task import Task, serves, tasks_of
from fl.base import registry
from fl.base.errors import ConfigError, Location
from fl.base.registry import Component
from fl.data import holdings, materials
from fl.data.modality import ANY, MODALITY, kinds_of, named, takes
from fl.plan import partition_fit
from fl.plan.components import Choice, Inputs

Held = Literal["first", "all", "one", "some"]
"""What a client holds of each sample, and a model is for: the data set's first input; all of its
inputs; one of them, in which clients differ; one of them or all.
"""


@dataclass(frozen=True)
class Site:
    """A data set, a partition of it and a model that go together; task: that of the study."""

    dataset: Choice
    scheme: Choice
    model: Choice
    task: Task

    @classmethod
    def of(cls, dataset: Choice, scheme: Choice, model: Choice, task: Task) -> Site:
        """The site, its partition with an id; what does not go together is a `ConfigError`."""
        check_alike(dataset, task)
        for choice in (scheme, model):
            _check_task(choice.entry, task, dataset, choice.at)
        partition_fit.check_fit(scheme.spec, dataset.spec, scheme.at)
        partition = replace(scheme, id=materials.partition_id(scheme.spec, dataset.id))
        return cls(dataset, partition, model, task)

    def has(self, split: str) -> bool:
        """Whether there are samples of ``val`` or ``server``."""
        return partition_fit.holds(self.scheme.spec, split)

    @property
    def clients(self) -> int | None:
        """How many clients there are; None where only the data say."""
        return partition_fit.clients_of(self.scheme.spec, self.dataset.spec)

    @property
    def holds_out(self) -> bool:
        """Whether clients are held out of training."""
        return partition_fit.holds_out(self.scheme.spec)

    @property
    def differ(self) -> bool:
        """Whether clients differ in modality."""
        return self.holding in ("one", "some")

    @cached_property
    def holding(self) -> Held:
        """What clients hold of each sample; a model that cannot work with it is a `ConfigError`."""
        inputs, target = materials.modalities_of(self.dataset.spec), self.model.entry.target
        kinds, several = [kind.name for kind in inputs], takes(target, inputs)
        counts = self._counts(kinds)
        if counts is None:
            if kinds_of(target) and not several:
                names = " and ".join(kinds_of(target))
                wanted = "several, all numbers," if kinds_of(target) == (ANY,) else names
                there = " and ".join(kinds) if kinds else "one"
                problem = f"takes {wanted} as inputs, but {self.dataset.text} has {there}"
                problem = f"{self.model.text} {problem}"
                raise ConfigError(self.model.at, problem, "a model for such inputs")
            return "all" if several else "first"
        if not several:
            first, scheme = counts[0], self.scheme.text
            problem = f"{self.model.text} takes one kind of input, but clients {first} to "
            problem += f"{first + counts[1] - 1} of {scheme} have {kinds[1]}, where others have "
            suited = [
                model.name for model in registry.entries("model") if takes(model.target, inputs)
            ]
            allowed = ", ".join(suited) or f"one for {', '.join(kinds)}"
            raise ConfigError(self.model.at, problem + kinds[0], allowed)
        return "one" if len(counts) == len(kinds) else "some"

    def _counts(self, kinds: list[str]) -> list[int] | None:
        """How many clients have each modality; None where there is but one."""
        scheme = self.scheme.values
        given, at = scheme.get("modalities"), self.scheme.at / "modalities"
        if "path" in scheme:
            table, at = holdings.brought(scheme), self.scheme.at / "path"
            if MODALITY in table:
                given = np.bincount(table.groupby("client")[MODALITY].first()).tolist()
        if given is None:
            return None
        problem, told = f"is {list(given)}", " and ".join(kinds)
        groups = [*kinds, told][: len(given)]
        if len(kinds) < 2:
            raise ConfigError(
                at, f"{problem}, but {self.dataset.text} has one kind of input", "none"
            )
        if len(given) not in (len(kinds), len(kinds) + 1):
            allowed = f"{len(kinds)} numbers of clients, for {told}, and one more for all of them"
            raise ConfigError(at, problem, f"{allowed} at once")
        for kind, count in zip(groups, given, strict=True):
            if not count:
                allowed = f"1 or more for {', '.join(groups)} each"
                raise ConfigError(at, f"{problem}: no client has {kind}", allowed)
        clients = scheme.get("clients", sum(given))
        if sum(given) != clients:
            raise ConfigError(at, f"{problem}, {sum(given)} clients", f"{clients} together")
        return list(given)

    @cached_property
    def size(self) -> int | None:
        """How many samples the data set has; None where only the data say."""
        size: int | None = self.dataset.entry.make(self.dataset.values).size
        return size

    @cached_property
    def inputs(self) -> list[Inputs]:
        """What the model sees of the data set; of each modality where clients differ in it."""
        data = self.dataset.entry.make(self.dataset.values)
        if self.holding == "first":
            return [Inputs("", data.shape, data.classes, getattr(data, "tokens", 0))]
        kinds = data.modalities
        if self.holding == "all":
            return [Inputs("", (), data.classes, 0, kinds)]
        each = [Inputs(kind.name, kind.shape, data.classes, kind.tokens) for kind in kinds]
        whole = Inputs(named(kinds), (), data.classes, 0, kinds)
        return each if self.holding == "one" else [*each, whole]

    def check(self, entry: Component, location: Location) -> None:
        """Refuse (`ConfigError`) a method or an analysis for another task, and one that computes
        with one input where samples have several.
        """
        _check_task(entry, self.task, self.dataset, location)
        if self.holding in ("all", "some") and getattr(entry.target, "one_input", False):
            names = named(materials.modalities_of(self.dataset.spec))
            problem = f"{entry.name} computes with one input, but {self.model.text} takes {names}"
            allowed = "a model of one input, or clients that hold one each"
            raise ConfigError(location, f"{problem} of {self.dataset.text}", allowed)

    def check_start(self, label: str, before: Site, location: Location) -> None:
        """Refuse (`ConfigError`) to start from a model of other inputs or classes: that of the
        entry ``label``, which runs at ``before``.
        """
        if before.dataset is not self.dataset and before.inputs != self.inputs:
            problem = f"{label!r} is trained on {before.dataset.text}, {before.told}"
            problem += f", but {self.dataset.text} has {self.told}"
            allowed = "an entry whose data set has as large inputs and as many classes"
            raise ConfigError(location, problem, allowed)

    @property
    def told(self) -> str:
        """What models see of the data set, in words."""
        shapes = " and ".join(
            " x ".join(map(str, kind.shape)) for seen in self.inputs for kind in seen.kinds
        )
        return f"inputs of {shapes} in {self.inputs[0].classes} classes"


def check_alike(dataset: Choice, task: Task) -> None:
    """Refuse (`ConfigError`) a data set of another task than the study's."""
    name = materials.task_name(dataset.spec)
    if name != task.name:
        problem = f"{dataset.text} is for {name}, but the study for {task.name}"
        raise ConfigError(dataset.at, problem, "data sets of one task in a study")


def _check_task(entry: Component, task: Task, dataset: Choice, location: Location) -> None:
    """Refuse (`ConfigError`) what is made for another task than the data set's.

    An example is a method that needs class labels, on a data set whose labels are masks.
    """
    if serves(entry.target, task.name):
        return
    tasks = {each.name: each.make({}) for each in registry.entries("task")}
    wanted = ", ".join(tasks[name].given for name in tasks_of(entry.target))
    problem = f"{entry.name} asks for {wanted}, but {dataset.text} has {task.given}"
    others = [each.name for each in registry.entries(entry.kind) if serves(each.target, task.name)]
    raise ConfigError(location, problem, ", ".join(others) or f"no {entry.kind}")
