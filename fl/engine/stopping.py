"""Early stopping: end a run after a number of rounds without a better value on validation data.

L. Prechelt. Early Stopping - But When? In: Neural Networks: Tricks of the Trade, 1998. This is the
simplest of its criteria.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fl.base.schema import GLOBAL, PERSONAL, rising
from fl.engine.simulation import Simulation


def validation_scores(simulation: Simulation, rows: pd.DataFrame) -> dict[int, float]:
    """Return a run's score on validation data by evaluated round; more is better.

    Args:
        simulation: The run.
        rows: Its metrics, in the columns of `fl.base.schema.METRIC_COLUMNS`.

    Returns:
        By round, the mean over clients of the task's first metric in the reported stage.
    """
    metric = simulation.task.metrics[0]
    stage = PERSONAL if PERSONAL in simulation.method.views else GLOBAL
    is_scored = (rows["split"] == "val") & (rows["metric"] == metric) & (rows["stage"] == stage)
    scores = rows[is_scored].groupby("round")["value"].mean() * (1 if rising(metric) else -1)
    return {int(str(number)): float(value) for number, value in scores.items()}


def stop_reason(scores: Mapping[int, float], patience: int) -> str:
    """Return the reason to end a run, as a text; empty if the run continues.

    Args:
        scores: Result of `validation_scores` for all rounds so far.
        patience: Number of rounds without a better score after which a run ends.
    """
    best, last = max(sorted(scores), key=scores.__getitem__, default=0), max(scores, default=0)
    if last - best < patience:
        return ""
    return f"stopped after round {last}: on validation data no round was better than round {best}"
