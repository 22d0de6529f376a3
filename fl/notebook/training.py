"""Training of the runs of a plan, one bundle after another, each with its arithmetic.

That is in this process if it has the arithmetic, else in another one (`fl.notebook.worker`).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fl.base import plugins
from fl.base.arithmetic import PORTABLE
from fl.base.errors import ConfigError, FedloomError
from fl.base.files import check_writable
from fl.base.units import first_of
from fl.data import partitioning, preparation
from fl.notebook import worker
from fl.notebook.display import ProgressBar, warn
from fl.notebook.keys import CALL
from fl.plan.bundle import Bundle, missing_runs, training_order
from fl.plan.config import Settings
from fl.plan.plan import Plan, supply
from fl.plan.study_plan import StudyPlan, few_units_note
from fl.report import analysis_results, partitions
from fl.runner.job import train_bundle
from fl.runner.job_processes import Interruption
from fl.runner.runs import Failure, describe_failures
from fl.store.run_record import WEIGHTS
from fl.store.store import Store

# `run` reports failures; users who want the log configure a handler.
logging.getLogger("fl").addHandler(logging.NullHandler())


class TrainingInterrupted(KeyboardInterrupt):
    """Interruption of training; finished runs and checkpoints are kept."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def train(
    plan: Plan, bundles: Mapping[str, Bundle], keep_weights: bool, progress: bool
) -> list[Failure]:
    """Train missing runs, in the order in which runs start from each other.

    The data of all runs are made first, so that errors and warnings of them come at once.

    Args:
        plan: The plan.
        bundles: Its bundles.
        keep_weights: Whether final weights of runs that are trained now are stored.
        progress: Whether to show a progress bar.

    Returns:
        The failed runs.

    Raises:
        TrainingInterrupted: On Ctrl-C.
        FedloomError: If data or the store cannot be used.
    """
    store, results = Store(Path(plan.settings.store)), Path(plan.settings.results)
    supply(
        {member.run: member for bundle in bundles.values() for member in bundle.runs}, plan.settings
    )
    missing = {name: missing_runs(bundle, store) for name, bundle in bundles.items()}
    missing = {name: members for name, members in missing.items() if members}
    if missing:
        check_writable(store.root)
        _check_processes([bundles[name] for name in missing])
    rounds = {
        member.run: member.spec["training"]["rounds"]
        for members in missing.values()
        for member in members
    }
    failed: list[Failure] = []
    bar = ProgressBar(sum(rounds.values()), progress and bool(missing))
    try:
        incomplete = [bundles[name] for name in missing]
        worker.call(PORTABLE, _make_data, incomplete, bar=bar)
        for study in plan.studies.values():
            for note in partitions.notes(results, study):
                warn(note)
            if missing and (note := few_units_note(study)):
                warn(note)
        with restored_settings():
            for bundle in training_order(incomplete, store):
                members = [
                    replace(member, keep=[*{*member.keep, WEIGHTS}])
                    if keep_weights and member.run in rounds
                    else member
                    for member in bundle.runs
                ]
                with_weights = replace(bundle, runs=members)
                failed += worker.call(
                    bundle.arithmetic, _train_bundle, with_weights, store, bar=bar
                )
                bar.add_rounds(sum(rounds.get(member.run, 0) for member in bundle.runs))
        for study in plan.studies.values():
            if study.analyses:
                worker.call(PORTABLE, _write_analyses, study, plan.settings, bar=bar)
    except (Interruption, KeyboardInterrupt):
        raise TrainingInterrupted(
            "stopped; finished runs and checkpoints are kept, and the same call continues"
        ) from None
    finally:
        bar.close()
    return failed


def _check_processes(bundles: list[Bundle]) -> None:
    processes = max(bundle.execution.processes for bundle in bundles)
    if processes > 1:
        problem = f"is {processes}, but a call trains in its own process"
        advice = "use 1, or write the study in config/studies"
        raise ConfigError(CALL / "execution" / "processes", problem, advice=advice)


def _train_bundle(bundle: Bundle, store: Store, bar: ProgressBar) -> list[Failure]:
    """Train the missing runs of a bundle; return the failed ones."""
    return train_bundle(bundle, store, make_display=bar.start_runs)


def _write_analyses(study: StudyPlan, settings: Settings, bar: ProgressBar) -> None:
    """Write the analyses of a study."""
    plugins.use(settings.plugins, CALL / "plugins")
    for planned in study.analyses:
        bar.describe(f"analysis {planned.analysis}")
        analysis_results.write_analysis(
            planned, study, Path(settings.results), Path(settings.store)
        )


def _make_data(bundles: list[Bundle], bar: ProgressBar) -> None:
    """Make the data sets and the partitions of bundles, if they do not exist."""
    for bundle in {bundle.partition: bundle for bundle in bundles}.values():
        bar.describe(f"preparing {bundle.title}")
        plugins.use(bundle.plugins, CALL / "plugins")
        spec, data = bundle.runs[0].spec, Path(bundle.data)
        dataset, scheme = spec["dataset"], spec["partition"]
        supply = preparation.source_policy(dataset, bundle.sources, bundle.lock)
        preparation.prepare_dataset(dataset, data, supply)
        partitioning.make_partition(scheme, dataset, data, Path(bundle.results), supply)


@contextlib.contextmanager
def restored_settings() -> Iterator[None]:
    """Restore at the end of the context how PyTorch computes in this process.

    Training changes the number of threads and, where there is a GPU, what
    `fl.runner.process_settings.prepare_gpu` sets.
    """
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    is_strict = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(is_strict, warn_only=warns)
        torch.backends.cudnn.allow_tf32 = tf32


def unstackable(plan: Plan) -> list[str]:
    """Return a line for each reason for which missing runs are trained client by client."""
    store = Store(Path(plan.settings.store))
    titles: dict[str, list[str]] = {}
    for bundle in plan.bundles.values():
        if bundle.unstackable and missing_runs(bundle, store):
            titles.setdefault(bundle.unstackable, []).append(bundle.title)
    return [
        f"{first_of(names, 'bundle')}: clients are trained one after another, which is slower, "
        f"because they cannot be stacked: {reason}"
        for reason, names in titles.items()
    ]


def check(failed: list[Failure], plan: Plan) -> None:
    """Check that at least one run of the plan is finished.

    Args:
        failed: The failed runs.
        plan: The plan.

    Raises:
        FedloomError: If no run is finished.
    """
    store = Store(Path(plan.settings.store))
    runs = {run.run for study in plan.studies.values() for run in study.runs}
    if failed and not any(map(store.has, runs)):
        raise FedloomError("all runs failed:\n" + "\n".join(describe_failures(failed)))
