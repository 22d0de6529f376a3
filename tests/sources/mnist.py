"""MNIST: four gzipped IDX files.

Format: "The IDX file format" on http://yann.lecun.com/exdb/mnist/ (magic 0, 0, type 8 = unsigned
byte, number of dimensions; big-endian uint32 sizes; the bytes in C order).
"""

from __future__ import annotations

import gzip
import struct

import numpy as np

from sources import Made

PARAMS = {"complete": False}
BROKEN = {
    "fewer labels than images": ({"labels": 35}, r"t(rain|10k)-labels.*: 35 labels for 40 images"),
}
TRAIN, TEST = 40, 20


def idx(array):
    head = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def write(folder, labels=None, train=TRAIN, test=TEST):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (train + test, 28, 28), dtype=np.uint8)
    y = np.arange(train + test) % 10
    files = {
        "train-images-idx3-ubyte.gz": x[:train],
        "train-labels-idx1-ubyte.gz": y[: labels or train],
        "t10k-images-idx3-ubyte.gz": x[train:],
        "t10k-labels-idx1-ubyte.gz": y[train:],
    }
    for name, array in files.items():
        (folder / name).write_bytes(gzip.compress(idx(array), mtime=0))
    return Made(
        samples=train + test,
        shape=(1, 28, 28),
        classes=tuple("0123456789"),
        y=y,
        x={row: x[row][None] for row in (0, 7, train, train + test - 1)},
        split=np.repeat([0, 1], [train, test]),
    )
