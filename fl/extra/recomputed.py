"""Lines that `fedloom recompute` prints: both environments, and the largest differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fl.base.errors import FedloomError
from fl.cli.commands import aligned
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.extra.recompute import Recomputation


def matching_run(prefix: str, store: Store) -> str:
    """Return the one finished run whose id begins with ``prefix``.

    Raises:
        FedloomError: If no finished run matches, or several do.
    """
    runs = [run for run in store.runs() if run.startswith(prefix)]
    if len(runs) != 1:
        problem = (
            f"several runs match ({', '.join(runs[:5])})" if runs else "no finished run matches"
        )
        advice = f"give the id of one run in {store.root} (fedloom store ls lists them)"
        raise FedloomError(f"run {prefix!r}: {problem}", advice=advice)
    return runs[0]


def lines(comparison: Recomputation) -> Iterator[str]:
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
