"""The command ``fedloom recompute``: train a stored run again, and print what differs.

With ``--rounding N`` it also measures how far rounding alone moves the run, or the results of a
whole study.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base import arithmetic, fields
from fl.base.errors import FedloomError, Location
from fl.base.fields import Index
from fl.base.schema import SHARES
from fl.base.units import quantity
from fl.cli.commands import add_config_option, aligned, loading, say, warnings_as_lines
from fl.cli.stores import add_run_argument, find_run, readable
from fl.plan import config, study_files
from fl.plan.config import Settings
from fl.store.import_export import EXACT, TOLERANCE, find_causes
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.runner.recompute import Recomputation


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command."""
    add_config_option(parser)
    add_run_argument(parser, "; with --rounding, also a study")
    parser.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
    parser.add_argument(
        "--anyway", action="store_true", help="even if another version of the code trained it"
    )
    parser.add_argument(
        "--rounding",
        type=int,
        default=0,
        metavar="N",
        help="train N times with other last bits, to see how far rounding alone moves the results",
    )
    parser.set_defaults(run=_recompute)


def _recompute(parsed: argparse.Namespace) -> int:
    fields.value(Index, parsed.rounding, Location("--rounding"))
    if parsed.run_prefix in study_files.files(parsed.config):
        return _measure_rounding(parsed)
    settings = config.read_settings(parsed.config)
    store = readable(parsed.store or settings.store)
    runs = store.runs()
    searched, advice = f"{len(runs)} runs in {store.root}", "list runs with `fedloom store ls`"
    run = find_run(parsed.run_prefix, runs, searched, advice)
    arithmetic.restart(arithmetic.of_spec(store.record(run)["spec"]))
    with loading():
        from fl.data.download import LOCK_FILE as LOCK
        from fl.runner import recompute
    comparison = recompute.recompute(
        run, store, settings, parsed.config / LOCK, parsed.anyway, parsed.rounding
    )
    for line in comparison_lines(comparison):
        say(line)
    if any(difference.size for difference in comparison.differences):
        for line in _study_lines(comparison, settings, store, parsed.config):
            say(line)
    return int(not (comparison.is_equal or comparison.is_within_rounding))


def _measure_rounding(parsed: argparse.Namespace) -> int:
    """Print how far rounding alone moves the results of a study."""
    if not parsed.rounding:
        problem = f"{parsed.run_prefix}: is a study, of which only rounding is measured"
        raise FedloomError(problem, "a run", "--rounding 3")
    with loading():
        from fl.notebook.repetitions import repetitions
        from fl.report import rounding
    with warnings_as_lines():
        facts, repeated = repetitions(parsed.run_prefix, parsed.rounding, parsed.config)
    for line in rounding.lines(facts, repeated):
        say(line)
    return 0


def _study_lines(
    comparison: Recomputation, settings: Settings, store: Store, folder: Path
) -> Iterator[str]:
    """Yield a line for each study of the config that has the run: whether verdicts change."""
    from fl.plan import plan
    from fl.report import rounding
    from fl.report.facts import gather

    if not settings.studies:
        return
    try:
        studies = plan.read(folder, list(settings.studies), checked=False).studies
        for name, study in studies.items():
            if comparison.run in {run.run for run in study.runs}:
                results = Path(settings.results)
                facts = gather(name, results, store.root, study, writes_tables=False)
                recomputed = rounding.with_metrics(facts, comparison.run, comparison.metrics)
                verdicts = "nothing is compared"
                if not facts.claims.empty:
                    verdicts = rounding.changed_verdicts(facts, recomputed)
                yield f"{name} with this run: {verdicts}"
    except FedloomError as error:
        yield f"verdicts are not compared: {error}"


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
    rounding = "how far rounding alone moves it is not stored; --rounding 3 measures it"
    if changes := comparison.rounding:
        rounding = f"rounding alone moves it by up to {factor * max(changes):.4g}{unit}"
        rounding += f", in {quantity(len(changes), 'repetition')}"
    yield (
        f"{scores.metric} after the last round differs by {mean:.4g}{unit} in the mean over "
        f"clients ({rounding}), by at most {largest:.4g}{unit} of a client; equal up to rounding: "
        f"{factor * TOLERANCE:.4g}{unit}"
    )
    causes = find_causes(*comparison.records)
    differences = ", ".join(_change(name, *values) for name, values in causes.items())
    if comparison.is_exact:
        yield f"results differ, although {EXACT}: this is a fault. Please report all these lines"
    elif causes:
        yield f"{_difference_text(comparison)}, as they may where these differ: {differences}"
    elif comparison.is_equal or comparison.is_within_rounding:
        yield _difference_text(comparison)
    else:
        yield "results differ, although nothing that is recorded does"


def _difference_text(comparison: Recomputation) -> str:
    """Return a sentence on the size of the differences."""
    if comparison.is_equal:
        return "results are equal up to rounding"
    is_within = comparison.is_within_rounding
    return f"results differ{' no further than rounding moves them' if is_within else ''}"


def _change(name: str, stored: str, current: str) -> str:
    """Return a difference of two computations: ``torch (2.10.0, now 2.11.0)``."""
    if name == "stack":
        stored, current = (quantity(text.count(",") + 1, "run") for text in (stored, current))
    return name if name == "code" else f"{name} ({stored or 'none'}, now {current or 'none'})"
