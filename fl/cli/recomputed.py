"""What `fl recompute` prints: both environments side by side, and where metrics differ most."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fl.base.errors import FedloomError
from fl.cli.printing import aligned
from fl.store.store import Store

if TYPE_CHECKING:
    from fl.runner.recompute import Recomputed


def matching(wanted: str, store: Store) -> str:
    """The one finished run whose id begins so.

    Raises:
        FedloomError: Where there is none, or several.
    """
    runs = [run for run in store.runs() if run.startswith(wanted)]
    if len(runs) != 1:
        problem = f"{', '.join(runs[:5])} begin so" if runs else "begins no finished run"
        allowed = f"the beginning of one run of {store.root} (python -m fl store ls)"
        raise FedloomError(f"run {wanted!r}: {problem}. Allowed: {allowed}")
    return runs[0]


def lines(made: Recomputed) -> Iterator[str]:
    """A line for each fact about how both were computed, then one for each metric."""
    rows = [(" ", "run", f"{made.run}, stored", "here")]
    for key, (stored, here) in made.environments.items():
        mark = " " if stored == here or key in ("date", "seconds") else "*"
        rows.append((mark, key, stored, here))
    yield from aligned(rows)
    for each in made.differences:
        at = ", ".join(f"{key} {value}" for key, value in each.at.items())
        location = f": {each.stored!r}, here {each.here!r} ({at})" if each.size else ""
        yield f"largest difference of {each.metric}: {each.size:.3g}{location}"
    largest = max((each.size for each in made.differences), default=0.0)
    if not largest:
        yield "all metrics are the same, to the last digit"
    elif all(each.same for each in made.differences):
        yield "the same numbers, but for rounding"
    else:
        stored, here = made.environments["runs in the stack"]
        stack = f": in a stack of {here}, not {stored}, rounding is another, and it grows"
        yield f"other numbers{stack if stored != here else ''}"
