"""``fedloom train``: the missing runs of bundles, for Snakemake's jobs."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fl.base import arithmetic
from fl.base.errors import EXIT_LEFT, FedloomError
from fl.base.files import check_writable
from fl.cli.commands import add_config_option, loading, say
from fl.plan import config
from fl.store.store import Store

with loading():
    from fl.plan import bundle, plan_files
    from fl.runner import job_processes, slurm
    from fl.workflow import selection, submission

if TYPE_CHECKING:
    from fl.plan.bundle import Bundle
    from fl.runner.team import Team


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.add_argument(
        "specs", metavar="SPEC", nargs="+", type=Path, help="results/plan/bundles/<bundle>.json"
    )
    parser.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    parser.add_argument(
        "--job", type=Path, help="results/plan/jobs/<job>.json: train only the runs of this job"
    )
    parser.add_argument("--log", type=Path, help="its log file; every attempt keeps a copy")
    parser.set_defaults(run=_train)


def _train(parsed: argparse.Namespace) -> int:
    bundles = [bundle.read(path) for path in parsed.specs]
    if parsed.job:
        runs = cast("list[str]", plan_files.read_checked(parsed.job)["runs"])
        bundles = list(selection.parts(bundles, runs))
    store = Store(parsed.store or Path(config.read_settings(parsed.config).store))
    if job_processes.is_team_member():
        with loading():
            from fl.runner import team
        return team.run(bundles, store, partial(_train_missing, bundles, store, parsed.log))
    incomplete = [planned for planned in bundles if bundle.missing_runs(planned, store)]
    if not incomplete:
        for planned in bundles:
            logging.info("%s: all %d runs exist already", planned.title, len(planned.runs))
        return 0
    if len({planned.arithmetic for planned in incomplete}) > 1:
        problem = "SPEC: bundles of portable and of native arithmetic in one command"
        raise FedloomError(problem, advice="a command for each arithmetic")
    arithmetic.restart(incomplete[0].arithmetic)
    check_writable(store.root)
    missing = [member.run for planned in incomplete for member in planned.runs]
    if error := submission.repeated_error_in_session(store.root, missing):
        say(f"failed: not tried again: two attempts ended with {error}", file=sys.stderr)
        return 1
    log = _copy_of_log(parsed.log) if parsed.log else None
    processes = max(planned.execution.processes for planned in incomplete)
    if processes > 1:
        words = ["-P", "-m", "fl", "train", *map(str, parsed.specs), "--store", str(store.root)]
        words += ["--job", str(parsed.job)] if parsed.job else []
        return job_processes.launch(processes, [*words, *(["--log", str(log)] if log else [])])
    return _train_missing(bundles, store, log)


def _copy_of_log(log: Path) -> Path:
    """Return a second name of a log file, which stays after the next attempt removes the first."""
    copy = log.with_name(f"{log.stem}.{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{log.suffix}")
    try:
        copy.hardlink_to(log)
    except OSError:  # The file system has no hard links.
        return log
    return copy


def _train_missing(
    bundles: Sequence[Bundle], store: Store, log: Path | None, team: Team | None = None
) -> int:
    """Train missing runs and print failures; return the exit status."""
    with loading():
        from fl.runner.job import train_bundle  # It imports torch, which takes seconds.
        from fl.runner.runs import Failure, describe_failures

    def count_missing() -> int:
        return sum(len(bundle.missing_runs(planned, store)) for planned in bundles)

    missing_at_start, failed = count_missing(), list[Failure]()
    try:
        for planned in bundle.training_order(bundles, store):
            failed += train_bundle(planned, store, team, str(log or ""))
    except job_processes.Interruption as error:
        if not count_missing():  # The request came after the last run.
            return 0
        say(f"stopped: {error}", file=sys.stderr)
        # Without progress the job is not queued again, as it would be for ever.
        if (error.has_finished_round or count_missing() < missing_at_start) and slurm.requeue():
            say("the job is in Slurm's queue again", file=sys.stderr)
        return EXIT_LEFT
    for line in describe_failures(failed):
        say(f"failed: {line}", file=sys.stderr)
    return 1 if failed else 0
