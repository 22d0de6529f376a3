"""Normalisation of inputs: numbers by mean and deviation, words by their frequency.

A prepared data set states mean and deviation of its inputs or leaves them open
(`TRAINING_NORMALISATION`). In the second case they are computed from the samples that a run's
partition trains on, so that no test sample influences what a model sees. So is the vocabulary of
the texts in a user's table (`rank_words`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

TRAINING_NORMALISATION: dict[str, Any] = {"scale": 1.0, "mean": None, "sd": None}
"""Normalisation by mean and deviation of the training samples of a run's partition."""
PIECE_NUMBERS = 1 << 15
"""Number of values that are processed at once."""


def fill_gaps(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return inputs with missing numbers replaced by the mean of their channel.

    Args:
        x: Inputs ``[samples, channels]``; a missing number is NaN.
        rows: Indices of the samples from which means are computed.

    Returns:
        A copy. The mean of a channel without numbers is 0.
    """
    return np.where(np.isnan(x), channel_means(x, rows), x)


def channel_means(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the means that `fill_gaps` puts in, ``[channels]``."""
    numbers = x[rows]
    mean: np.ndarray = np.nansum(numbers, axis=0) / np.maximum((~np.isnan(numbers)).sum(axis=0), 1)
    return mean


def measure_normalisation(x: np.ndarray, rows: np.ndarray, scale: float) -> dict[str, Any]:
    """Return the normalisation by mean and deviation of some samples, in float64.

    Moments are computed piece by piece and combined (Chan, Golub and LeVeque. Algorithms for
    Computing the Sample Variance. The American Statistician 1983).

    Args:
        x: Inputs ``[samples, channels, ...]``.
        rows: Indices of the samples.
        scale: Factor by which inputs are multiplied first.

    Returns:
        ``scale``, and ``mean`` and ``sd`` as lists over channels. The deviation of a constant
        channel is 1, so that the channel becomes 0.
    """
    channels = x.shape[1]
    count, mean, squares = 0, np.zeros(channels), np.zeros(channels)
    rows = np.sort(rows)
    step = max(1, PIECE_NUMBERS // int(np.prod(x.shape[1:])))
    for first in range(0, len(rows), step):
        piece = x[rows[first : first + step]].astype(np.float64)
        values = np.moveaxis(piece, 1, 0).reshape(channels, -1) * scale
        piece_mean, total = values.mean(1), count + values.shape[1]
        shift = piece_mean - mean
        squares += ((values - piece_mean[:, None]) ** 2).sum(1)
        squares += shift**2 * (count * values.shape[1] / total)
        mean += shift * (values.shape[1] / total)
        count = total
    sd = nonzero_deviations(squares / max(count, 1), mean, count)
    return {"scale": scale, "mean": mean.tolist(), "sd": sd.tolist()}


def nonzero_deviations(variance: np.ndarray, mean: np.ndarray, count: int) -> np.ndarray:
    """Return the deviation of each channel, and 1 for a constant one.

    Rounding leaves a constant channel a small variance. A channel is constant if its variance is
    within the error bound of its computation (Chan, Golub and LeVeque 1983), as in scikit-learn.

    Args:
        variance: Variance of each channel.
        mean: Mean of each channel.
        count: Number of values of a channel.
    """
    error = count * np.finfo(np.float64).eps
    is_constant = variance <= error * variance + (error * mean) ** 2
    return np.where(is_constant, 1.0, np.sqrt(variance))


IDENTITY_NORMALISATION: dict[str, Any] = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
"""Normalisation that changes nothing."""


def rank_words(x: np.ndarray, rows: np.ndarray, words: int, size: int) -> np.ndarray:
    """Return tokens numbered by the frequency of words in some samples.

    Args:
        x: Tokens ``[samples, length]``: numbers of words by spelling, and ``words`` after a text.
        rows: Indices of the samples whose words are counted.
        words: Number of different words in all samples.
        size: Number of words with a token of their own.

    Returns:
        A copy, int32. The commonest word is 0; equally common words are in the order of their
        numbers. The token ``size`` stands for all other words, and comes after a text.
    """
    ranked = ranked_words(x, rows, words, size)
    token_by_number = np.full(words + 1, size, np.int32)
    token_by_number[ranked] = np.arange(len(ranked))
    return token_by_number[x]


def ranked_words(x: np.ndarray, rows: np.ndarray, words: int, size: int) -> np.ndarray:
    """Return the numbers of the words that have a token of their own in `rank_words`, by token."""
    counts = np.bincount(x[rows].ravel(), minlength=words)[:words]
    ranked: np.ndarray = np.argsort(-counts, kind="stable")
    return ranked[: min(size, np.count_nonzero(counts))]
