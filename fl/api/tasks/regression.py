"""Regression: a number, the target, for each sample.

No paper: training minimises the mean squared error of one output.

Targets are standardised by mean and deviation of the samples that a partition trains on, as inputs
are, unless the data set says otherwise. ``loss`` is the mean squared error of standardised targets,
which is what training minimises. ``rmse``, its root, and ``mae``, the mean absolute error, are in
the target's own unit. ``r2`` is 1 - sum_i (y_i - z_i)^2 / sum_i (y_i - mean y)^2 over a client's
samples, with the mean of these; a client whose samples all have one target has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from fl.api.protocols import Batch
from fl.api.task import DEFAULT, Task, client_means, weighted_mean


def loss(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the weighted mean squared error.

    Args:
        outputs: Outputs of the network, [b, 1].
        batch: Batch with the standardised targets ``y``, [b].
    """
    return weighted_mean((outputs.squeeze(-1) - batch["y"]).square(), batch)


def look(outputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return prediction and target of each sample, [b] each."""
    return {"prediction": outputs.squeeze(-1), "target": labels}


def conclude(
    values: Mapping[str, Tensor], sizes: np.ndarray, classes: int
) -> dict[str, np.ndarray]:
    """Return loss, root of the loss, mean absolute error and R2 of each client, [clients]."""
    prediction, target = (values[key].double().cpu().numpy() for key in ("prediction", "target"))
    error = target - prediction
    deviation = target - np.repeat(client_means(target, sizes), sizes)
    mean_square, variance = (client_means(numbers**2, sizes) for numbers in (error, deviation))
    starts = np.cumsum(sizes) - sizes
    varies = np.maximum.reduceat(target, starts) > np.minimum.reduceat(target, starts)
    share_missed = np.divide(mean_square, variance, out=np.full(len(sizes), np.nan), where=varies)
    return {
        "loss": mean_square,
        "rmse": np.sqrt(mean_square),
        "mae": client_means(np.abs(error), sizes),
        "r2": 1 - share_missed,
    }


def invent(count: int, classes: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return targets from 0 to below 1, [count]."""
    return np.arange(count) / count


REGRESSION = Task(
    name="regression",
    label_name="targets",
    labels="target",
    metrics=("rmse", "mae", "r2"),
    chunk=1024,
    loss=loss,
    look=look,
    conclude=conclude,
    invent=invent,
    has_classes=False,
    model_task=DEFAULT,
)


def regression() -> Task:
    """Return the task."""
    return REGRESSION
