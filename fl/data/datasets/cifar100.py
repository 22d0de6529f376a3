"""Colour photographs of 32 x 32 pixels in a hundred classes, or in their twenty superclasses.

A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report, University
of Toronto, 2009.

Licence: none is stated at https://www.cs.toronto.edu/~kriz/cifar.html, where the files come from.

The Python version is read, straight from its archive and without running what is pickled in it. The
50,000 images to train on come first, then the 10,000 to test on; ``split`` says which is which.

Memory: besides the arrays, preparation needs 350 MB at most: the training set is one pickle, of
which two copies exist while it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fl.data.datasets.cifar10 import IMAGE_SHAPE, IMAGES_BY_SPLIT, read_batch, read_class_names
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import pickles
from fl.data.readers.archives import iter_members
from fl.data.readers.validation import check_missing, check_sizes

FOLDER, META = "cifar-100-python", "meta"
SUBSETS = ("train", "test")
CIFAR100_NORMALISATION = {
    "scale": 1 / 255,
    "mean": [0.5071, 0.4865, 0.4409],
    "sd": [0.2673, 0.2564, 0.2762],
}
"""Of the training set, per colour, on the scale from 0 to 1, as is customary to four digits."""


@dataclass(frozen=True)
class CIFAR100:
    """Images of 3 x 32 x 32 pixels, 0 to 255, in 100 or 20 classes.

    Attributes:
        labels: Classes: the hundred ``fine`` classes, or their twenty ``coarse`` superclasses.
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    labels: Literal["fine", "coarse"] = "fine"
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "cifar-100-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = IMAGE_SHAPE
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def classes(self) -> int:
        """Number of classes."""
        return 100 if self.labels == "fine" else 20

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(IMAGES_BY_SPLIT.values()) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[60000, 3, 32, 32]``, y int64 and split int8 ``[60000]``."""
        archive = raw / self.sources[0].name
        arrays: dict[str, Any] = {}
        for path, content in iter_members(archive, lambda path: path.startswith(f"{FOLDER}/")):
            name = path.partition("/")[2]
            if name == META:
                key = f"{self.labels}_label_names".encode()
                arrays[META] = read_class_names(
                    pickles.load_pickle(content), key, content, self.classes
                )
            elif name in SUBSETS:
                key = f"{self.labels}_labels".encode()
                arrays[name] = read_batch(pickles.load_pickle(content), key, content, self.classes)
        check_missing(archive, [name for name in (META, *SUBSETS) if name not in arrays])
        for split, subset in enumerate(SUBSETS):
            images, labels = arrays[subset]
            writer.append("x", images)
            writer.append("y", labels)
            writer.append("split", np.full(len(labels), split, np.int8))
        if self.complete:
            sizes = {subset: len(arrays[subset][1]) for subset in SUBSETS}
            check_sizes(sizes, IMAGES_BY_SPLIT, "cifar100", "Krizhevsky 2009")
        writer.describe(arrays[META], normalisation=CIFAR100_NORMALISATION)
