"""A scenario: one data set, one partition and one model of a study, and what works there.

Whether a partition can be made of a data set is checked before either exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fl.api.task import Task, serves, tasks_of
from fl.base import registry
from fl.base.errors import ConfigError, DataError, Location
from fl.base.places import expand
from fl.base.registry import Component, entry_of
from fl.base.schema import SERVER
from fl.data import holdings, materials
from fl.data.modality import ANY, MODALITY, kinds_of, named, takes
from fl.plan.components import Choice, Inputs

Spec = Mapping[str, Any]
"""``{"name": ..., key: value, ...}`` of a partition scheme, or of a data set."""


def has_split(scheme: Spec, split: str) -> bool:
    """Whether a partition of that scheme has samples of ``val``, by which a grid's point can be
    chosen, or of ``server``, which are the server's own.
    """
    if "path" in scheme:
        return bool((holdings.brought(scheme)["split"] == split).any())
    return bool(scheme.get(split, 0))


def has_unseen_clients(scheme: Spec) -> bool:
    """Whether a partition of that scheme has clients that are held out of training."""
    if "path" in scheme:
        table = holdings.brought(scheme)
        return "unseen" in table and bool(table["unseen"].any())
    return bool(scheme.get("unseen", 0))


def clients_of(scheme: Spec, dataset: Spec) -> int | None:
    """How many clients a partition has, those held out included; None where only the data say."""
    if "path" in scheme:
        return int(holdings.brought(scheme)["client"].nunique())
    _, data = entry_of("data set", dataset)
    several = scheme.get("clients_per_domain", 0) * len(getattr(data, "domains", ()))
    return scheme.get("clients") or several or data.natural or None


def split_share(scheme: Spec, split: str) -> float:
    """The share of a client's samples in ``val``, ``test`` or ``server``, as far as the scheme's
    keys tell.
    """
    given = scheme.get(split, 0.0)
    return 0.0 if isinstance(given, str) else float(given)


def check_partition(scheme: Spec, dataset: Spec, location: Location) -> None:
    """Refuse at once a partition that cannot be made of that data set (`ConfigError`)."""
    _, data = entry_of("data set", dataset)
    clients, per_client = scheme.get("clients"), scheme.get("classes_per_client", 1)
    least = max(3, scheme.get("min_samples", 0))
    if clients and data.size is not None and data.size < least * clients:
        problem = f"is {clients}, too many for the {data.size} samples of {dataset['name']}"
        allowed = f"at most {data.size // least}, so that each gets {least} or more"
        raise ConfigError(location / "clients", problem, allowed)
    if clients and data.size is not None and data.size < per_client * clients:
        problem = f"is {clients}, too many for {per_client} classes each of {data.size} samples"
        allowed = f"at most {data.size // per_client}, so that a holder of a class gets a sample"
        raise ConfigError(location / "clients", problem, allowed)
    for key in ("classes_per_client", "dominant_classes"):
        if scheme.get(key, 1) > data.classes:
            problem = f"is {scheme[key]}, but {dataset['name']} has {data.classes} classes"
            raise ConfigError(location / key, problem, f"1 to {data.classes}")
    if (
        scheme.get("test", 0.5) in (0, 1)
        or split_share(scheme, "val") + split_share(scheme, "test") >= 1
    ):
        problem = f"is {scheme['test']} beside val {scheme.get('val', 0)}"
        raise ConfigError(location / "test", problem, "test > 0 and val + test < 1")
    shares = {split: split_share(scheme, split) for split in ("val", "test", SERVER)}
    if sum(shares.values()) >= 1:
        problem = f"is {scheme[SERVER]} beside val {shares['val']} and test {shares['test']}"
        raise ConfigError(location / SERVER, problem, "val + test + server < 1, the rest is train")
    unseen = scheme.get("unseen", 0)
    if clients and not isinstance(unseen, str) and unseen >= clients:
        problem = f"is {unseen}, but there are {clients} clients"
        raise ConfigError(location / "unseen", problem, f"a share < 1, or at most {clients - 1}")
    _check_published(scheme, dataset, getattr(data, "published_splits", None), location)
    if "clients_per_domain" in scheme and not getattr(data, "domains", ()):
        raise ConfigError(location, f"{dataset['name']} has no domains", "a data set that has")
    if scheme["name"] == "natural" and not data.natural:
        allowed = "another scheme, or a data set that has"
        raise ConfigError(location, f"{dataset['name']} has no clients of its own", allowed)
    if "path" in scheme:
        expand(scheme["path"], location / "path")  # What is wrong with it is said with its place.
        try:
            table = holdings.brought(scheme)
            holdings.check_columns(table, scheme["path"])
            size = table["sample"].max() + 1 if data.size is None else data.size
            holdings.validate(table, np.broadcast_to(0, size), source=scheme["path"])
        except DataError as error:
            raise ConfigError(location / "path", str(error)) from None


def _check_published(
    scheme: Spec, dataset: Spec, splits: tuple[str, ...] | None, location: Location
) -> None:
    """Refuse a published split that a data set does not have, or that leaves nothing to train on.

    splits: those that it has; None: nobody knows before it is read.
    """
    asked = [key for key in ("val", "test", "unseen") if scheme.get(key) == "published"]
    for key in asked:
        wanted = "train" if key == "unseen" else key
        if splits is not None and wanted not in splits:
            problem = f"is published, but {dataset['name']} has no published {wanted} split"
            raise ConfigError(location / key, problem, "a number, or a data set that has one")
    if splits and not {*splits} - {*asked}:
        problem = f"is published, as are all samples of {dataset['name']}: none is left to train on"
        raise ConfigError(location / asked[-1], problem, "a number, or another data set")


Held = Literal["first", "all", "one", "some"]
"""What a client holds of each sample, and a model is for: the data set's first input; all of its
inputs; one of them, in which clients differ; one of them or all.
"""


@dataclass(frozen=True)
class Scenario:
    """A data set, a partition of it and a model that go together; task: that of the study."""

    dataset: Choice
    scheme: Choice
    model: Choice
    task: Task

    @classmethod
    def of(cls, dataset: Choice, scheme: Choice, model: Choice, task: Task) -> Scenario:
        """The scenario, its partition with an id; what does not go together is a `ConfigError`."""
        check_alike(dataset, task)
        for choice in (scheme, model):
            _check_task(choice.entry, task, dataset, choice.at)
        check_partition(scheme.spec, dataset.spec, scheme.at)
        partition = replace(scheme, id=materials.partition_id(scheme.spec, dataset.id))
        return cls(dataset, partition, model, task)

    def has(self, split: str) -> bool:
        """Whether there are samples of ``val`` or ``server``."""
        return has_split(self.scheme.spec, split)

    @property
    def clients(self) -> int | None:
        """How many clients there are; None where only the data say."""
        return clients_of(self.scheme.spec, self.dataset.spec)

    @property
    def holds_out(self) -> bool:
        """Whether clients are held out of training."""
        return has_unseen_clients(self.scheme.spec)

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

    def check_start(self, label: str, before: Scenario, location: Location) -> None:
        """Refuse (`ConfigError`) to start from a model of other inputs or classes: that of the
        entry ``label``, which runs at ``before``.
        """
        if before.dataset is not self.dataset and before.inputs != self.inputs:
            problem = f"{label!r} is trained on {before.dataset.text}, {before.inputs_text}"
            problem += f", but {self.dataset.text} has {self.inputs_text}"
            allowed = "an entry whose data set has as large inputs and as many classes"
            raise ConfigError(location, problem, allowed)

    @property
    def inputs_text(self) -> str:
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
