"""Kinds of input that a data set has of every sample. A client holds all of them, or one.

A partition numbers clients by what they hold: one of the kinds, in the data set's order, or, as the
last number, all of them (`groups`).

Means and deviations of inputs, by which a model's inputs are normalised.

A prepared data set has them, or leaves them open (`OPEN`). Then they are those of the samples that
a run's partition trains on, so that no test sample decides what a model sees.

Prepared data sets: a folder of memory-mappable arrays and their ``dataset.json``.

``x.npy`` ``[samples, ...]`` holds the inputs in their own type (images stay uint8), ``y.npy``
``[samples]`` the labels, and where the data set has them ``client.npy`` the natural client,
``domain.npy`` the domain and ``split.npy`` the published split (an index into `SPLIT`) of each
sample, ``mask.npy`` uint8 ``[samples, height, width]`` what is to be segmented, and ``text.npy``
``[samples, ...]`` the tokens that belong to each input. Further inputs of the samples, numbers of
any kind, are in ``input_NAME.npy`` ``[samples, ...]``. ``dataset.json`` is written last and the
folder gets its name after that: a folder with this file is complete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MODALITY = "modality"
"""In a partition, the column that says which of the data set's modalities a client holds."""

ANY_MODALITIES = "any"
"""As a model's ``modalities``: it takes several inputs of numbers, whatever they are called."""


@dataclass(frozen=True)
class Modality:
    """One kind of input: photographs, captions; what one sensor measures.

    name: as models and messages say it. array: the array of the prepared data set that has it.
    shape: of one input. tokens: how many different ones there are, where it is whole numbers.
    """

    name: str
    array: str
    shape: tuple[int, ...]
    tokens: int = 0


def input_names(model: Any) -> tuple[str, ...]:
    """The inputs that a model, or its class, takes by name; none: it takes one, as a tensor."""
    names = getattr(model, "modalities", ())
    return (names,) if isinstance(names, str) else tuple(names)


def accepts_modalities(model: Any, kinds: Sequence[Modality]) -> bool:
    """Whether a model is for these inputs, which are several."""
    wanted, names = input_names(model), {kind.name for kind in kinds}
    if wanted == (ANY_MODALITIES,):
        return len(names) > 1 and not any(kind.tokens for kind in kinds)
    return len(names) > 1 and set(wanted) == names


def modality_groups(kinds: Sequence[Modality], count: int) -> list[tuple[Modality, ...]]:
    """What the clients of each modality hold, by the number of the modality in a partition.

    Args:
        count: How many there are: as many as kinds, or one more, whose clients hold all of them.
    """
    return [*((kind,) for kind in kinds), tuple(kinds)][:count]


def group_title(group: Sequence[Modality]) -> str:
    """What clients hold, in words: ``image``, ``image and text``."""
    return " and ".join(kind.name for kind in group)


TRAINING_NORMALISATION: dict[str, Any] = {"scale": 1.0, "mean": None, "sd": None}
"""The normalisation by mean and deviation of the samples that a run's partition trains on."""
PIECE_NUMBERS = 1 << 15
"""Numbers that are looked at together."""


def fill_gaps(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
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


def measure_normalisation(x: np.ndarray, rows: np.ndarray, scale: float) -> dict[str, Any]:
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
    step = max(1, PIECE_NUMBERS // int(np.prod(x.shape[1:])))
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


IDENTITY_NORMALISATION: dict[str, Any] = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
"""The normalisation that changes nothing."""
