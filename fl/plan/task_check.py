"""Whether what a study names works with the task of its data sets, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

from fl.api.task import DEFAULT, Task, serves, tasks_of
from fl.base import registry
from fl.base.errors import ConfigError, Where, unknown
from fl.base.registry import Entry
from fl.base.schema import REWEIGHTED
from fl.data import materials
from fl.plan.components import Choice
from fl.plan.config import Study


def check(entry: Entry, task: Task, dataset: Choice, where: Where) -> None:
    """Refuse (`ConfigError`) what is made for another task than the data set's.

    An example is a method that needs class labels, on a data set whose labels are masks.
    """
    if serves(entry.target, task.name):
        return
    wanted = ", ".join(_task(name).given for name in tasks_of(entry.target))
    problem = f"{entry.name} asks for {wanted}, but {dataset.text} has {task.given}"
    others = [
        other.name for other in registry.entries(entry.kind) if serves(other.target, task.name)
    ]
    raise ConfigError(where, problem, ", ".join(others) or f"no {entry.kind}")


def settled(
    study: Study, datasets: Sequence[Choice], analyses: Sequence[Choice], where: Where
) -> tuple[Task, str]:
    """The task of a study's data sets, and the study's metric: the one that it says, or the usual
    one.

    Raises:
        ConfigError: If data sets differ in their task, if the task has no such metric or no classes
            to re-weight test samples by, or if an analysis is made for another task.
    """
    task: Task = materials.task_entry(datasets[0].spec).make({})
    for dataset in datasets:
        check_alike(dataset, task)
    reweighted = study.test == "reweighted"
    if reweighted and not task.counted:
        problem = f"is reweighted, but {datasets[0].text} has {task.given}"
        raise ConfigError(where / "test", problem, "own or global")
    for key in ("metrics", "keep_predictions"):
        if getattr(study, key) and task.name != DEFAULT:
            problem = f"is {getattr(study, key)!r}, but {datasets[0].text} has {task.given}"
            classes = "none, or data sets with class labels"
            raise ConfigError(where / key, problem, classes)
    if study.metrics and study.scored == "best":
        problem = "are of the final round, and scored is best"
        raise ConfigError(where / "metrics", problem, "none, or scored: last")
    given, allowed = study.metric, (*task.metrics, *([REWEIGHTED] if reweighted else []))
    if given is not None and given not in allowed:
        raise unknown(where / "metric", "metric", given, allowed)
    for analysis in analyses:
        check(analysis.entry, task, datasets[0], analysis.at)
    return task, given or allowed[0]


def check_alike(dataset: Choice, task: Task) -> None:
    """Refuse (`ConfigError`) a data set of another task than the study's."""
    name = materials.task_entry(dataset.spec).name
    if name != task.name:
        problem = f"{dataset.text} is for {name}, but the study for {task.name}"
        raise ConfigError(dataset.at, problem, "data sets of one task in a study")


def _task(name: str) -> Task:
    task: Task = registry.find("task", name, Where("tasks")).make({})
    return task
