"""One run on several processes: what the simulation knows of them, and who gets which participants.

A simulation without a `Group` is computed by this process alone. With one, the participants of
every phase are trained and all clients are scored by the processes of the group, each its share;
`fl.train.team` is what does it. The numbers are those of one process, to rounding.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import pandas as pd

COUNT = "processes"
"""Where what is kept of a phase that several processes have begun has how many they are, [1]:
what each of them did is of use to as many alone.
"""


class Group(Protocol):
    """Processes that compute a run together."""

    @property
    def size(self) -> int:
        """How many they are."""

    def trained(
        self, phase: Any, states: Any, plans: Any, number: int, backend: str, midway: Any
    ) -> list[Any]:
        """`fl.engine.engine.trained`, by all processes."""

    def evaluated(self, simulation: Any, state: Any, round_: int) -> pd.DataFrame:
        """`fl.engine.simulate.Simulation.evaluate`, by all processes."""

    def share(self, plan: Any) -> Any:
        """A round's plan with the participants that this process itself would train, alone."""


def split(work: np.ndarray, size: int) -> list[np.ndarray]:
    """Who computes what: the rows of each of ``size`` processes, in ascending order.

    The largest piece of work left goes to the process that has least so far. The processes' sums
    then differ by one piece at most.

    Args:
        work: Of each row, [n]: steps, samples.
    """
    sums, shares = np.zeros(size), [list[int]() for _ in range(size)]
    for row in np.argsort(-work, kind="stable"):
        least = int(sums.argmin())
        shares[least].append(int(row))
        # What takes no step costs a little too.
        sums[least] += max(float(work[row]), 1.0)
    return [np.array(sorted(share), np.int64) for share in shares]
