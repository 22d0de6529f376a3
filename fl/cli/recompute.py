"""The command ``fedloom recompute``: train a stored run again, and print what differs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base import arithmetic
from fl.base.schema import SHARES
from fl.base.units import quantity
from fl.cli.commands import add_config_option, aligned, loading, say
from fl.cli.stores import add_run_argument, find_run, readable
from fl.plan import config
from fl.store.import_export import EXACT, TOLERANCE, find_causes

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
    return int(not comparison.is_equal)


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
    yield from _verdict_lines(comparison)


def _verdict_lines(comparison: Recomputation) -> Iterator[str]:
    """Return lines that say whether results are equal, and if not, what may be the cause."""
    if not any(difference.size for difference in comparison.differences):
        yield "results are equal to the last digit"
        return
    scores = comparison.scores
    factor, unit = (100, " points") if scores.metric in SHARES else (1, "")
    mean, largest = factor * abs(scores.stored - scores.recomputed), factor * scores.largest
    yield (
        f"{scores.metric} after the last round differs by {mean:.4g}{unit} in the mean over "
        f"clients, by at most {largest:.4g}{unit} of a client; equal up to rounding: "
        f"{factor * TOLERANCE:.4g}{unit}"
    )
    causes = find_causes(*comparison.records)
    changes = ", ".join(_change(name, *values) for name, values in causes.items())
    if comparison.is_exact:
        yield f"results differ, although {EXACT}: this is a fault. Please report all these lines"
    elif causes:
        verdict = "results are equal up to rounding" if comparison.is_equal else "results differ"
        yield f"{verdict}, as they may where these differ: {changes}"
    elif comparison.is_equal:
        yield "results are equal up to rounding"
    else:
        yield "results differ, although nothing that is recorded does"


def _change(name: str, stored: str, current: str) -> str:
    """Return a difference of two computations: ``torch (2.10.0, now 2.11.0)``."""
    if name == "stack":
        stored, current = (quantity(text.count(",") + 1, "run") for text in (stored, current))
    return name if name == "code" else f"{name} ({stored or 'none'}, now {current or 'none'})"
