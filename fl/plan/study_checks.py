"""Checks of a study as a whole: its task, its metric, names of entries, its analyses."""

from __future__ import annotations

from collections.abc import Iterable

from fl.api.task import DEFAULT, Task
from fl.base.errors import ConfigError, ConfigProblems, FedloomError, Location, unknown_name
from fl.base.schema import REWEIGHTED
from fl.plan.components import Choice
from fl.plan.config import Draft
from fl.plan.rehearsal import Rehearsed
from fl.plan.scenario import Scenario


def metric_of(draft: Draft, task: Task, dataset: Choice, problems: ConfigProblems) -> str:
    """Return the study's metric, or the usual one of its task.

    Args:
        draft: The study.
        task: The task of its data sets.
        dataset: The first data set.
        problems: Collects that the task has no such metric, or no classes where the study counts on
            them.
    """
    study, location = draft.study, draft.location
    reweighted = [REWEIGHTED] if study.test == "reweighted" else []
    if reweighted and not task.has_classes:
        problem = f"is reweighted, but {dataset.text} has {task.label_name}"
        problems.errors.append(ConfigError(location / "test", problem, "own, global"))
    for key in ("metrics", "keep_predictions"):
        if getattr(study, key) and task.name != DEFAULT:
            problem = f"is {getattr(study, key)!r}, but {dataset.text} has {task.label_name}"
            allowed = "none, or data sets with class labels"
            problems.errors.append(ConfigError(location / key, problem, allowed))
    if study.metrics and study.scored == "best":
        problem = "are of the final round, but scored is best"
        allowed = "none, or scored: last"
        problems.errors.append(ConfigError(location / "metrics", problem, allowed))
    metrics = (*task.metrics, *reweighted)
    is_reweighted = study.metric == REWEIGHTED and "test" in draft.wrong_keys
    if study.metric is not None and study.metric not in metrics and not is_reweighted:
        problems.errors.append(unknown_name(location / "metric", "metric", study.metric, metrics))
    return study.metric or metrics[0]


def check_references(draft: Draft, analyses: list[Choice], problems: ConfigProblems) -> None:
    """Collect unknown entries that keys name, and needless contrasts.

    Args:
        draft: The study.
        analyses: Its analyses.
        problems: Collects what is wrong.
    """
    study, location = draft.study, draft.location
    if "methods" in draft.wrong_keys:
        return
    rows = study.best.rows if study.best else ()
    references = [(location / "best" / "rows" / label, label) for label in rows]
    for analysis in analyses:
        labels = enumerate(analysis.values.get("methods", ()))
        references += [(analysis.location / "methods" / i, label) for i, label in labels]
    if study.ours is not None:
        references.append((location / "ours", study.ours))
    if study.baseline is not None:
        references.append((location / "baseline", study.baseline))
    elif study.contrasts and "baseline" not in draft.wrong_keys:
        problem = "is set, but the study has no baseline, so that every pair is compared"
        advice = "set a baseline too"
        problems.errors.append(ConfigError(location / "contrasts", problem, advice=advice))
    for label, reference_label in study.contrasts.items():
        references += [(location / "contrasts" / label, name) for name in (label, reference_label)]
    problems.errors += [
        unknown_name(reference, "entry", label, study.methods)
        for reference, label in references
        if label not in study.methods
    ]
    for label, reference_label in study.contrasts.items():
        is_known = (
            study.baseline in (label, reference_label)
            or study.contrasts.get(reference_label) == label
        )
        if {label, reference_label} <= {*study.methods} and (reference_label == label or is_known):
            problem = f"is {reference_label!r}, and the two are one or compared already"
            advice = "name pairs that nothing else tests"
            error = ConfigError(location / "contrasts" / label, problem, advice=advice)
            problems.errors.append(error)


def check_partition_seed(scheme: Choice, location: Location) -> None:
    """Raise `ConfigError` if a partition has no seed that its runs could be trained with."""
    if "seed" not in scheme.seed_keys:
        problem = f"is per-draw, but the partition {scheme.text} has no seed"
        advice = "a list of seeds, or a partition scheme with the key seed"
        raise ConfigError(location, problem, advice=advice)


def check_analyses(
    analyses: Iterable[Choice], scenario: Scenario, problems: ConfigProblems
) -> None:
    """Collect analyses that cannot read the runs of a scenario.

    One may be made for another task, pass inputs of one kind through one network, or say itself
    that it cannot: its ``check`` gets the shape of a sample and the number of clients, if it is
    known.

    Args:
        analyses: The study's analyses.
        scenario: The scenario.
        problems: Collects what is wrong.
    """
    for analysis in analyses:
        with problems.collected():
            _check_analysis(analysis, scenario)


def _check_analysis(analysis: Choice, scenario: Scenario) -> None:
    component, location = analysis.component, analysis.location
    scenario.check(component, location)
    needs_one = any(getattr(component.target, n, False) for n in ("weights", "one_modality"))
    if needs_one and scenario.has_several_modalities:
        problem = f"{component.name} needs clients of one modality, but they have several"
        raise ConfigError(location, problem, advice="a partition without `modalities`")
    check = getattr(analysis.instance, "check", None)
    try:
        if check:
            check(scenario.dataset.instance.shape, scenario.clients)
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
