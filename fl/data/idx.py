"""MNIST's files, which other sets have taken over: four gzipped IDX files of 28 x 28 pixels.

"The IDX file format" on http://yann.lecun.com/exdb/mnist/: 0, 0, the type (8: unsigned byte), the
number of dimensions; the size of each, big-endian; the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fl.base.errors import DataError
from fl.data.archives import decompressed, name_of
from fl.data.prepared import Writer
from fl.data.whole import whole

SIDE, CHUNK = 28, 10_000
PUBLISHED = {"train": 60_000, "test": 10_000}
PARTS = {"train": "train", "test": "t10k"}


def read_parts(raw: Path, writer: Writer) -> dict[str, int]:
    """Write x uint8 ``[n, 1, 28, 28]``, y int64 and split int8 ``[n]``; the images of each part."""
    counts = {}
    for split, (part, prefix) in enumerate(PARTS.items()):
        labels = read_labels(raw / f"{prefix}-labels-idx1-ubyte.gz")
        counts[part] = 0
        for images in read_images(raw / f"{prefix}-images-idx3-ubyte.gz"):
            writer.append("x", images[:, None])
            counts[part] += len(images)
        if counts[part] != len(labels):
            raise DataError(
                f"{raw}/{prefix}-labels-idx1-ubyte.gz: {len(labels)} labels for"
                f" {counts[part]} images of the other file"
            )
        writer.append("y", labels)
        writer.append("split", np.full(len(labels), split, np.int8))
    return counts


def read_images(path: Path) -> Iterator[np.ndarray]:
    """The images of an IDX file, uint8 ``[n, 28, 28]``, up to 10,000 at a time."""
    with decompressed(path) as stream:
        n, *sides = _sizes(stream, 3)
        if sides != [SIDE, SIDE]:
            raise DataError(f"{path}: images of {sides[0]} x {sides[1]} pixels; allowed: 28 x 28")
        for first in range(0, n, CHUNK):
            rows = min(CHUNK, n - first)
            yield _bytes(stream, rows * SIDE * SIDE).reshape(rows, SIDE, SIDE)


def read_labels(path: Path) -> np.ndarray:
    """The labels in an IDX file, int64 ``[n]``."""
    with decompressed(path) as stream:
        (n,) = _sizes(stream, 1)
        labels = _bytes(stream, n)
    return whole(labels, 0, 9, str(path), "labels").astype(np.int64)


def _sizes(stream: BinaryIO, dimensions: int) -> tuple[int, ...]:
    """The sizes in the head of an IDX file of unsigned bytes."""
    head = _bytes(stream, 4)
    if head.tolist() != [0, 0, 8, dimensions]:
        raise DataError(
            f"{name_of(stream)}: begins with {head.tolist()}; allowed: 0, 0, 8, {dimensions}, an"
            f" IDX file of unsigned bytes in {dimensions} dimensions"
        )
    return struct.unpack(f">{dimensions}I", _bytes(stream, 4 * dimensions).tobytes())


def _bytes(stream: BinaryIO, n: int) -> np.ndarray:
    content = stream.read(n)
    if len(content) != n:
        raise DataError(f"{name_of(stream)}: ends {n - len(content)} bytes early; fetch it again")
    return np.frombuffer(content, np.uint8)
