"""Colour photographs of 32 x 32 pixels in ten classes, 50,000 to train on and 10,000 to test on.

A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. Technical report, University
of Toronto, 2009.

Licence: none is stated at https://www.cs.toronto.edu/~kriz/cifar.html, where the files come from.

The Python version is read, straight from its archive and without running what is pickled in it.
Rows are in the published order: the five training batches, then the test batch; ``split`` says
which is which.

Beside the arrays that it maps, preparing files of the full size needs some 110 MB at most: one
batch, twice while it is unpickled.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import pickles
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.validation import check_missing, check_sizes, check_whole_numbers

FOLDER, META = "cifar-10-batches-py", "batches.meta"
BATCHES = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")
IMAGES_BY_SPLIT = {"train": 50_000, "test": 10_000}
IMAGE_SHAPE = (3, 32, 32)
OBJECTS = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""The names in ``batches.meta``, for sets that have the classes and not the file."""
CIFAR10_NORMALISATION = {
    "scale": 1 / 255,
    "mean": [0.4914, 0.4822, 0.4465],
    "sd": [0.2470, 0.2435, 0.2616],
}
"""Of the training set, per colour, on the scale from 0 to 1, as is customary to four digits."""


@dataclass(frozen=True)
class CIFAR10:
    """Images of 3 x 32 x 32 pixels, 0 to 255, in ten classes.

    Attributes:
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "cifar-10-python.tar.gz",
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = IMAGE_SHAPE
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(IMAGES_BY_SPLIT.values()) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[60000, 3, 32, 32]``, y int64 and split int8 ``[60000]``."""
        archive, x, size = raw / self.sources[0].name, None, 0
        arrays: dict[str, Any] = {}
        for path, content in iter_members(archive, lambda path: path.startswith(f"{FOLDER}/")):
            name = path.partition("/")[2]
            if name == META:
                arrays[META] = read_class_names(
                    pickles.load_pickle(content), b"label_names", content, self.classes
                )
            if name not in BATCHES:
                continue
            # The archive has its own order; as batches have one size, their rows are known.
            images, arrays[name] = read_batch(
                pickles.load_pickle(content), b"labels", content, self.classes
            )
            if x is None:
                size = len(images)
                x = writer.create("x", (size * len(BATCHES), *IMAGE_SHAPE), np.uint8)
            if len(images) != size:
                problem = f"has {len(images)} images, another batch {size}"
                raise DataError(f"{stream_name(content)}: {problem}. Allowed: batches of one size")
            start = BATCHES.index(name) * size
            x[start : start + size] = images
        check_missing(archive, [name for name in (META, *BATCHES) if name not in arrays])
        writer.save("y", np.concatenate([arrays[name] for name in BATCHES]))
        writer.save("split", np.repeat(np.array([0, 1], np.int8), [5 * size, size]))
        if self.complete:
            check_sizes(
                {"train": 5 * size, "test": size}, IMAGES_BY_SPLIT, "cifar10", "Krizhevsky 2009"
            )
        writer.describe(arrays[META], normalisation=CIFAR10_NORMALISATION)


def read_batch(
    content: Any, key: bytes, stream: BinaryIO, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 ``[n, 3, 32, 32]`` and labels int64 ``[n]`` of an unpickled batch.

    Raises `DataError` that names ``stream`` if it has not what a batch of CIFAR has: pixels from 0
    to 255, labels below ``classes``.
    """
    data, labels = (_entry(content, name, stream) for name in (b"data", key))
    y = check_whole_numbers(labels, 0, classes - 1, stream_name(stream), key.decode())
    width = int(np.prod(IMAGE_SHAPE))
    if not isinstance(data, np.ndarray) or data.shape != (*y.shape, width):
        kind = list(data.shape) if isinstance(data, np.ndarray) else type(data).__name__
        raise DataError(
            f"{stream_name(stream)}: data is {kind} for {list(y.shape)} labels. Allowed: an array"
            f" [{len(y)}, {width}]"
        )
    x = check_whole_numbers(data, 0, 255, stream_name(stream), "data").astype(np.uint8, copy=False)
    return x.reshape(-1, *IMAGE_SHAPE), y.astype(np.int64)


def read_class_names(content: Any, key: bytes, stream: BinaryIO, classes: int) -> list[str]:
    """The names of so many classes under ``key`` of an unpickled description."""
    names = _entry(content, key, stream)
    if (
        not isinstance(names, list)
        or len(names) != classes
        or not all(isinstance(name, bytes) and name.isascii() for name in names)
    ):
        problem = (
            f"{key.decode()} is {reprlib.repr(names)}. Allowed: the names of {classes} classes"
        )
        raise DataError(f"{stream_name(stream)}: {problem}")
    return [name.decode() for name in names]


def _entry(content: Any, key: bytes, stream: BinaryIO) -> Any:
    if not isinstance(content, dict) or key not in content:
        raise DataError(
            f"{stream_name(stream)}: has no entry {key.decode()}; it is no file of CIFAR"
        )
    return content[key]
