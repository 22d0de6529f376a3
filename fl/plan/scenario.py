"""A scenario: one data set, one partition and one model of a study, and what works there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fl.api.task import ALL_TASKS, Task, serves, tasks_of
from fl.base import fields, registry
from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.base.registry import Component
from fl.base.schema import SERVER
from fl.data import partitioning
from fl.data.dataset import (
    ANY_MODALITIES,
    accepts_modalities,
    group_title,
    input_names,
    modalities_of,
    task_name,
)
from fl.plan.components import Choice, Inputs
from fl.plan.modalities import inputs_by_modality
from fl.plan.partition_facts import PartitionFacts


def partition_facts(scheme: Choice, dataset: Choice) -> PartitionFacts:
    """Return what is known of the partition of a data set before it is made."""
    return PartitionFacts(scheme.spec, dataset.instance, dataset.component.name)


def _any_scheme(location: Location) -> Choice:
    """Return a partition with samples in every split, in place of a wrong one.

    With it, methods are checked of which nothing else is known. It has no number of clients, and
    no run is made of it.
    """
    component = registry.find("partition scheme", "homogeneous", location)
    return Choice(component, {"val": 0.2, "test": 0.2, SERVER: 0.2}, {}, location)


def _any_model(task: Task, location: Location) -> Choice:
    """Return a model of a task, in place of a wrong one; it is not built."""
    models = registry.components("model")
    component = next(
        c for c in models if serves(c.target, task.model_task) or serves(c.target, task.name)
    )
    return Choice(component, {}, {}, location)


@dataclass(frozen=True)
class Scenario:
    """A data set, a partition of it and a model that go together.

    Attributes:
        dataset: The data set.
        scheme: The partition, with its id.
        model: The model.
        task: The study's task.
    """

    dataset: Choice
    scheme: Choice
    model: Choice
    task: Task

    @classmethod
    def of(
        cls,
        dataset: Choice,
        scheme: Choice | None,
        model: Choice | None,
        task: Task,
        problems: ConfigProblems,
    ) -> Scenario | None:
        """Return the scenario, or None if nothing more can be checked in it.

        Of a wrong partition there is a scenario, too, so that errors of methods are told with it.

        Args:
            dataset: The data set.
            scheme: The partition; None if that of the study is not understood.
            model: The model; None if that of the study is not understood.
            task: The study's task.
            problems: Collects what is wrong.
        """
        serving, fitting = ConfigProblems(), ConfigProblems()
        with serving.collected():
            check_same_task(dataset, task)
        if model:
            with serving.collected():
                _check_task(model.component, task, dataset, model.location)
            with serving.collected():
                model = with_token_keys(model, dataset)
        if scheme:
            with fitting.collected():
                _check_task(scheme.component, task, dataset, scheme.location)
            with fitting.collected():
                partition_facts(scheme, dataset).check(scheme.location)
            if fitting.errors and "path" in scheme.values:
                scheme = None  # The table may lack any column.
        problems.errors += serving.errors + fitting.errors
        is_known = scheme and model
        if serving.errors or not (is_known or len(modalities_of(dataset.instance)) < 2):
            return None
        scheme = scheme or _any_scheme(dataset.location)
        model = model or _any_model(task, dataset.location)
        partition = replace(scheme, id=partitioning.partition_id(scheme.spec, dataset.id))
        return cls(dataset, partition, model, task)

    @cached_property
    def partition(self) -> PartitionFacts:
        """Facts of the partition that are known before it is made."""
        return partition_facts(self.scheme, self.dataset)

    def _refuse_one_input(self, names: list[str]) -> None:
        """Raise `ConfigError`: the model takes several inputs, and the data set has others."""
        kinds = input_names(self.model.component.target)
        inputs = "several, all numbers," if kinds == (ANY_MODALITIES,) else " and ".join(kinds)
        inputs_found = " and ".join(names) if names else "one"
        problem = f"{self.model.text} takes {inputs} as inputs, but {self.dataset.text} has "
        problem += inputs_found
        raise ConfigError(self.model.location, problem, advice="a model for such inputs")

    @property
    def size(self) -> int | None:
        """The number of samples of the data set; None if only the data can tell."""
        size: int | None = self.dataset.instance.size
        return size

    @property
    def has_images(self) -> bool:
        """Whether some input of the data set is an image, [channels, height, width]."""
        data = self.dataset.instance
        shapes = [modality.shape for modality in modalities_of(self.dataset.instance)]
        return any(len(shape) == 3 for shape in shapes or [data.shape])

    @cached_property
    def inputs(self) -> list[Inputs]:
        """The inputs that the model sees; several where clients differ in them.

        Raises:
            ConfigError: If the model cannot work with them.
        """
        table = self.partition.own_table
        if inputs := inputs_by_modality(self.dataset, self.scheme, self.model, table):
            return inputs
        data, target = self.dataset.instance, self.model.component.target
        modalities = modalities_of(self.dataset.instance)
        if accepts_modalities(target, modalities):
            return [Inputs("", (), data.classes, 0, modalities)]
        if input_names(target):
            self._refuse_one_input([modality.name for modality in modalities])
        return [Inputs("", data.shape, data.classes, getattr(data, "tokens", 0))]

    def check(self, component: Component, location: Location) -> None:
        """Raise `ConfigError` for a method or an analysis that cannot work in the scenario.

        It may be made for another task, or compute with one input where samples have several.
        """
        _check_task(component, self.task, self.dataset, location)
        has_joint_input = any(inputs.modalities for inputs in self.inputs)
        if has_joint_input and getattr(component.target, "one_input", False):
            names = group_title(modalities_of(self.dataset.instance))
            problem = f"{component.name} computes with one input, but {self.model.text} takes "
            problem += f"{names} of {self.dataset.text}"
            advice = "a model of one input, or clients that hold one each"
            raise ConfigError(location, problem, advice=advice)

    def check_start(self, label: str, start: Scenario, location: Location) -> None:
        """Raise `ConfigError` if a model is to start from one of other inputs or classes.

        Args:
            label: The entry from whose model another entry starts.
            start: That entry's scenario.
            location: Location of the key ``start``.
        """
        if start.dataset is not self.dataset and start.inputs != self.inputs:
            problem = f"{label!r} is trained on {start.dataset.text}, {start.inputs_text}"
            problem += f", but {self.dataset.text} has {self.inputs_text}"
            advice = "an entry whose data set has as large inputs and as many classes"
            raise ConfigError(location, problem, advice=advice)

    @property
    def inputs_text(self) -> str:
        """The inputs that models see, in words."""
        shapes = " and ".join(
            " x ".join(map(str, modality.shape))
            for inputs in self.inputs
            for modality in inputs.all_modalities
        )
        return f"inputs of {shapes} in {self.inputs[0].classes} classes"


def check_same_task(dataset: Choice, task: Task) -> None:
    """Raise `ConfigError` for a data set of another task than the study's."""
    name = task_name(dataset.instance)
    if name != task.name:
        problem = f"{dataset.text} is for {name}, but the study for {task.name}"
        raise ConfigError(dataset.location, problem, advice="data sets of one task in a study")


