"""Means and deviations of inputs, by which a model's inputs are normalised.

A prepared data set has them, or leaves them open (`OPEN`). Then they are those of the samples that
a run's partition trains on, so that no test sample decides what a model sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OPEN: dict[str, Any] = {"scale": 1.0, "mean": None, "sd": None}
"""The normalisation by mean and deviation of the samples that a run's partition trains on."""
PIECE = 1 << 15
"""Numbers that are looked at together."""


def filled(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Inputs without gaps, where a prepared set has any (``missing: mean`` in its normalisation).

    Args:
        x: Inputs ``[samples, channels]``; NaN where a number is missing.
        rows: The samples that count.

    Returns:
        A copy; a gap is the mean of its channel over the numbers of these samples, 0 without any.
    """
    trained = x[rows]
    mean = np.nansum(trained, axis=0) / np.maximum((~np.isnan(trained)).sum(axis=0), 1)
    return np.where(np.isnan(x), mean, x)


def measured(x: np.ndarray, rows: np.ndarray, scale: float) -> dict[str, Any]:
    """The normalisation by mean and deviation of some samples, in float64.

    The samples come in pieces, whose moments are joined (Chan, Golub and LeVeque. Algorithms for
    Computing the Sample Variance. The American Statistician 1983).

    Args:
        x: Inputs ``[samples, channels, ...]``.
        rows: The samples that count.
        scale: What inputs are multiplied by first.

    Returns:
        ``scale``; ``mean`` and ``sd`` of each channel, lists. The deviation of a channel that
        never changes is 1, so that the channel becomes 0.
    """
    channels = x.shape[1]
    count, mean, squares = 0, np.zeros(channels), np.zeros(channels)
    rows = np.sort(rows)
    step = max(1, PIECE // int(np.prod(x.shape[1:])))
    for first in range(0, len(rows), step):
        piece = x[rows[first : first + step]].astype(np.float64)
        values = np.moveaxis(piece, 1, 0).reshape(channels, -1) * scale
        here, total = values.mean(1), count + values.shape[1]
        shift = here - mean
        squares += ((values - here[:, None]) ** 2).sum(1)
        squares += shift**2 * (count * values.shape[1] / total)
        mean += shift * (values.shape[1] / total)
        count = total
    sd = np.sqrt(squares / max(count, 1))
    return {"scale": scale, "mean": mean.tolist(), "sd": np.where(sd > 0, sd, 1.0).tolist()}
