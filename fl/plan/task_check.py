"""What a study's task and metric are, and whether what it says of them goes together."""

from __future__ import annotations

from collections.abc import Sequence

from fl.api.task import DEFAULT, Task
from fl.base.errors import ConfigError, Where, unknown
from fl.base.schema import REWEIGHTED
from fl.data import materials
from fl.plan.components import Choice
from fl.plan.config import Study
from fl.plan.site import check_alike


def settled(study: Study, datasets: Sequence[Choice], where: Where) -> tuple[Task, str]:
    """The task of a study's data sets, and the study's metric: the one that it says, or the usual
    one.

    Raises:
        ConfigError: If data sets differ in their task, or if the task has no such metric or no
            classes to re-weight test samples by.
    """
    task = materials.task_of(datasets[0].spec)
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
    return task, given or allowed[0]