def _serves(component: Component, task: Task) -> bool:
    """Whether a component supports a task; a model also if it supports the task's `model_task`."""
    is_for_model_task = component.kind == "model" and serves(component.target, task.model_task)
    return serves(component.target, task.name) or is_for_model_task


def _check_task(component: Component, task: Task, dataset: Choice, location: Location) -> None:
    """Raise `ConfigError` for a component that is made for another task than the data set's.

    An example is a method that needs class labels, on a data set whose labels are masks.
    """
    if _serves(component, task):
        return
    tasks = {entry.name: entry.instantiate({}) for entry in registry.components("task")}
    for name in tasks_of(component.target):
        if name not in tasks:
            raise unknown_name(Location(str(component.file)), "task", name, [*tasks, *ALL_TASKS])
    needed = ", ".join(tasks[name].label_name for name in tasks_of(component.target))
    problem = f"{component.name} asks for {needed}, but {dataset.text} has {task.label_name}"
    suitable = [
        component_of_kind.name
        for component_of_kind in registry.components(component.kind)
        if _serves(component_of_kind, task)
    ]
    raise ConfigError(location, problem, ", ".join(suitable) or f"no {component.kind}")


def with_token_keys(model: Choice, dataset: Choice) -> Choice:
    """Return a model whose keys ``tokens`` and ``padding`` are those of a data set.

    A model has these keys, or one of them, if it reads texts. Values that the study does not set
    become those of the data set. Without a number of tokens in the data set, or where it may be
    larger than what its file shows (``padding`` is None), the model stays as it is.

    Args:
        model: The model.
        dataset: The data set.

    Raises:
        ConfigError: If the study sets another value than the data set has.
    """
    expected = _token_values(dataset.instance)
    declared = fields.fields(model.component.target)
    values = {key: value for key, value in expected.items() if key in declared}
    for key, value in values.items():
        written = model.written.get(key)
        if written not in (None, value):
            tokens = f"{dataset.text} has {expected['tokens']} different tokens"
            problem = f"is {written}, but {tokens}, of which {expected['padding']} fills up texts"
            advice = "leave the key out, then it follows the data set"
            raise ConfigError(model.location / key, problem, str(value), advice)
    if expected and expected["padding"] == expected["tokens"] - 1:
        # Without this key, it is the last token.
        values.pop("padding", None)
    return replace(model, values={**model.values, **values}) if values else model


def _token_values(dataset: Any) -> dict[str, int]:
    """Return the number of tokens of a data set, and its padding; empty if it tells neither."""
    modalities = getattr(dataset, "modalities", ())
    counts = [getattr(dataset, "tokens", 0), *(modality.tokens for modality in modalities)]
    tokens = max(counts)
    padding = getattr(dataset, "padding", tokens - 1)
    return {"tokens": tokens, "padding": padding} if tokens and padding is not None else {}
