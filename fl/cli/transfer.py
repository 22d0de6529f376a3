"""Commands ``fedloom store COMMAND`` that take runs from and to others: adopt, export, import."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl.base.errors import FedloomError
from fl.base.units import quantity
from fl.cli.commands import say
from fl.cli.stores import (
    planned_runs,
    require_stored,
    results_of,
    runs_of_studies,
    store_of,
)
from fl.store import import_export
from fl.store.import_export import BUSY, CONFLICT, DAMAGED, EXISTING, NEW, Copied
from fl.store.run_record import run_of
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.plan.adoption import Candidate

MAX_RUNS = 3
"""Largest number of runs that are named for a reason."""

AddCommand = Callable[[str, Callable[[argparse.Namespace], Any], str], argparse.ArgumentParser]
"""Function that adds a command, of its name, the function that runs it, and its help."""


def add(command: AddCommand) -> None:
    """Add these commands to ``fedloom store``."""
    sub = command("adopt", _adopt, "list runs of other code that have the spec of a planned run")
    sub.add_argument("runs", nargs="*", type=run_of, help="only these runs")
    help = "store them as the planned runs, without those whose numbers have changed"
    sub.add_argument("--yes", action="store_true", help=help)
    for name, run, help in (
        ("export", _export_runs, "copy finished runs to another store, or to a new tar file"),
        ("import", _import_runs, "copy finished runs from another store or a tar file"),
    ):
        sub = command(name, run, help)
        sub.add_argument("path", metavar="PATH", type=Path, help="a folder, or a file named *.tar")
        sub.add_argument("studies", nargs="*", help="only runs of these studies")
        sub.add_argument(
            "--planned", action="store_true", help="only runs of the plan that Snakemake wrote"
        )


def _adopt(parsed: argparse.Namespace) -> int:
    from fl.plan import adoption, plan  # They import pandas, which takes time.

    store = store_of(parsed)
    require_stored(store, parsed.runs)
    members = plan.read(parsed.config, checked=False).runs
    candidates = adoption.candidates(store, members, parsed.runs)
    changed = [candidate for candidate in candidates if candidate.is_changed]
    unchanged = [candidate for candidate in candidates if not candidate.is_changed]
    say(f"{quantity(len(candidates), 'run')} of other code with the spec of a planned run")
    for line in _reason_lines("left out, as numbers have changed", changed):
        say(line)
    for line in _reason_lines("adopted" if parsed.yes else "to adopt", unchanged):
        say(line)
    if not parsed.yes:
        say("Numbers of other code may differ: compare some by `fedloom recompute RUN --anyway`")
        say("nothing was changed; --yes stores the runs to adopt as the planned runs, too")
        return 0
    adopted = [
        adoption.adopt_run(store, candidate.run, members[candidate.planned])
        for candidate in unchanged
    ]
    left_out = f", {len(changed)} left out" if changed else ""
    say(f"{quantity(sum(adopted), 'run')} adopted{left_out}")
    return int(not all(adopted) or bool(parsed.runs and changed))


def _reason_lines(state: str, candidates: Iterable[Candidate]) -> Iterator[str]:
    """Yield a line for each reason to doubt the numbers of runs, with some of the runs."""
    runs_by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        texts = dict.fromkeys(doubt.text for doubt in candidate.doubts)
        reason = "; ".join(texts) or "code that is certified now"
        runs_by_reason.setdefault(reason, []).append(candidate.run)
    for reason, runs in runs_by_reason.items():
        more = f", and {len(runs) - MAX_RUNS} more" if len(runs) > MAX_RUNS else ""
        shown = ", ".join(runs[:MAX_RUNS])
        yield f"  {quantity(len(runs), 'run')} {state}: {reason} ({shown}{more})"


def _export_runs(parsed: argparse.Namespace) -> int:
    source = store_of(parsed)
    runs = _selected_runs(parsed, source)
    if parsed.planned and (missing := planned_runs(parsed.config) - {*source.runs()}):
        count = quantity(len(missing), "run")
        problem = f"{source.root}: {count} of the plan are missing, such as {min(missing)}"
        raise FedloomError(problem, advice="train them first with `snakemake`")
    if import_export.is_tar(parsed.path):
        return _print_outcomes(import_export.write_tar(runs, source, parsed.path))
    target = Store(parsed.path)
    return _print_outcomes(import_export.copy_run(run, source, target) for run in runs)


def _import_runs(parsed: argparse.Namespace) -> int:
    target = store_of(parsed, creates=True)
    with import_export.open_source(parsed.path) as source:
        runs, results = _selected_runs(parsed, source), results_of(parsed.config)
        copies = (import_export.copy_run(run, source, target, results) for run in runs)
        return _print_outcomes(copies)


def _selected_runs(parsed: argparse.Namespace, source: Store) -> list[str]:
    """Return the finished runs of ``source`` that the command line selects."""
    runs = source.runs()
    if parsed.planned:
        runs = sorted({*runs} & planned_runs(parsed.config))
    if parsed.studies:
        runs = sorted({*runs} & runs_of_studies(parsed.config, parsed.studies))
    return runs


def _print_outcomes(moved: Iterable[Copied]) -> int:
    """Print the outcome for each run; return 1 if one is damaged or in conflict."""
    counts: Counter[str] = Counter()
    for move in moved:
        counts[move.outcome] += 1
        if move.outcome != NEW and move.outcome != EXISTING:
            say(f"{move.run} {move.outcome}" + (f": {move.reason}" if move.reason else ""))
    outcomes = (NEW, EXISTING, BUSY, CONFLICT, DAMAGED)
    say(", ".join(f"{counts[o]} {o}" for o in outcomes if counts[o]) or "no runs")
    return int(bool(counts[CONFLICT] or counts[DAMAGED]))
