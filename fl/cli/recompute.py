"""The command ``fedloom recompute``: train a stored run again, and print what differs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base import arithmetic
from fl.cli.commands import add_config_option, aligned, loading, say
from fl.cli.stores import add_run_argument, find_run, readable
from fl.plan import config

if TYPE_CHECKING:
    from fl.runner.recompute import Recomputation


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    add_run_argument(parser)
    parser.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    parser.add_argument(
        "--anyway", action="store_true", help="even if another version of the code trained it"
    )
    parser.set_defaults(run=_recompute)


def _recompute(parsed: argparse.Namespace) -> int:
    settings = config.read_settings(parsed.config)
    store = readable(parsed.store or settings.store)
    runs = store.runs()
    searched, advice = f"{len(runs)} runs in {store.root}", "list runs with `fedloom store ls`"
    run = find_run(parsed.run_prefix, runs, searched, advice)
    arithmetic.restart(arithmetic.of_spec(store.record(run)["spec"]))
    with loading():
        from fl.data.download import LOCK_FILE as LOCK
        from fl.runner import recompute
    comparison = recompute.recompute(run, store, settings, parsed.config / LOCK, parsed.anyway)
    for line in comparison_lines(comparison):
        say(line)
    return int(not all(difference.is_equal for difference in comparison.differences))


def comparison_lines(comparison: Recomputation) -> Iterator[str]:
    """Return a line for each property of both environments, then one for each metric."""
    rows = [(" ", "run", f"{comparison.run}, stored", "now")]
    for key, (stored, current) in comparison.environments.items():
        mark = " " if stored == current or key in ("date", "seconds") else "*"
        rows.append((mark, key, stored, current))
    yield from aligned(rows)
    for difference in comparison.differences:
        row = ", ".join(f"{key} {value}" for key, value in difference.row.items())
        values = f"stored {difference.stored!r}, now {difference.recomputed!r}"
        detail = f": {values} ({row})" if difference.size else ""
        yield f"largest difference of {difference.metric}: {difference.size:.3g}{detail}"
    largest = max((difference.size for difference in comparison.differences), default=0.0)
    if not largest:
        yield "results are equal to the last digit"
    elif all(difference.is_equal for difference in comparison.differences):
        yield "results are equal up to rounding"
    else:
        stored, current = comparison.environments["runs in the stack"]
        cause = (
            f": the run was trained in a stack of {stored} runs, now in a stack of {current}, "
            "which changes rounding"
        )
        yield f"results differ{cause if stored != current else ''}"
