"""Checks of a study as a whole: its task, its metric, names of entries, its analyses."""

from __future__ import annotations

from collections.abc import Iterable

from fl.api.task import DEFAULT, Task
from fl.base.errors import ConfigError, ConfigProblems, FedloomError, Location, unknown_name
from fl.base.schema import REWEIGHTED
from fl.data.dataset import task_of
from fl.plan.components import Choice
from fl.plan.config import Study
from fl.plan.rehearsal import Rehearsed
from fl.plan.scenario import Scenario


def task_and_metric(study: Study, dataset: Choice, location: Location) -> tuple[Task, str]:
    """Return the task of a study's first data set, and the study's or the task's usual metric.

    Raises:
        ConfigError: If the task has no such metric, or no classes where the study counts on them.
    """
    task = task_of(dataset.spec)
    reweighted = [REWEIGHTED] if study.test == "reweighted" else []
    problems = ConfigProblems()
    with problems.collected():
        if reweighted and not task.has_classes:
            problem = f"is reweighted, but {dataset.text} has {task.label_name}"
            raise ConfigError(location / "test", problem, "own, global")
    for key in ("metrics", "keep_predictions"):
        with problems.collected():
            if getattr(study, key) and task.name != DEFAULT:
                problem = f"is {getattr(study, key)!r}, but {dataset.text} has {task.label_name}"
                raise ConfigError(location / key, problem, "none, or data sets with class labels")
    with problems.collected():
        if study.metrics and study.scored == "best":
            problem = "are of the final round, but scored is best"
            raise ConfigError(location / "metrics", problem, "none, or scored: last")
    metrics = (*task.metrics, *reweighted)
    with problems.collected():
        if study.metric is not None and study.metric not in metrics:
            raise unknown_name(location / "metric", "metric", study.metric, metrics)
    problems.raise_all()
    return task, study.metric or metrics[0]


def check_references(study: Study, analyses: list[Choice], location: Location) -> None:
    """Raise `ConfigError` for unknown entries that keys name, and for needless contrasts."""
    rows = study.best.rows if study.best else ()
    references = [(location / "best" / "rows" / label, label) for label in rows]
    for analysis in analyses:
        labels = enumerate(analysis.values.get("methods", ()))
        references += [(analysis.location / "methods" / i, label) for i, label in labels]
    if study.ours is not None:
        references.append((location / "ours", study.ours))
    if study.baseline is not None:
        references.append((location / "baseline", study.baseline))
    elif study.contrasts:
        problem = "is set, but the study has no baseline, so that every pair is compared"
        raise ConfigError(location / "contrasts", problem, advice="set a baseline too")
    for label, reference_label in study.contrasts.items():
        references += [(location / "contrasts" / label, name) for name in (label, reference_label)]
    problems = ConfigProblems()
    problems.errors += [
        unknown_name(reference, "entry", label, study.methods)
        for reference, label in references
        if label not in study.methods
    ]
    problems.raise_all()
    for label, reference_label in study.contrasts.items():
        is_known = (
            study.baseline in (label, reference_label)
            or study.contrasts.get(reference_label) == label
        )
        if reference_label == label or is_known:
            problem = f"is {reference_label!r}, and the two are one or compared already"
            advice = "name pairs that nothing else tests"
            raise ConfigError(location / "contrasts" / label, problem, advice=advice)


def check_partition_seed(scheme: Choice, location: Location) -> None:
    """Raise `ConfigError` if a partition has no seed that its runs could be trained with."""
    if "seed" not in scheme.seed_keys:
        problem = f"is per-draw, but the partition {scheme.text} has no seed"
        advice = "a list of seeds, or a partition scheme with the key seed"
        raise ConfigError(location, problem, advice=advice)


def check_analyses(analyses: Iterable[Choice], scenario: Scenario) -> None:
    """Raise `ConfigError` for an analysis that cannot read the runs of a scenario.

    It may be made for another task, pass inputs of one kind through one network, or say itself that
    it cannot: its ``check`` gets the shape of a sample and the number of clients, if it is known.
    """
    shape = scenario.dataset.instance.shape
    for analysis in analyses:
        component, location = analysis.component, analysis.location
        scenario.check(component, location)
        needs_one = any(getattr(component.target, n, False) for n in ("weights", "one_modality"))
        if needs_one and scenario.has_several_modalities:
            problem = f"{component.name} needs clients of one modality, but they have several"
            raise ConfigError(location, problem, advice="a partition without `modalities`")
        check = getattr(analysis.instance, "check", None)
        try:
            if check:
                check(shape, scenario.clients)
        except FedloomError as error:
            raise ConfigError(location, f"on {scenario.dataset.text}: {error}") from None


def check_traces(analyses: Iterable[Choice], rehearsed: Iterable[Rehearsed]) -> None:
    """Raise `ConfigError` for an analysis of traces that no entry of the study records."""
    recorded = [result.traces for result in rehearsed]
    for analysis in analyses:
        names = {*getattr(analysis.component.target, "traces", ())}
        if names and recorded and not any(r is None or names <= r for r in recorded):
            problem = f"reads {', '.join(sorted(names))} of every round, which no entry records"
            advice = "add an entry of a method that records it"
            raise ConfigError(analysis.location, problem, advice=advice)
