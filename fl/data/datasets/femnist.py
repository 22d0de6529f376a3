"""Handwritten digits and letters in 62 classes, each writer a client: EMNIST's federated relative.

S. Caldas, S. M. K. Duddu, P. Wu, T. Li, J. Konecny, H. B. McMahan, V. Smith and A. Talwalkar.
LEAF: A Benchmark for Federated Settings. 2018. arXiv:1812.01097; P. Grother. NIST Special Database
19. 1995.

Licence: public domain (NIST), https://www.nist.gov/srd/nist-special-database-19; LEAF's scripts are
BSD-2-Clause. LEAF publishes scripts, not arrays, so what anyone can get are the two archives of
NIST's that those scripts begin with: ``by_write.zip`` says who wrote a picture, ``by_class.zip``
what it shows. As there, a picture of the one is looked up in the other by a hash of its file, made
grey and reduced from 128 x 128 to 28 x 28 pixels (Lanczos; Pillow's version may round single pixels
differently).

Ink is dark on white, 255, as LEAF has it. Classes are 0-9, A-Z, a-z. Pictures are in the order of
``by_write.zip``, writers numbered as they appear in it. LEAF's script lists the first picture of
every writer but the first twice; here it is there once. Nothing is left out: LEAF's figures,
805,263 pictures of 3,550 writers, are held as the least that a complete set has.

Memory: besides the arrays, preparation needs about 16 MB for 18,000 images. It grows with Python's
list of the members of a zip, to about 0.6 GB for the full data set.
"""

from __future__ import annotations

import hashlib
import string
from array import array
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members
from fl.data.readers.image_files import decode_image

NIST = "https://s3.amazonaws.com/nist-srd/SD19/"
CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
IMAGE_SIDE = 28
MIN_IMAGES, MIN_WRITERS = 805_263, 3550
"""Pictures and writers that LEAF counts (table 1)."""


@dataclass(frozen=True)
class FEMNIST:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in 62 classes; writers are clients.

    Attributes:
        complete: Check the data against LEAF's sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source("by_class.zip", NIST + "by_class.zip"),
        Source("by_write.zip", NIST + "by_write.zip"),
    )
    shape: ClassVar[tuple[int, ...]] = (1, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = len(CHARACTERS)
    natural_clients: ClassVar[int | None] = MIN_WRITERS
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Smallest number of samples, or None for a subset."""
        return MIN_IMAGES if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[n, 1, 28, 28]``, y int64 and client int32 ``[n]``."""
        labels_of_pictures, archive = PictureLabels(raw / "by_class.zip"), raw / "by_write.zip"
        writers: dict[str, int] = {}
        pictures = 0
        for path, content in iter_members(archive, _is_written):
            data = content.read()
            label = labels_of_pictures.label(data)
            if label is None:
                raise DataError(
                    f"{archive}: member {path} is not in by_class.zip, so its class is unknown",
                    advice="delete both files to fetch them again",
                )
            writer_number = writers.setdefault(PurePosixPath(path).parts[2], len(writers))
            image = decode_image(
                data,
                (IMAGE_SIDE, IMAGE_SIDE),
                "L",
                converts=("RGB", "1"),
                resample="lanczos",
                name=f"{archive}: {path}",
            )
            writer.add(x=image, y=np.int64(label), client=np.int32(writer_number))
            pictures += 1
        if self.complete and (pictures < MIN_IMAGES or len(writers) < MIN_WRITERS):
            raise DataError(
                f"{archive}: has {pictures:,} pictures of {len(writers):,} writers, expected"
                f" {MIN_IMAGES:,} of {MIN_WRITERS:,} or more (LEAF, table 1)",
                advice="fetch the file again, or write `complete: false` if it is a subset",
            )
        writer.describe(CHARACTERS, normalisation={"scale": 1 / 255, "mean": 0.0, "sd": 1.0})


class PictureLabels:
    """Class of each image in ``by_class.zip``, found by the bytes of the image.

    Args:
        archive: The archive.
    """

    def __init__(self, archive: Path) -> None:
        keys, labels = array("Q"), array("b")
        for path, content in iter_members(archive, _is_classified):
            code = PurePosixPath(path).parts[1]
            try:
                label = CHARACTERS.index(bytes.fromhex(code).decode("ascii"))
            except ValueError:
                problem = f"folder {code} is no class. Allowed: 30-39, 41-5a, 61-7a"
                raise DataError(f"{archive}: member {path}: {problem}") from None
            keys.append(_key(content.read()))
            labels.append(label)
        hashes = np.frombuffer(keys, np.uint64)
        # Of equal images, the first one counts, as in LEAF.
        order = np.argsort(hashes, kind="stable")
        self._keys, self._labels = hashes[order], np.frombuffer(labels, np.int8)[order]

    def label(self, picture: bytes) -> int | None:
        """Return the class of an image, or None if the archive does not contain it."""
        key = np.uint64(_key(picture))
        index = int(np.searchsorted(self._keys, key))
        return (
            int(self._labels[index])
            if index < len(self._keys) and self._keys[index] == key
            else None
        )


def _key(picture: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(picture, digest_size=8).digest())


def _is_classified(path: str) -> bool:
    """``by_class/4a/hsf_0/hsf_0_00000.png``; the pictures in ``train_4a`` are copies."""
    names = PurePosixPath(path).parts
    return len(names) == 4 and names[2].startswith("hsf") and path.endswith(".png")


def _is_written(path: str) -> bool:
    """``by_write/hsf_0/f0000_14/u0000_14/u0000_14_00000.png``."""
    return len(PurePosixPath(path).parts) == 5 and path.endswith(".png")
