"""``fedloom plan``: the planned runs, which of them exist, and the time that the rest will take."""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.hashes import digest
from fl.base.units import duration, quantity, values_text
from fl.cli.commands import add_config_option, add_words, say
from fl.cli.stores import readable
from fl.plan import analyses, continuation, overrides
from fl.plan import plan as plans
from fl.plan.bundle import Bundle, Run, missing_runs
from fl.plan.continuation import Source, Sources
from fl.plan.plan import Plan
from fl.plan.study_plan import StudyPlan, few_units_note
from fl.runner import environment
from fl.store.store import Store
from fl.workflow import jobs, selection
from fl.workflow.estimate import Rates, client_steps, large_metrics
from fl.workflow.jobs import Job

if TYPE_CHECKING:
    from fl.base.specs import Spec

MAX_LINES = 12
"""Lines for methods and settings of a study; of more, there is one for each method."""

WEIGHTS = "final weights or predictions that are needed now"
"""Files that a stored run may lack: an analysis, another run, or the study needs them."""

ARCHIVE = "archive"
"""Folder of the results in which DVC keeps runs, see ``dvc.yaml``."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    add_words(parser, "studies, also as a,b (default: those in config.yaml)")
    parser.add_argument("--runs", action="store_true", help="list every draw and run")
    parser.add_argument(
        "--write", action="store_true", help="write results/plan, as Snakemake does too"
    )
    selection.add_option(parser)
    parser.set_defaults(run=_plan)


def _plan(parsed: argparse.Namespace) -> None:
    names = overrides.resolve(parsed.config, parsed.words)
    if parsed.write:
        current_plan = plans.make(parsed.config, names, to_write=True)
        plans.write(current_plan)
    else:
        current_plan = plans.read(parsed.config, names)
    if parsed.only:
        current_plan = selection.select(current_plan, selection.parse(parsed.only))
    plans.supply(current_plan.runs, current_plan.settings)
    for line in lines(current_plan, readable(current_plan.settings.store), parsed.runs):
        say(line)


def lines(plan: Plan, store: Store, every_run: bool = False) -> Iterator[str]:
    """Return lines on the methods and settings of each study (`_groups`), then the totals.

    The totals count a run once that two studies share.
    """
    missing_by_bundle = {name: missing_runs(bundle, store) for name, bundle in plan.bundles.items()}
    incomplete = {name: plan.bundles[name] for name, runs in missing_by_bundle.items() if runs}
    missing = [run for runs in missing_by_bundle.values() for run in runs]
    to_train = {run.run for run in missing}
    unstored = {run for run in to_train if not store.has(run)}
    repeated = to_train - unstored
    damages = {
        run: lines
        for run in plan.runs
        if run not in to_train and (lines := store.verify(run, hashed=False))
    }
    sources: dict[str, Source] = {}
    if missing:
        stored_sources = Sources(store)
        for bundle, runs in missing_by_bundle.items():
            keeps_state = plan.bundles[bundle].execution.keep_state
            sources |= stored_sources.of_runs(runs, keeps_state)
    for name, study in plan.studies.items():
        yield f"{name}: {study.title}"
        groups = _groups(study, every_run)
        for (method, setting), runs in groups.items():
            stored = sum(run.run not in unstored and run.run not in damages for run in runs)
            n_incomplete = sum(run.run in repeated for run in runs)
            note = f" ({n_incomplete} without {WEIGHTS})" if n_incomplete else ""
            counts = f"{stored:4} of {len(runs):4} runs stored{note}"
            yield f"  {method:16} {counts}   {setting}"
            yield from (f"    {line}" for line in continuation.source_lines(runs, sources))
            if every_run:
                yield from (f"    {_run_line(run, to_train, damages)}" for run in runs)
        yield from (
            f"  The head of {model} is {_layers(head)}." for model, head in study.heads.items()
        )
        for analysis in study.analyses:
            exists = analyses.exists(Path(plan.settings.results), analysis.analysis)
            state = "exists" if exists else "will be made"
            yield f"  analysis {analysis.title or analysis.text}: {state}   {analysis.analysis}"
        yield from (f"  {note}" for note in [*study.notes, few_units_note(study)] if note)
    note = f", {len(repeated)} of them again, for {WEIGHTS}" if repeated else ""
    counts = f"{quantity(len(plan.runs), 'run')} in {quantity(len(plan.bundles), 'bundle')}"
    yield f"{counts}; {len(missing)} to train{note}"
    archive = Store(Path(plan.settings.results) / ARCHIVE)
    if archived := sum(map(archive.has, unstored)):
        yield (
            f"{archived} of them need no training, as they are in {archive.root}. "
            f"Try: fedloom store import {archive.root}"
        )
    yield from filter(None, [environment.uncertified_note()])
    yield from (line for lines in damages.values() for line in lines)
    if damages:
        yield (
            f"{quantity(len(damages), 'run')} damaged, and not trained again while in the store. "
            "Try: fedloom store verify --remove"
        )
    if missing:
        rates = Rates(store)
        outdated = sum(m.run not in repeated and digest(m.spec) in rates.specs for m in missing)
        if outdated:
            yield (
                f"the store has {quantity(outdated, 'run')} with the same settings, but of another "
                "version of code or data. Try: fedloom explain RUN"
            )
        yield from rates.remarks
        yield _cost([_remaining_spec(member, sources) for member in missing], rates)
        yield from _job_lines(plan, incomplete, store, rates)
        yield from _large_metrics_line(incomplete.values())
        yield from continuation.room_lines(incomplete.values(), store)


def _remaining_spec(run: Run, sources: Mapping[str, Source]) -> Spec:
    """Return the spec of a run with the number of rounds that are still to be trained."""
    source = sources.get(run.run)
    if source is None or source.problem:
        return run.spec
    rounds = run.spec["training"]["rounds"] - source.rounds
    return {**run.spec, "training": {**run.spec["training"], "rounds": rounds}}


def _groups(study: StudyPlan, every_run: bool) -> dict[tuple[str, str], list[Run]]:
    """Return runs by method and the text of their setting.

    Draws of a setting are counted, and more than `MAX_LINES` groups become a group for each method,
    unless every run is listed.
    """
    by_setting: dict[tuple[str, str], list[Run]] = {}
    by_method: dict[tuple[str, str], list[Run]] = {}
    titles = {setting.id: setting.title.replace(" · ", " / ") for setting in study.settings}
    for setting, title in titles.items():
        draws = {run.draw for run in study.runs if run.setting == setting}
        titles[setting] = f"{title}, {len(draws)} draws" if len(draws) > 1 else title
    whole = f"{len(titles)} settings, see --runs"
    for run in study.runs:
        drawn = study.setting_title(run.dataset, run.partition, run.model)
        text = drawn if every_run else titles[run.setting]
        by_setting.setdefault((run.method, text), []).append(run)
        by_method.setdefault((run.method, whole), []).append(run)
    is_long = len(by_setting) > MAX_LINES and len(titles) > 1 and not every_run
    return by_method if is_long else by_setting


def _layers(names: str) -> str:
    """Return layers, whose names are joined by commas, in words."""
    return f"its {'layers' if ',' in names else 'layer'} {names}"


def _large_metrics_line(bundles: Iterable[Bundle]) -> Iterator[str]:
    """Return a line if the metrics of a bundle need much of its job's memory."""
    large = [(sizes, bundle) for bundle in bundles if (sizes := large_metrics(bundle))]
    if large:
        (rows, mebibytes), bundle = max(large, key=lambda pair: pair[0])
        yield (
            f"{bundle.title}: about {rows:,} rows of metrics need up to {mebibytes:,} MiB in "
            f"addition to memory_mb: {bundle.execution.memory_mb}. Try: training: "
            "{evaluate_clients: 1000} or a larger evaluate_every"
        )


