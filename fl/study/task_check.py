"""Whether what a study names works with the task of its data sets, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fl.code import registry
from fl.code.registry import Entry
from fl.data import materials
from fl.errors import ConfigError, Where, unknown
from fl.schema import REWEIGHTED
from fl.study.components import Choice
from fl.study.config import Study
from fl.task import Task, serves, tasks_of


def check(entry: Entry, task: Task, dataset: Choice, where: Where) -> None:
    """Refuse (`ConfigError`) what is made for another task than the data set's.

    An example is a method that needs class labels, on a data set whose labels are masks.
    """
    if serves(entry.target, task.name):
        return
    wanted = ", ".join(_task(name).given for name in tasks_of(entry.target))
    problem = f"{entry.name} asks for {wanted}, but {dataset.text} has {task.given}"
    others = [one.name for one in registry.entries(entry.kind) if serves(one.target, task.name)]
    raise ConfigError(where, problem, ", ".join(others) or f"no {entry.kind}")


def settled(
    study: Study, datasets: Sequence[Choice], analyses: Sequence[Choice], where: Where
) -> tuple[Task, str]:
    """The task of a study's data sets, and the study's metric: the one that it says, or the usual
    one. The task may have no functions (`materials.task_entry`).

    Raises:
        ConfigError: If data sets differ in their task, if the task has no such metric or no classes
            to re-weight test samples by, or if an analysis is made for another task.
    """
    tasks = [materials.task_entry(one.spec).make({}) for one in datasets]
    for task, one in zip(tasks, datasets, strict=True):
        if task.name != tasks[0].name:
            problem = f"{one.text} is for {task.name}, but {datasets[0].text} for {tasks[0].name}"
            raise ConfigError(one.at, problem, "data sets of one task in a study")
    reweighted = study.test == "reweighted"
    if reweighted and not tasks[0].counted:
        problem = f"is reweighted, but {datasets[0].text} has {tasks[0].given}"
        raise ConfigError(where / "test", problem, "own or global")
    given, allowed = study.metric, (*tasks[0].metrics, *([REWEIGHTED] if reweighted else []))
    if given is not None and given not in allowed:
        raise unknown(where / "metric", "metric", given, allowed)
    for analysis in analyses:
        check(analysis.entry, tasks[0], datasets[0], analysis.at)
    return tasks[0], given or allowed[0]


def check_named(analyses: Sequence[Choice], entries: Collection[str]) -> None:
    """Refuse (`ConfigError`) an analysis whose key ``methods`` names what is no entry."""
    for one in analyses:
        for i, label in enumerate(one.values.get("methods", ())):
            if label not in entries:
                raise unknown(one.at / "methods" / i, "entry", label, entries)


def _task(name: str) -> Task:
    found: Task = registry.declared("task", name, Where("tasks")).make({})
    return found
