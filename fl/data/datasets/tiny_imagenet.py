"""Two hundred classes of ImageNet at 64 x 64 pixels, 500 photographs each to train on.

Y. Le and X. Yang. Tiny ImageNet Visual Recognition Challenge. CS 231N report, Stanford, 2015.

Licence: that of ImageNet, for non-commercial research (https://www.image-net.org/download); the
archive comes from http://cs231n.stanford.edu.

Pictures are decoded as they are (grey ones among them become colour) in the archive's order. The
100,000 to train on are ``split`` train, the 10,000 published to validate on, 50 for each class, are
val; the published test pictures have no labels and are left out. Classes are numbered by their
WordNet id in alphabetical order.

Memory: besides the arrays, preparation needs 30 MB at most for any number of images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.download import Source
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.readers.archives import iter_members, read_member
from fl.data.readers.image_files import decode_image
from fl.data.readers.validation import check_missing, check_sizes

ARCHIVE_FOLDER = "tiny-imagenet-200/"
IMAGE_SIDE, TRAIN_PER_CLASS, VAL_PER_CLASS = 64, 500, 50
TINY_IMAGENET_NORMALISATION = {
    "scale": 1 / 255,
    "mean": [0.4802, 0.4481, 0.3975],
    "sd": [0.2770, 0.2691, 0.2821],
}
"""Of the training set, per colour, on the scale from 0 to 1, as is customary to four digits."""


@dataclass(frozen=True)
class TinyImageNet:
    """Images of 3 x 64 x 64 pixels, 0 to 255, in two hundred classes.

    Attributes:
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "tiny-imagenet-200.zip",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = (3, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = 200
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return self.classes * (TRAIN_PER_CLASS + VAL_PER_CLASS) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[110000, 3, 64, 64]``, y int64 and split int8 ``[110000]``."""
        archive, counts = raw / self.sources[0].name, Counter[str]()
        ids = sorted(_text(archive, "wnids.txt").split())
        words = dict(line.split("\t", 1) for line in _text(archive, "words.txt").splitlines())
        id_by_picture = _validation(archive)
        if len(ids) != self.classes:
            problem = f"wnids.txt names {len(ids)} classes, expected {self.classes}"
            raise DataError(f"{archive}: {problem}", advice="delete the file to fetch it again")
        for path, content in iter_members(archive, _is_labelled):
            subset, wordnet_id = _home(path, id_by_picture)
            if wordnet_id not in ids:
                raise DataError(f"{archive}: member {path} belongs to no class of wnids.txt")
            image = decode_image(content, (IMAGE_SIDE, IMAGE_SIDE))
            split = np.int8(SPLIT_NAMES.index(subset))
            writer.add(x=image, y=np.int64(ids.index(wordnet_id)), split=split)
            counts[f"{subset}/{wordnet_id}"] += 1
        sizes = {f"train/{id}": TRAIN_PER_CLASS for id in ids} | {
            f"val/{id}": VAL_PER_CLASS for id in ids
        }
        check_missing(archive, [subset for subset in sizes if not counts[subset]])
        if self.complete:
            check_sizes(counts, sizes, "tiny-imagenet", "Le and Yang 2015")
        writer.describe(
            [words.get(id, id) for id in ids], normalisation=TINY_IMAGENET_NORMALISATION
        )


def _is_labelled(path: str) -> bool:
    return path.startswith((f"{ARCHIVE_FOLDER}train/", f"{ARCHIVE_FOLDER}val/")) and path.endswith(
        ".JPEG"
    )


def _home(path: str, homes: Mapping[str, str]) -> tuple[str, str]:
    """The split and the class of a picture."""
    subset, home = PurePosixPath(path).parts[1:3]
    return subset, home if subset == "train" else homes.get(PurePosixPath(path).name, "")


def _validation(archive: Path) -> dict[str, str]:
    """The class of each validation picture; a line is picture, class, and a box, by tabs."""
    lines = _text(archive, "val/val_annotations.txt").splitlines()
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines if "\t" in line}


def _text(archive: Path, name: str) -> str:
    return read_member(archive, ARCHIVE_FOLDER + name).read().decode()