def _has_slurm_profile() -> bool:
    """Whether Snakemake finds the profile here: a clone's, a workspace's or the user's."""
    folders = (Path(), Path("profiles"), Path("workflow/profiles"))
    users = Path.home() / ".config" / "snakemake"
    return any((folder / "slurm").is_dir() for folder in (*folders, users))


def _job_lines(
    plan: Plan, incomplete: dict[str, Bundle], store: Store, rates: Rates
) -> Iterator[str]:
    """Return the number of jobs on this machine and on a cluster, and what the latter ask for."""
    cores = len(os.sched_getaffinity(0))
    readers = jobs.readers({name: study.bundles for name, study in plan.studies.items()})
    local = list(jobs.form_jobs(incomplete, store, jobs.Machine(cores, 1), readers))
    nodes = plan.settings.nodes
    of_cluster = list(jobs.form_jobs(incomplete, store, merge=True, nodes=nodes))
    count = len(of_cluster)
    text = (
        f"{quantity(len(local), 'job')} on {quantity(cores, 'core')} of this machine (snakemake), "
    )
    text += f"or {quantity(count, 'cluster job')} (snakemake --profile slurm"
    text += ")" if _has_slurm_profile() else ", after fedloom init --slurm)"
    if count > 1 and any(math.isinf(jobs.seconds(b, rates, store)) for b in incomplete.values()):
        text += (
            "; fewer cluster jobs if you set the expected time of runs, `execution: run_minutes`"
        )
    requests = Counter(map(_request, of_cluster))
    yield text
    yield f"Cluster jobs ask for {'; '.join(f'{t} ({n})' for t, n in sorted(requests.items()))}"


def _request(job: Job) -> str:
    """Return what a cluster job asks for: ``4,000 MiB, 240 min, 1 core``."""
    execution = job.execution
    cards = jobs.gpus(execution)
    texts = [
        f"{jobs.memory(job):,} MiB",
        f"{execution.minutes} min",
        quantity(jobs.threads(execution), "core"),
        quantity(cards, "GPU") if cards else "",
        f"partition {execution.slurm_partition}" if execution.slurm_partition else "",
    ]
    return ", ".join(filter(None, texts))


def _run_line(run: Run, to_train: Collection[str], damaged: Collection[str]) -> str:
    state = "to train" if run.run in to_train else "stored"
    state = "damaged" if run.run in damaged else state
    return f"{run.run}  seed {run.seed:<6} {state:9} {values_text(run.point)}".rstrip()


def _cost(specs: list[Spec], rates: Rates) -> str:
    steps = sum(client_steps(spec) for spec in specs)
    seconds = rates.seconds(specs)
    if seconds is None:
        time = "Time cannot be estimated before a similar run has finished."
    else:
        about = "less than a second" if seconds < 1 else f"about {duration(seconds)}"
        time = f"Time: {about} one after another, by the speed of stored runs, and "
        time += "some seconds for the start of each job."
    return f"About {steps:,} local training steps remain (for each pass of a method). {time}"
