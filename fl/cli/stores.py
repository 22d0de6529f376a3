"""Stores that commands read: the one they are asked for, and which of its runs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fl.base.errors import FedloomError
from fl.cli.commands import say
from fl.plan import config, plan_files
from fl.store.run_record import run_of
from fl.store.store import Store


def store_of(parsed: argparse.Namespace, creates: bool = False) -> Store:
    """Return the store of ``--store``, or that of the config.

    Args:
        parsed: The command line.
        creates: Whether the folder of ``--store`` may be a new one.

    Raises:
        FedloomError: If it does not exist, or cannot be read.
    """
    if parsed.store and not creates and not Path(parsed.store).is_dir():
        raise FedloomError(f"--store: {parsed.store} does not exist", "a folder of runs")
    return readable(parsed.store or plan_files.read_settings(parsed.config).store)


def results_of(folder: Path) -> Path | None:
    """Return the folder of results of a config folder; None if there is no config."""
    is_config = (folder / "config.yaml").exists()
    return Path(config.read_settings(folder).results) if is_config else None


def readable(folder: str | Path) -> Store:
    """Return the store of runs in a folder; names runs without read permission, and skips them.

    Raises:
        FedloomError: If the folder itself cannot be read.
    """
    store = Store(Path(folder))
    if not store.root.is_dir():
        return store
    if not os.access(store.root, os.R_OK | os.X_OK):
        raise FedloomError(f"{folder}: permission denied", advice="ask its owner for read access")
    for run in sorted(store.root.iterdir()):
        if run.is_dir() and not os.access(run, os.R_OK | os.X_OK):
            say(f"{run}: permission denied; the run is skipped", file=sys.stderr)
    return store


def add_run_argument(parser: argparse.ArgumentParser, addition: str = "") -> None:
    """Add the argument RUN to a command; `find_run` finds the run.

    Args:
        parser: The parser of the command.
        addition: Words at the end of the argument's help.
    """
    parser.add_argument(
        "run_prefix",
        metavar="RUN",
        type=run_of,
        help=f"a run's id, its first characters, or its folder{addition}",
    )


def find_run(
    prefix: str, runs: Collection[str], searched: str, advice: str, remarks: Sequence[str] = ()
) -> str:
    """Return the only run whose id begins with ``prefix``.

    Args:
        prefix: The first characters of a run id.
        runs: Ids of the runs.
        searched: Description of ``runs``, for the error.
        advice: How to find the id of a run, for the error.
        remarks: Sentences that may explain why a run is missing, for the error.

    Raises:
        FedloomError: If no run matches, or several do.
    """
    matching = sorted(run for run in runs if run.startswith(prefix))
    if len(matching) == 1:
        return matching[0]
    problem = f"no run ID starts with {prefix!r} (searched {searched})"
    if matching:
        problem = f"several run IDs start with {prefix!r}: {', '.join(matching[:5])}"
    raise FedloomError("; ".join((problem, *remarks)), advice=advice)


def require_stored(store: Store, runs: Iterable[str]) -> None:
    """Raise `FedloomError` for runs that a store does not have."""
    if unknown := sorted({*runs} - {*store.runs()}):
        raise FedloomError(
            f"{store.root}: has no finished run {unknown[0]!r}",
            advice="list the runs with `fedloom store ls`",
        )


def runs_of_studies(folder: Path, studies: list[str]) -> set[str]:
    """Return the runs that studies need by the current config."""
    from fl.plan import plan

    planned = plan.read(folder, studies, checked=False)
    return {*planned.runs}


def planned_runs(folder: Path) -> set[str]:
    """Return the runs of the last written plan; none if there is no plan."""
    index = plan_files.read_index(config.read_settings(folder).results)
    return index.runs if index else set()
