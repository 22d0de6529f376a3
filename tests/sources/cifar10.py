"""CIFAR-10, Python version: a tar.gz of pickles that Python 2 wrote.

Format: https://www.cs.toronto.edu/~kriz/cifar.html (members, keys of the dictionaries, rows of
3,072 bytes: 1,024 red, then green, then blue) and the loader of torchvision. The order of the
members is not alphabetical in the published archive either.
"""

from __future__ import annotations

import os

import numpy as np

from sources import Made
from sources.packing import pack, pickled

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PARAMS = {"complete": False}
BROKEN = {
    "batch of another shape": ({"spoil": "data"}, r"data_batch_4: .*data.*\[10, 3000\]"),
    "hostile pickle": ({"spoil": "evil"}, r"data_batch_4: asks for (posix|os)\.system"),
}
ORDER = ("batches.meta", "data_batch_4", "test_batch", *(f"data_batch_{n}" for n in (3, 2, 5, 1)))
BATCH = 10


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


def batch(name, x, y):
    return {
        b"batch_label": name.encode(),
        b"labels": [int(label) for label in y],
        b"data": x.reshape(len(x), -1),
        b"filenames": [b"x.png"] * len(x),
    }


def write(folder, spoil="", size=BATCH):
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (6 * size, 3, 32, 32), dtype=np.uint8)
    y = np.arange(6 * size) % 10
    parts = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    made = {
        name: batch(name, x[i * size : (i + 1) * size], y[i * size : (i + 1) * size])
        for i, name in enumerate(parts)
    }
    made["batches.meta"] = {
        b"num_cases_per_batch": size,
        b"label_names": [name.encode() for name in NAMES],
        b"num_vis": 3072,
    }
    if spoil == "data":
        made["data_batch_4"][b"data"] = made["data_batch_4"][b"data"][:, :3000]
    elif spoil == "evil":
        made["data_batch_4"][b"data"] = Evil()
    members = {f"cifar-10-batches-py/{name}": pickled(made[name], 2) for name in ORDER}
    pack(folder / "cifar-10-python.tar.gz", members)
    return Made(
        samples=6 * size,
        shape=(3, 32, 32),
        classes=tuple(NAMES),
        y=y,
        x={row: x[row] for row in (0, 11, 35, 49, 50, 59)},
        split=np.repeat([0, 1], [5 * size, size]),
    )
