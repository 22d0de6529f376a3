"""Kinds of input that a data set has of every sample, of which a client holds one."""

from __future__ import annotations

from dataclasses import dataclass

MODALITY = "modality"
"""In a partition, the column that says which of the data set's modalities a client holds."""


@dataclass(frozen=True)
class Modality:
    """One kind of input: photographs, captions.

    name: as models and messages say it. array: the array of the prepared data set that has it.
    shape: of one input. tokens: how many different ones there are, where it is whole numbers.
    """

    name: str
    array: str
    shape: tuple[int, ...]
    tokens: int = 0
