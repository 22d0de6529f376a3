"""One run on several processes: each trains its share of the clients of a phase, and scores its
share in evaluation; the answers of all are then known to all.

All processes run the same rounds on the same state, and differ in their share alone. A simulation
without a `Team` is computed by this process. The numbers are those of one process, to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from fl.base.schema import UNSEEN
from fl.engine.client_data import ClientData
from fl.engine.state import Answers, Roster, Team

SPLITS = ("val", "test", UNSEEN)


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
        # A client without a step costs a little too.
        sums[least] += max(float(work[row]), 1.0)
    return [np.array(sorted(share), np.int64) for share in shares]


@dataclass(frozen=True)
class Deal:
    """The participants of a phase, dealt to the processes by their steps.

    Attributes:
        rows: By process and run, the rows of its participants in the run's roster.
    """

    team: Team
    rosters: Sequence[Roster]
    rows: list[list[np.ndarray]]

    @classmethod
    def of(cls, team: Team, rosters: Sequence[Roster]) -> Deal:
        """The participants of several runs, all of them dealt together."""
        work = np.concatenate([roster.steps() for roster in rosters])
        ends = np.cumsum([0, *(len(roster.clients) for roster in rosters)])
        rows = [
            [share[(share >= begin) & (share < end)] - begin for begin, end in pairwise(ends)]
            for share in split(work, team.size)
        ]
        return cls(team, rosters, rows)

    def mine(self) -> list[Roster]:
        """By run, those whom this process trains."""
        pairs = zip(self.rosters, self.rows[self.team.rank], strict=True)
        return [roster.take(rows) for roster, rows in pairs]

    def gathered(self, answers: Sequence[Answers], averaging: bool) -> list[Answers]:
        """By run, the answers of the participants of all processes, in the order of its roster.

        Args:
            answers: Of the participants of this process.
            averaging: Whether each process has averaged its uploads. The order of these means
                nothing.
        """
        by_process = self.team.exchanged([answer.joined() for answer in answers])
        return [
            Answers.merged(
                [given[run] for given in by_process if given[run] is not None],
                np.argsort(np.concatenate([rows[run] for rows in self.rows])),
                roster.n.device,
                averaging,
            )
            for run, roster in enumerate(self.rosters)
        ]


def scoring(team: Team, data: ClientData) -> np.ndarray:
    """The clients whose models this process scores, dealt by their samples."""
    samples = np.sum([data.sizes(name) for name in SPLITS], axis=0)
    return split(samples, team.size)[team.rank]


def in_order(
    tables: Sequence[pd.DataFrame], stages: Sequence[str], modality: np.ndarray | None
) -> pd.DataFrame:
    """The rows of all processes, as one has them: by modality, stage, split and client.

    Args:
        stages: In their order.
        modality: Of every client, where rows come by it.
    """
    rows = pd.concat(tables, ignore_index=True)
    keys = [
        rows["client"].to_numpy(),
        rows["split"].map(SPLITS.index).to_numpy(),
        rows["stage"].map(stages.index).to_numpy(),
        np.zeros(len(rows)) if modality is None else modality[rows["client"]],
    ]
    ordered: pd.DataFrame = rows.iloc[np.lexsort(keys)]
    return ordered.reset_index(drop=True)
