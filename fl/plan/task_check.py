"""What a study's task and metric are, and whether what it says of them goes together."""

from __future__ import annotations

from collections.abc import Sequence

from fl.api.task import DEFAULT, Task
from fl.base.errors import ConfigError, Where, unknown
from fl.base.schema import REWEIGHTED
from fl.data import materials
from fl.plan.components import Choice
from fl.plan.config import Study


def settled(study: Study, datasets: Sequence[Choice], where: Where) -> tuple[Task, str]:
    """The task of a study's data sets, and the study's metric: the one that it says, or the usual
    one.

    Raises:
        ConfigError: If the task has no such metric, or no classes where the study counts on them.
    """
    task = materials.task_of(datasets[0].spec)
    reweighted = [REWEIGHTED] if study.test == "reweighted" else []
    if reweighted and not task.counted:
        problem = f"is reweighted, but {datasets[0].text} has {task.given}"
        raise ConfigError(where / "test", problem, "own or global")
    for key in ("metrics", "keep_predictions"):
        if getattr(study, key) and task.name != DEFAULT:
            problem = f"is {getattr(study, key)!r}, but {datasets[0].text} has {task.given}"
            raise ConfigError(where / key, problem, "none, or data sets with class labels")
    if study.metrics and study.scored == "best":
        problem = "are of the final round, and scored is best"
        raise ConfigError(where / "metrics", problem, "none, or scored: last")
    given, allowed = study.metric, (*task.metrics, *reweighted)
    if given is not None and given not in allowed:
        raise unknown(where / "metric", "metric", given, allowed)
    return task, given or allowed[0]
