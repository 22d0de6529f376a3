"""CIFAR-100, Python version: as CIFAR-10, but with two batches and two labels for each image.

Format: https://www.cs.toronto.edu/~kriz/cifar.html and the loader of torchvision.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.cifar10 import batch
from sources.packing import pack, pickled

FINE = tuple(f"class {n:02}" for n in range(100))
COARSE = tuple(f"superclass {n:02}" for n in range(20))
PARAMS = {"complete": False}
BROKEN = {
    "no fine labels": ({"spoil": "fine_labels"}, r"cifar-100-python/test: has no entry fine_lab"),
}
TRAIN, TEST = 120, 30


def write(folder, spoil=""):
    train, test = TRAIN, TEST
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (train + test, 3, 32, 32), dtype=np.uint8)
    fine = np.arange(train + test) % 100
    made = {
        "meta": {
            b"fine_label_names": [name.encode() for name in FINE],
            b"coarse_label_names": [name.encode() for name in COARSE],
        }
    }
    for name, rows in (("test", slice(train, None)), ("train", slice(train))):
        made[name] = batch(name, x[rows], fine[rows])
        made[name][b"fine_labels"] = made[name].pop(b"labels")
        made[name][b"coarse_labels"] = [int(label) // 5 for label in fine[rows]]
    for entry in made.values():
        entry.pop(spoil.encode(), None)
    members = {f"cifar-100-python/{name}": pickled(content, 2) for name, content in made.items()}
    pack(folder / "cifar-100-python.tar.gz", members)
    return Made(
        samples=train + test,
        shape=(3, 32, 32),
        classes=FINE,
        y=fine,
        x={row: x[row] for row in (0, 77, train, train + test - 1)},
        split=np.repeat([0, 1], [train, test]),
    )
