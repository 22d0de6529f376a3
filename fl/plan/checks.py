"""What is wrong with a study that is understood: `fl.plan.expand` says what it means.

Everything is told before anything runs, and as much as possible at once. A function either raises
the error that it finds, or collects errors.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fl.api.participation import check_selection
from fl.api.task import DEFAULT, Task
from fl.api.training import Training, check_participation, check_stragglers
from fl.api.uploads import check_attackers, check_noise_on_count
from fl.base import arithmetic, registry
from fl.base.errors import ConfigError, ConfigProblems, FedloomError, Location, unknown_name
from fl.base.registry import ADDED_KINDS, entry_key
from fl.base.schema import PREDICTED_METRICS, REWEIGHTED, SERVER, SHARES

if TYPE_CHECKING:
    from fl.plan.bundle import Run
    from fl.plan.components import Choice
    from fl.plan.config import Draft, Execution, Settings, Values
    from fl.plan.grids import Point
    from fl.plan.method_entries import MethodEntry
    from fl.plan.scenario import Scenario


def check_metric(draft: Draft, task: Task, dataset: Choice, problems: ConfigProblems) -> None:
    """Collect metrics that the task lacks, and keys that need classes where there are none.

    Args:
        draft: The study.
        task: The task of its data sets.
        dataset: The first data set.
        problems: Collects what is wrong.
    """
    study, location = draft.study, draft.location
    is_reweighted = study.test == "reweighted"
    if is_reweighted and not task.has_classes:
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
    if (study.metric or task.metrics[0]) in SHARES and (study.goal or 0) > 1:
        problem = f"is {study.goal!r}, but {study.metric or task.metrics[0]} is a share"
        problems.errors.append(ConfigError(location / "goal", problem, "a number from 0 to 1"))
    metrics = (*task.metrics, REWEIGHTED) if is_reweighted else task.metrics
    may_be_reweighted = study.metric == REWEIGHTED and "test" in draft.wrong_keys
    if study.metric not in (None, *metrics) and not may_be_reweighted:
        place, name = location / "metric", str(study.metric)
        advice = {REWEIGHTED: "`test: reweighted` with it"}
        advice |= {other: f"`metrics: [{other}]`, beside it" for other in PREDICTED_METRICS}
        if name in advice:
            error = ConfigError(place, f"is {name!r}", ", ".join(metrics), advice[name])
            problems.errors.append(error)
        else:
            problems.errors.append(unknown_name(place, "metric", name, metrics))


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
    references: list[tuple[Location, str]] = []
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
    check = getattr(analysis.instance, "check", None)
    try:
        if check:
            check(scenario.dataset.instance.shape, scenario.partition.clients)
    except FedloomError as error:
        raise ConfigError(location, f"on {scenario.dataset.text}: {error}") from None


def check_modalities(
    entries: Mapping[MethodEntry, Scenario],
    scenarios: Sequence[Scenario],
    analyses: Iterable[Choice],
    problems: ConfigProblems,
) -> None:
    """Collect entries and analyses that cannot work if clients differ in modality.

    Args:
        entries: The right entries, with the scenario of each.
        scenarios: All scenarios of the entries.
        analyses: The study's analyses.
        problems: Collects what is wrong.
    """
    for entry, scenario in entries.items():
        train_on = entry.raw_value("train_on")
        if train_on is not None and len(scenario.inputs) > 1:
            problem = f"is {train_on!r}, but clients differ in modality"
            advice = "a partition without `modalities`, or no `train_on`"
            problems.errors.append(entry.error("train_on", problem, advice=advice))
    for analysis in analyses:
        target = analysis.component.target
        needs_one = any(getattr(target, n, False) for n in ("weights", "one_modality"))
        if needs_one and any(len(scenario.inputs) > 1 for scenario in scenarios):
            problem = f"{analysis.component.name} needs clients of one modality, but they have "
            advice = "a partition without `modalities`"
            error = ConfigError(analysis.location, problem + "several", advice=advice)
            problems.errors.append(error)


def check_entry(entry: MethodEntry, scenarios: Mapping[str, Scenario]) -> None:
    """Raise `ConfigError` if the entry cannot work in its scenario.

    Args:
        entry: The entry.
        scenarios: The scenarios of all entries by label.
    """
    scenario, problems = scenarios[entry.label], ConfigProblems()
    if entry.parent and entry.parent.label in scenarios:
        with problems.collected():
            _check_parent(entry, entry.parent, scenarios[entry.parent.label], scenario)
    _check_samples(entry, scenario, problems)
    with problems.collected():
        scenario.check(entry.method, entry.location)
    added = entry.points[0].added_components if entry.points else {}
    for key, specs in added.items():
        for spec in specs:
            location = entry.location / entry_key(key) / spec["name"]
            with problems.collected():
                scenario.check(registry.find(ADDED_KINDS[key], spec["name"], location), location)
    with problems.collected():
        _check_one_world(entry)
    for point in entry.points:
        with problems.collected():
            _check_devices(entry, point, scenario)
        _check_training(entry, point.training, scenario, problems)
        if entry.is_right:
            with problems.collected():
                _check_participants(entry, point, scenario)
    problems.raise_all()


def _check_one_world(entry: MethodEntry) -> None:
    """Raise `ConfigError` for a grid of devices, of which validation data would choose a point."""
    devices = [point.added_components["devices"] for point in entry.points]
    [first] = devices[0] if devices and devices[0] else [{}]
    for key in first:
        values = [*dict.fromkeys(str(point_devices[0][key]) for point_devices in devices)]
        if len(values) > 1:
            problem = f"is {' and '.join(values)}, but a grid does not choose what clients have"
            location = entry.layers.location_of("devices") / first["name"] / key
            raise ConfigError(location, problem, "one value", "an entry for each value")


def _check_devices(entry: MethodEntry, point: Point, scenario: Scenario) -> None:
    """Raise `ConfigError` for devices with keys or files that do not fit to the clients."""
    for spec in point.added_components["devices"]:
        devices = registry.component_of("devices", spec)[1]
        with _located(entry.layers.location_of("devices") / spec["name"]):
            if hasattr(devices, "check"):
                devices.check(scenario.partition.clients)


def _check_parent(
    entry: MethodEntry, parent: MethodEntry, parent_scenario: Scenario, scenario: Scenario
) -> None:
    """Raise `ConfigError` if the parent has a model or images of other inputs or clients."""
    if entry.starts:
        scenario.check_start(parent.label, parent_scenario, entry.location / "start")
    elif parent_scenario != scenario:
        problem = f"{parent.label!r} makes images for other clients than those of "
        problem += scenario.scheme.text
        advice = "an entry of the same data set and partition"
        raise entry.error("train_on", problem, advice=advice)


def _check_samples(entry: MethodEntry, scenario: Scenario, problems: ConfigProblems) -> None:
    """Collect that validation samples or samples of the server are lacking."""
    scheme = scenario.scheme.text
    if not scenario.partition.has_split("val"):
        reason, advice = f"but {scheme} has no validation samples", "a partition with val > 0"
        if len(entry.points) > 1:
            problem, more = (
                f"is a grid, {reason} to choose a point by",
                f"one point, or {advice}",
            )
            problems.errors.append(ConfigError(entry.location, problem, advice=more))
        if entry.study.scored == "best":
            problem, allowed = f"is best, {reason} to choose a round by", "last, or a val > 0"
            scored = ConfigError(entry.study_location / "scored", problem, allowed)
            problems.errors.append(scored)
        if any(point.training["early_stopping"] for point in entry.points):
            problem = f"is set, {reason} to stop by"
            problems.errors.append(entry.error("early_stopping", problem, "null, or a val > 0"))
        if entry.declared.needs_validation:
            problem = f"{entry.method.name} learns by validation samples, but {scheme} has none"
            problems.errors.append(ConfigError(entry.location, problem, advice=advice))
    if entry.declared.needs_server_data and not scenario.partition.has_split(SERVER):
        problem = f"{entry.method.name} trains on the server, but {scheme} gives it no samples"
        advice = "a partition with server > 0"
        problems.errors.append(ConfigError(entry.location, problem, advice=advice))


def _check_training(
    entry: MethodEntry, training: Values, scenario: Scenario, problems: ConfigProblems
) -> None:
    """Collect keys of cross-entropy without it, augmentation without images, large batches.

    The default batch size fits any data set.
    """
    for key, default in (("label_smoothing", 0.0), ("class_weights", "none")):
        if training[key] != default and scenario.task.name != DEFAULT:
            problem = f"is {training[key]!r}, but {scenario.dataset.text} has "
            problem += scenario.task.label_name
            allowed = f"{default}, or a data set with class labels"
            problems.errors.append(entry.error(key, problem, allowed))
    if training["augmentation"] != "none" and not scenario.has_images:
        problem = f"is {training['augmentation']}, but {scenario.dataset.text} has no images"
        problems.errors.append(entry.error("augmentation", problem, "none"))
    size, batch = scenario.size, training["batch_size"]
    if size is not None and batch > max(size, Training.batch_size):
        problem = f"is {batch}, more than the {size} samples of {scenario.dataset.text}"
        problems.errors.append(entry.error("batch_size", problem, f"1 to {size}"))


def _check_participants(entry: MethodEntry, point: Point, scenario: Scenario) -> None:
    """Raise `ConfigError` if too few clients take part in a round, as far as keys tell.

    An aggregation may need several, and so does noise behind a clip that counts clients.
    """
    added = [entry_key(key) for key, specs in point.added_components.items() if specs]
    with _located(entry.location):
        check_participation(added, Training(**point.training))
    for spec in point.added_components["asynchronous"]:
        if spec.get("size", 1) > spec.get("concurrency", math.inf):
            problem = f"is {spec['size']}, but {spec['concurrency']} clients train at once"
            location = entry.location / "asynchronous" / spec["name"] / "size"
            advice = "set a larger concurrency"
            raise ConfigError(location, problem, f"1 to {spec['concurrency']}", advice)
    clients = scenario.partition.clients
    if clients is None or scenario.partition.has_unseen_clients:
        return
    participants = Training(**point.training).participants(clients)
    for spec in point.added_components["selection"]:
        selection = registry.component_of("selection", spec)[1]
        with _located(entry.location):
            check_selection(selection, "devices" in added, clients, Training(**point.training))
    for spec in point.added_components["asynchronous"]:
        for key in ("size", "concurrency"):
            if spec.get(key, 0) > clients:
                problem = f"is {spec[key]}, but {clients} clients can take part"
                location = entry.location / "asynchronous" / spec["name"] / key
                raise ConfigError(location, problem, f"1 to {clients}")
    for spec in point.added_components["aggregation"]:
        fewest = getattr(registry.component_of("aggregation", spec)[1], "fewest_clients", 1)
        if participants < fewest:
            problem = f"needs {fewest} clients in a round with these keys, and {participants} "
            raise ConfigError(
                entry.location / "aggregation" / spec["name"],
                problem + "take part",
                advice="fewer attackers or chosen clients, or more clients in a round",
            )
    specs = point.added_components["wire"]
    filters = [registry.component_of("upload filter", spec)[1] for spec in specs]
    shares = {
        spec["name"]: upload_filter.share
        for spec, upload_filter in zip(specs, filters, strict=True)
        if getattr(upload_filter, "attacks", False)
    }
    with _located(entry.location):
        for name, share in shares.items():
            check_attackers(name, share, clients)
        check_stragglers(point.training["stragglers"], participants)
    for spec, (clip, noise) in zip(specs[:-1], itertools.pairwise(filters), strict=True):
        count_noise = getattr(clip, "count_noise", None)
        multiplier = getattr(noise, "multiplier", 0)
        if count_noise is None or not multiplier:
            continue
        with _located(entry.location):
            check_noise_on_count(spec["name"], count_noise, multiplier, participants)


@contextlib.contextmanager
def _located(location: Location) -> Iterator[None]:
    """Raise errors of the context at a location."""
    try:
        yield
    except FedloomError as error:
        raise ConfigError(location, str(error)) from None


def check_resources(
    executions: Mapping[str, Execution],
    runs: Iterable[Run],
    location: Location,
    settings: Settings,
    folder: Path,
) -> None:
    """Raise `ConfigError` for a job that no node can hold, and for processes with nothing to do.

    The latter are more than the clients that take part in a round. Where only the data can tell how
    many clients there are, the job refuses.

    Args:
        executions: How the runs of each entry are computed, by label.
        runs: The runs of a study.
        location: Location of the study.
        settings: The settings of all studies.
        folder: The config folder.
    """
    config_file = Location(os.path.relpath(folder / "config.yaml"))
    for run in runs:
        execution = executions[run.method]
        if execution.backend == "compiled" and arithmetic.of_spec(run.spec) == arithmetic.PORTABLE:
            problem = f"is compiled, but {run.title} has portable arithmetic, and the bits of a "
            problem += "compiled program depend on the compiler"
            advice = "another backend, or `training: {arithmetic: native}`"
            raise ConfigError(location / "execution" / "backend", problem, advice=advice)
        clients = run.spec["partition"].get("clients")
        slurm_partition = execution.slurm_partition
        nodes = [node for node in settings.nodes if node.slurm_partition == slurm_partition]
        shortages = [node.shortages(execution) for node in nodes]
        if shortages and all(shortages):
            nodes_text = f"Slurm partition {slurm_partition!r}"
            nodes_text = nodes_text if slurm_partition else "the default partition"
            problem = f"no node of {nodes_text} can hold a job of {run.title}, which asks for "
            problem += ", ".join(shortages[-1])
            advice = "less in its `execution`, or a node that has it"
            raise ConfigError(config_file / "nodes", problem, advice=advice)
        if execution.processes == 1 or not isinstance(clients, int):
            continue
        participants = Training(**run.spec["training"]).participants(clients)
        if execution.processes > participants:
            is_general = settings.execution.processes == execution.processes
            file_location = config_file if is_general else location
            problem = f"is {execution.processes}, but {participants} clients take part in a round "
            problem += f"of {run.title}"
            processes_location = file_location / "execution" / "processes"
            raise ConfigError(processes_location, problem, f"1 to {participants}")
