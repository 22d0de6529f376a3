"""Handwritten digits of 28 x 28 pixels, 60,000 to train on and 10,000 to test on.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document
Recognition. Proceedings of the IEEE 86(11), 1998. doi:10.1109/5.726791

Licence: none is stated at http://yann.lecun.com/exdb/mnist/; commonly given as CC BY-SA 3.0. The
files come from the copy that PyTorch keeps, as their home asks for a password.

The files are IDX ("The IDX file format" on that page): 0, 0, the type (8: unsigned byte), the
number of dimensions; the size of each, big-endian; the bytes.

Images and labels are taken as they are, the training set before the test set; ``split`` says which
is which.

Memory: besides the arrays, preparation of files of the full size needs some 50 MB at most.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.validation import check_sizes, check_whole_numbers

IMAGE_SIDE = 28
DIGITS_BY_SPLIT = {"train": 60_000, "test": 10_000}
FILE_PREFIXES = {"train": "train", "test": "t10k"}
MNIST_MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
MNIST_CHECKSUMS = {
    "train-images-idx3-ubyte.gz": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    "train-labels-idx1-ubyte.gz": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
}
MNIST_NORMALISATION = {"scale": 1 / 255, "mean": 0.1307, "sd": 0.3081}
"""Of all pixels of the training set, on the scale from 0 to 1, as is customary to four digits."""


@dataclass(frozen=True)
class MNIST:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in ten classes.

    Attributes:
        complete: Check the files against their published checksums and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = tuple(
        Source(name, MNIST_MIRROR + name, checksum) for name, checksum in MNIST_CHECKSUMS.items()
    )
    names: ClassVar[tuple[str, ...]] = tuple(map(str, range(10)))
    normalisation: ClassVar[dict[str, float]] = MNIST_NORMALISATION
    publication: ClassVar[tuple[str, str]] = ("mnist", "LeCun et al. 1998")
    shape: ClassVar[tuple[int, ...]] = (1, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(DIGITS_BY_SPLIT.values()) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[70000, 1, 28, 28]``, y int64 and split int8 ``[70000]``."""
        counts = read_subsets(raw, writer)
        if self.complete:
            check_sizes(counts, DIGITS_BY_SPLIT, *self.publication)
        writer.describe(self.names, normalisation=self.normalisation)


def read_subsets(raw: Path, writer: Writer) -> dict[str, int]:
    """Write x uint8 [n, 1, 28, 28], y int64 and split int8 [n]; return the sizes of splits."""
    counts = {}
    for split, (name, prefix) in enumerate(FILE_PREFIXES.items()):
        images = read_idx(raw / f"{prefix}-images-idx3-ubyte.gz", IMAGE_SIDE, IMAGE_SIDE)
        path = raw / f"{prefix}-labels-idx1-ubyte.gz"
        labels = check_whole_numbers(read_idx(path), 0, 9, str(path), "labels").astype(np.int64)
        if len(images) != len(labels):
            raise DataError(
                f"{path}: {len(labels)} labels for {len(images)} images of the other file"
            )
        writer.append("x", images[:, None])
        writer.append("y", labels)
        writer.append("split", np.full(len(labels), split, np.int8))
        counts[name] = len(images)
    return counts


def read_idx(path: Path, *sides: int) -> np.ndarray:
    """Return the content of an IDX file, uint8 [n, *sides]."""
    with (
        wrap_read_errors(path, "is no complete IDX file", "fetch it again"),
        gzip.open(path) as stream,
    ):
        content = stream.read()
        numbers = struct.unpack_from(f">4B{1 + len(sides)}I", content)
        if numbers[:4] != (0, 0, 8, 1 + len(sides)) or numbers[5:] != sides:
            allowed = f"0, 0, 8, {1 + len(sides)}, n {' '.join(map(str, sides))}"
            raise DataError(f"{path}: begins with {numbers}. Allowed: {allowed}")
        return np.frombuffer(content, np.uint8, offset=8 + 4 * len(sides)).reshape(-1, *sides)
