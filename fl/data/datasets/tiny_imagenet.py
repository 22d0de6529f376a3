"""Two hundred classes of ImageNet at 64 x 64 pixels, 500 photographs each to train on.

Y. Le and X. Yang. Tiny ImageNet Visual Recognition Challenge. CS 231N report, Stanford, 2015.

Licence: that of ImageNet, for non-commercial research (https://www.image-net.org/download); the
archive comes from http://cs231n.stanford.edu.

Pictures are decoded as they are (grey ones among them become colour) in the archive's order. The
100,000 to train on are ``split`` train, the 10,000 published to validate on, 50 for each class, are
val; the published test pictures have no labels and are left out. Classes are numbered by their
WordNet id in alphabetical order.

Beside the arrays, preparing holds some 30 MB at most, of 5,200 pictures as of 1,200.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.archives import iter_members, read_member
from fl.data.download import Source
from fl.data.image_files import decode_image
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.validation import check_missing, check_sizes

TOP = "tiny-imagenet-200/"
SIDE, TRAIN, VAL = 64, 500, 50
NORMALISATION = {
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
    shape: ClassVar[tuple[int, ...]] = (3, SIDE, SIDE)
    classes: ClassVar[int] = 200
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val")

    @property
    def size(self) -> int | None:
        """How many samples there are; None of a subset."""
        return self.classes * (TRAIN + VAL) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[110000, 3, 64, 64]``, y int64 and split int8 ``[110000]``."""
        archive, counts = raw / self.sources[0].name, Counter[str]()
        ids = sorted(_text(archive, "wnids.txt").split())
        words = dict(line.split("\t", 1) for line in _text(archive, "words.txt").splitlines())
        homes = _validation(archive)
        if len(ids) != self.classes:
            problem = f"wnids.txt names {len(ids)} classes, expected {self.classes}"
            raise DataError(f"{archive}: {problem}; delete the file to fetch it again")
        for path, content in iter_members(archive, _is_labelled):
            subset, home = _home(path, homes)
            if home not in ids:
                raise DataError(f"{archive}: member {path} belongs to no class of wnids.txt")
            image = decode_image(content, (SIDE, SIDE))
            split = np.int8(SPLIT_NAMES.index(subset))
            writer.add(x=image, y=np.int64(ids.index(home)), split=split)
            counts[f"{subset}/{home}"] += 1
        parts = {f"train/{id}": TRAIN for id in ids} | {f"val/{id}": VAL for id in ids}
        check_missing(archive, [subset for subset in parts if not counts[subset]])
        if self.complete:
            check_sizes(counts, parts, "tiny-imagenet", "Le and Yang 2015")
        writer.describe([words.get(id, id) for id in ids], normalisation=NORMALISATION)


def _is_labelled(path: str) -> bool:
    return path.startswith((f"{TOP}train/", f"{TOP}val/")) and path.endswith(".JPEG")


def _home(path: str, homes: Mapping[str, str]) -> tuple[str, str]:
    """The split and the class of a picture."""
    subset, home = PurePosixPath(path).parts[1:3]
    return subset, home if subset == "train" else homes.get(PurePosixPath(path).name, "")


def _validation(archive: Path) -> dict[str, str]:
    """The class of each validation picture; a line is picture, class, and a box, by tabs."""
    lines = _text(archive, "val/val_annotations.txt").splitlines()
    return {line.split("\t")[0]: line.split("\t")[1] for line in lines if "\t" in line}


def _text(archive: Path, name: str) -> str:
    return read_member(archive, TOP + name).read().decode()
