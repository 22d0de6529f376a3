"""Early stopping: whether a run has waited long enough for a better value on validation data.

L. Prechelt. Early Stopping - But When? In: Neural Networks: Tricks of the Trade, 1998. Of its
criteria this is the plainest: so many rounds without a new best.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fl.base.schema import GLOBAL, PERSONAL
from fl.engine.simulation import Simulation


def scores(simulation: Simulation, rows: pd.DataFrame) -> dict[int, float]:
    """By evaluated round, how good a run was on validation data: the mean over clients of the
    task's first metric in the reported stage; more is better.
    """
    metric = simulation.task.metrics[0]
    stage = PERSONAL if PERSONAL in simulation.method.views else GLOBAL
    chosen = (rows["split"] == "val") & (rows["metric"] == metric) & (rows["stage"] == stage)
    means = rows[chosen].groupby("round")["value"].mean() * (-1 if metric == "loss" else 1)
    return {int(str(number)): float(value) for number, value in means.items()}


def stopped(seen: Mapping[int, float], patience: int) -> str:
    """Why a run ends after the last of some rounds, in words; "" if it goes on.

    Args:
        seen: As `scores`, of all rounds so far.
    """
    best, last = max(sorted(seen), key=seen.__getitem__, default=0), max(seen, default=0)
    if last - best < patience:
        return ""
    return f"stopped after round {last}: on validation data no round was better than round {best}"
