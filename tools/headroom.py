"""Print what a choice of a client's own could gain: ``python -m tools.headroom STUDY ENTRY``.

The study must be trained and reported (``fedloom run STUDY``), in several draws. Its validation and
test samples are the two halves of `fl.report.client_tests.oracle`: every client chooses among all
points and recorded rounds of the entries on one half, and is scored on the other. Beside it stand
the entries of the study at their selected points, each against the baseline, over clients.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fl.report.cells import MINUS
from fl.report.client_tests import FamilyTest, family_test, oracle

HALVES = ["val", "test"]
METRIC = "accuracy"
MARGIN = 0.01
"""Difference within which entries are equal."""
DRAW = ["partition", "seed"]


def gains(
    rows: pd.DataFrame, entries: Sequence[str], group: int = 1, reference: str | None = None
) -> np.ndarray:
    """Return what clients gain by a choice of their own, [clients, draws].

    Args:
        rows: The study's long table.
        entries: Names of the entries whose points and rounds can be chosen.
        group: Number of consecutive clients that choose together; 0: all.
        reference: Entry with one point, whose last round the choice is compared with; None: with
            the best point for all clients.
    """
    rows, of_draws = _of_metric(rows), []
    for _, draw in rows[rows["method"].isin(entries)].groupby(DRAW):
        index, columns = ["method", "point", "round"], ["client", "split"]
        table = draw.pivot(index=index, columns=columns, values="value")
        table = table.dropna()  # Clients have no values in what follows a divergence.
        values = np.stack([table.xs(half, axis=1, level=1).to_numpy() for half in HALVES], axis=2)
        clients = np.arange(values.shape[1])
        base = None
        if reference is not None:
            base = int(np.flatnonzero(table.index.get_level_values("method") == reference)[-1])
        of_draws.append(oracle(values, clients // group if group else 0 * clients, base))
    return np.stack(of_draws, axis=1)


def differences(rows: pd.DataFrame, baseline: str) -> tuple[list[str], np.ndarray]:
    """Return all other entries, and their differences from one, [entries, clients, draws].

    Values are of test samples, in the last round of the selected points.
    """
    rows = _of_metric(rows)
    rows = rows[rows["selected"] & (rows["split"] == "test")]
    rows = rows[rows["round"] == rows.groupby("run")["round"].transform("max")]
    table = rows.pivot(index=["method", "client"], columns=DRAW, values="value")
    others = [name for name in dict.fromkeys(rows["method"]) if name != baseline]
    base = table.loc[baseline]
    return others, np.stack([(table.loc[name] - base).to_numpy() for name in others])


def _of_metric(rows: pd.DataFrame) -> pd.DataFrame:
    is_read = (rows["metric"] == METRIC) & rows["reported"] & rows["split"].isin(HALVES)
    return rows[is_read]


def table(names: Sequence[str], test: FamilyTest) -> str:
    """Return a Markdown table of tests, in points; p-values are corrected for all its rows."""
    lines = ["| | points | 95 % | p | p, equal |", "| :--- | ---: | ---: | ---: | ---: |"]
    columns = [100 * test.difference, 100 * test.low, 100 * test.high, test.p, test.p_equal]
    for name, mean, low, high, p, equal in zip(names, *columns, strict=True):
        numbers = f"{mean:+.1f} | {low:+.1f} to {high:+.1f} | {p:.3f} | {equal:.3f}"
        lines.append(f"| {name} | {numbers.replace('-', MINUS)} |")
    return "\n".join(lines)


def main() -> None:
    """Read the command line and print the tables."""
    parser = argparse.ArgumentParser("python -m tools.headroom", description=__doc__)
    parser.add_argument("study")
    parser.add_argument("entries", nargs="+", help="entries among whose points clients choose")
    parser.add_argument("--baseline", required=True, help="entry with which all are compared")
    parser.add_argument("--group", type=int, default=0, help="consecutive clients of a group")
    parser.add_argument("--reference", help="entry with one point, for the oracle")
    arguments = parser.parse_args()
    if arguments.reference not in (None, *arguments.entries):
        parser.error(f"--reference: is {arguments.reference!r}. Allowed: the entries")
    rows = pd.read_parquet(Path("results/tables") / f"{arguments.study}.parquet")
    sizes = {"each client its own": 1, "one choice for all": 0}
    if arguments.group:
        sizes[f"every {arguments.group} clients together"] = arguments.group
    for name, size in sizes.items():
        found = gains(rows, arguments.entries, size, arguments.reference)
        print(table([f"oracle, {name}"], family_test(found[None], margin=MARGIN)))
    names, values = differences(rows, arguments.baseline)
    names = [f"{name} less {arguments.baseline}" for name in names]
    print(table(names, family_test(values, margin=MARGIN)))


if __name__ == "__main__":
    main()
