"""One run on several processes, which divide clients among them.

Each process trains its share of the clients of a phase and scores its share in evaluation. Then all
processes exchange the results. All processes run the same rounds on the same state. The results
equal those of one process to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from fl.base.schema import UNSEEN
from fl.engine.client_data import ClientData
from fl.engine.state import PhaseResults, Roster, Team

SCORED_SPLITS = ("val", "test", UNSEEN)
"""The splits that evaluation scores."""


def divide_work(work: np.ndarray, size: int) -> list[np.ndarray]:
    """Divide rows among processes.

    The largest remaining row goes to the process with the smallest sum so far. So the sums of the
    processes differ by at most the work of one row.

    Args:
        work: Work of each row, [n]: steps or samples.
        size: Number of processes.

    Returns:
        The rows of each process, in ascending order.
    """
    sums, shares = np.zeros(size), [list[int]() for _ in range(size)]
    for row in np.argsort(-work, kind="stable"):
        process = int(sums.argmin())
        shares[process].append(int(row))
        # A client without steps takes some time, too.
        sums[process] += max(float(work[row]), 1.0)
    return [np.array(sorted(share), np.int64) for share in shares]


@dataclass(frozen=True)
class WorkDivision:
    """The participants of a phase, divided among processes by their steps.

    Attributes:
        team: The processes.
        rosters: The participants of each run.
        rows: By process and run, the rows of its participants in the run's roster.
    """

    team: Team
    rosters: Sequence[Roster]
    rows: list[list[np.ndarray]]

    @classmethod
    def from_rosters(cls, team: Team, rosters: Sequence[Roster]) -> WorkDivision:
        """Divide the participants of several runs together."""
        work = np.concatenate([roster.steps() for roster in rosters])
        ends = np.cumsum([0, *(len(roster.clients) for roster in rosters)])
        rows = [
            [share[(share >= begin) & (share < end)] - begin for begin, end in pairwise(ends)]
            for share in divide_work(work, team.size)
        ]
        return cls(team, rosters, rows)

    def local_rosters(self) -> list[Roster]:
        """Return for each run the participants that this process trains."""
        pairs = zip(self.rosters, self.rows[self.team.rank], strict=True)
        return [roster.take(rows) for roster, rows in pairs]

    def gather(self, results: Sequence[PhaseResults], averaging: bool) -> list[PhaseResults]:
        """Gather the results of all processes.

        Args:
            results: By run, the results of this process.
            averaging: Whether each process has averaged its uploads, so that their order has no
                meaning.

        Returns:
            By run, the results of all participants, in the order of its roster.
        """
        by_process = self.team.exchange([result.concatenate() for result in results])
        return [
            PhaseResults.merge(
                [trees_by_run[run] for trees_by_run in by_process if trees_by_run[run] is not None],
                np.argsort(np.concatenate([rows[run] for rows in self.rows])),
                roster.n.device,
                averaging,
            )
            for run, roster in enumerate(self.rosters)
        ]


def clients_to_score(team: Team, data: ClientData) -> np.ndarray:
    """Return the clients that this process scores; they are divided by their samples."""
    samples = np.sum([data.sizes(name) for name in SCORED_SPLITS], axis=0)
    return divide_work(samples, team.size)[team.rank]


def sort_rows(
    tables: Sequence[pd.DataFrame], stages: Sequence[str], modality: np.ndarray | None
) -> pd.DataFrame:
    """Sort the rows of all processes as one process has them.

    Args:
        tables: Metrics of each process.
        stages: The stages, in their order.
        modality: Modality of every client; None if rows are not ordered by it.

    Returns:
        All rows, by modality, stage, split and client.
    """
    rows = pd.concat(tables, ignore_index=True)
    keys = [
        rows["client"].to_numpy(),
        rows["split"].map(SCORED_SPLITS.index).to_numpy(),
        rows["stage"].map(stages.index).to_numpy(),
        np.zeros(len(rows)) if modality is None else modality[rows["client"]],
    ]
    ordered: pd.DataFrame = rows.iloc[np.lexsort(keys)]
    return ordered.reset_index(drop=True)
