"""One run on several processes, which divide clients among them.

Each process trains its share of the clients of a phase and scores its share in evaluation. Then all
processes exchange the results. All processes run the same rounds on the same state. The results
equal those of one process to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import torch

from fl.api import trees
from fl.api.trees import Tree
from fl.engine.client_data import ClientData
from fl.engine.evaluate import SCORED_SPLITS
from fl.engine.state import Division, PhaseResults, PhaseSchedule


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


class ProcessDivision(Division):
    """Divides clients among processes, by their steps or samples.

    Args:
        rank: Number of this process, from 0.
        size: Number of processes.
        exchange: Function that sends a value to all processes, and returns the values of all by
            rank; every process calls it at the same point.
    """

    def __init__(self, rank: int, size: int, exchange: Callable[[Any], list[Any]]) -> None:
        self._rank, self._size, self._exchange = rank, size, exchange

    def own_participants(self, schedules: Sequence[PhaseSchedule]) -> Sequence[PhaseSchedule]:
        """Return for each run the participants that this process trains."""
        own_rows = self._rows(schedules)[self._rank]
        return [schedule.take(rows) for schedule, rows in zip(schedules, own_rows, strict=True)]

    def _rows(self, schedules: Sequence[PhaseSchedule]) -> list[list[np.ndarray]]:
        """Return by process and run the rows of its participants in the run's schedule."""
        work = np.concatenate([schedule.steps() for schedule in schedules])
        ends = np.cumsum([0, *(len(schedule.clients) for schedule in schedules)])
        return [
            [share[(share >= begin) & (share < end)] - begin for begin, end in pairwise(ends)]
            for share in divide_work(work, self._size)
        ]

    def join_results(
        self, schedules: Sequence[PhaseSchedule], results: list[PhaseResults], averaging: bool
    ) -> list[PhaseResults]:
        """Return the results of all participants, in the order of the schedules."""
        by_process = self._exchange(list(map(_concatenate, results)))
        rows_by_process = self._rows(schedules)
        return [
            _merge(
                [trees_by_run[run] for trees_by_run in by_process if trees_by_run[run] is not None],
                np.argsort(np.concatenate([rows[run] for rows in rows_by_process])),
                schedule.n.device,
                averaging,
            )
            for run, schedule in enumerate(schedules)
        ]

    def own_clients(self, data: ClientData) -> ClientData:
        """Return the samples of the clients that this process scores."""
        samples = np.sum([data.sizes(name) for name in SCORED_SPLITS], axis=0)
        return data.select_clients(divide_work(samples, self._size)[self._rank])

    def join_metrics(self, rows: pd.DataFrame, stages: Sequence[str]) -> pd.DataFrame:
        """Return the metrics of all clients as one process has them: by stage, split and client."""
        all_rows = pd.concat(self._exchange(rows), ignore_index=True)
        keys = [
            all_rows["client"].to_numpy(),
            all_rows["split"].map(SCORED_SPLITS.index).to_numpy(),
            all_rows["stage"].map(stages.index).to_numpy(),
        ]
        ordered: pd.DataFrame = all_rows.iloc[np.lexsort(keys)]
        return ordered.reset_index(drop=True)


def _concatenate(results: PhaseResults) -> Tree | None:
    """Return the results of all stacks as one tree; None if there is none."""
    if not results.client_states:
        return None
    return {
        "client_states": trees.concatenate(results.client_states),
        "uploads": trees.concatenate(results.uploads),
        "n": torch.cat(results.n),
        "losses": torch.cat(results.losses),
    }


def _merge(
    results: Sequence[Tree], order: np.ndarray, device: torch.device, averaging: bool
) -> PhaseResults:
    """Merge the results of several processes.

    Args:
        results: Results of `_concatenate` in each process.
        order: Row of each participant among the concatenated results.
        device: Device of the merged results.
        averaging: Whether uploads are means, and ``client_states`` stay in host memory.

    Returns:
        The results of all participants.
    """
    merged, rows = trees.concatenate(results), torch.from_numpy(order)
    client_states = trees.take(merged["client_states"], rows)
    on_device = trees.to({key: merged[key] for key in ("uploads", "n", "losses")}, device)
    if not averaging:
        client_states = trees.to(client_states, device)
        moved = trees.take({key: on_device[key] for key in ("uploads", "n")}, rows)
        on_device = {**on_device, **moved}
    losses = trees.rows(on_device["losses"], rows)
    return PhaseResults([client_states], [on_device["uploads"]], [on_device["n"]], [losses])
