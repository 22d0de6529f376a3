"""Handwritten digits that scikit-learn ships: real data without a download.

E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning
Repository, 1998.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.data.download import Source
from fl.data.prepared import Writer

MEAN, SD = 0.30526028624095713, 0.3760492217920148
"""Of all pixels of the 1,797 images, on the scale from 0 to 1."""


@dataclass(frozen=True)
class Digits:
    """Images of 8 x 8 pixels, 0 to 16, in ten classes."""

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "digits.csv.gz",
            "package:sklearn/datasets/data/digits.csv.gz",
            "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
        ),
    )

    size: ClassVar[int] = 1797
    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ()

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[1797, 1, 8, 8]`` and y int64 ``[1797]``."""
        images, labels = read_digits(raw / self.sources[0].name)
        writer.save("x", images[:, None].astype(np.uint8))
        writer.save("y", labels)
        normalisation = {"scale": 1 / 16, "mean": MEAN, "sd": SD}
        writer.describe([str(digit) for digit in range(10)], normalisation=normalisation)


def read_digits(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The images, 0 to 16, int64 ``[1797, 8, 8]``, and their labels ``[1797]``.

    A row of the file is 64 pixels and a label.
    """
    with gzip.open(path, "rt") as rows:
        table = np.loadtxt(rows, delimiter=",").astype(np.int64)
    return table[:, :64].reshape(-1, 8, 8), table[:, 64]
