"""Training the runs of a plan in this process, one bundle after another."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fl.base.errors import ConfigError, FedloomError
from fl.base.files import check_writable
from fl.data import partitioning, preparation
from fl.notebook.bar import Bar
from fl.notebook.keys import CALL
from fl.plan import jobs
from fl.plan.bundle import Bundle
from fl.plan.plan import Plan
from fl.report import make_analysis
from fl.runner.job import train_bundle
from fl.runner.leaving import Interrupted
from fl.store.layout import WEIGHTS
from fl.store.store import Store

# What fails is told by `run`; whoever wants the log configures one.
logging.getLogger("fl").addHandler(logging.NullHandler())


class Stopped(KeyboardInterrupt):
    """Training was interrupted, and what was done is kept."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def train(plan: Plan, bundles: Mapping[str, Bundle], keep_weights: bool, shown: bool) -> list[str]:
    """Train what the store lacks, in the order in which runs start from each other.

    Args:
        keep_weights: Whether runs that are trained now keep their final weights.
        shown: Whether there is a progress bar.

    Returns:
        A line for each run that failed.

    Raises:
        Stopped: On Ctrl-C.
        FedloomError: If data or the store cannot be used.
    """
    store, results = Store(Path(plan.settings.store)), Path(plan.settings.results)
    lacking = {name: jobs.missing_members(bundle, store) for name, bundle in bundles.items()}
    lacking = {name: members for name, members in lacking.items() if members}
    if lacking:
        check_writable(store.root)
        _check_processes([bundles[name] for name in lacking])
    rounds = {
        name: sum(member.spec["training"]["rounds"] for member in members)
        for name, members in lacking.items()
    }
    failed: list[str] = []
    bar = Bar(sum(rounds.values()), shown and bool(lacking))
    try:
        with _threads_as_they_were():
            for bundle in jobs.training_order([bundles[name] for name in lacking], store):
                bar.say(f"preparing {bundle.title}")
                _make_data(plan, bundle)
                wanted = {member.run for member in lacking[bundle.bundle]} if keep_weights else ()
                kept = [
                    replace(member, keep=[*{*member.keep, WEIGHTS}])
                    if member.run in wanted
                    else member
                    for member in bundle.runs
                ]
                failed += train_bundle(replace(bundle, runs=kept), store, showing=bar.showing)
                bar.passed(rounds[bundle.bundle])
        for name, planned in plan.analyses.items():
            bar.say(f"analysis {name}")
            make_analysis.make(planned.to_json(), results, store.root)
    except (Interrupted, KeyboardInterrupt):
        remedy = "the same call goes on from the last checkpoint"
        raise Stopped(
            f"stopped; what is finished or in a checkpoint is kept, and {remedy}"
        ) from None
    finally:
        bar.close()
    return failed


def _check_processes(bundles: list[Bundle]) -> None:
    most = max(bundle.execution.processes for bundle in bundles)
    if most > 1:
        problem = f"is {most}, and a call trains in its own process"
        raise ConfigError(CALL / "execution" / "processes", problem, "1; or a study in config/")


def _make_data(plan: Plan, bundle: Bundle) -> None:
    """The data set and the partition that a bundle reads, made if they are not there."""
    planned, data = plan.partitions[bundle.partition], Path(bundle.data)
    spec = planned.spec
    supply = preparation.source_policy(spec, bundle.sources, bundle.lock)
    preparation.prepare_dataset(spec, data, supply)
    partitioning.make_partition(planned.scheme, spec, data, Path(bundle.results), supply)


@contextlib.contextmanager
def _threads_as_they_were() -> Iterator[None]:
    """Training sets how many threads PyTorch has; the rest of a notebook has its own again."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def check(failed: list[str], plan: Plan) -> None:
    """Refuse (`FedloomError`) to go on where no run at all is there."""
    store = Store(Path(plan.settings.store))
    runs = {run.run for study in plan.studies.values() for run in study.runs}
    if failed and not any(map(store.has, runs)):
        raise FedloomError("no run came to its end:\n" + "\n".join(failed))
