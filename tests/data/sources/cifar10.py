"""CIFAR-10, Python version: a tar.gz of pickles that Python 2 wrote.

Format: https://www.cs.toronto.edu/~kriz/cifar.html (members, keys of the dictionaries, rows of
3,072 bytes: 1,024 red, then green, then blue) and the loader of torchvision. The order of the
members is not alphabetical in the published archive either.
"""

from __future__ import annotations

import os
import pickle

import numpy as np

from sources import Made
from sources.packing import tarred

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
PARAMS = {"complete": False}
BROKEN = {
    "missing batch": ({"without": "data_batch_3"}, r"cifar-10-python\.tar\.gz: lacks .*batch_3"),
    "batch without labels": ({"spoil": "labels"}, r"tar\.gz: cifar-10-b.*data_batch_4: .*labels"),
    "class without a name": (
        {"spoil": "label_names"},
        r"batches\.meta: label_names is .*10 classes",
    ),
    "label between classes": (
        {"odd": ("labels", 1.7)},
        r"data_batch_4: labels\[3\] is 1\.7; allowed",
    ),
    "batch of another shape": ({"spoil": "data"}, r"data_batch_4: .*data.*\[10, 3000\]"),
    "hostile pickle": ({"spoil": "evil"}, r"data_batch_4: asks for (posix|os)\.system"),
}
ORDER = ("batches.meta", "data_batch_4", "test_batch", *(f"data_batch_{n}" for n in (3, 2, 5, 1)))
BATCH = 10


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


def old(value):
    """A pickle as Python 2 wrote it: its text is bytes to Python 3, its protocol 2."""
    text = pickle.dumps(value, 2)
    assert pickle.loads(text, encoding="bytes") is not None
    return text


def archive(path, folder, members):
    tarred(path, ((f"{folder}/{name}", content) for name, content in members.items()))


def batch(name, x, y):
    return {
        b"batch_label": name.encode(),
        b"labels": [int(label) for label in y],
        b"data": x.reshape(len(x), -1),
        b"filenames": [b"x.png"] * len(x),
    }


def write(folder, without="", spoil="", odd=None, size=BATCH):
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
    elif spoil == "label_names":
        made["batches.meta"][b"label_names"].pop()
    elif spoil:
        del made["data_batch_4"][spoil.encode()]
    if odd:
        key, value = odd
        content = made["data_batch_4"]
        content[b"data"] = content[b"data"].astype(float)
        content[key.encode()][(3, 5) if key == "data" else 3] = value
    members = {
        name: pickle.dumps(made[name], 2) if spoil == "evil" else old(made[name])
        for name in ORDER
        if name != without
    }
    archive(folder / "cifar-10-python.tar.gz", "cifar-10-batches-py", members)
    return Made(
        samples=6 * size,
        shape=(3, 32, 32),
        classes=tuple(NAMES),
        y=y,
        x={row: x[row] for row in (0, 11, 35, 49, 50, 59)},
        split=np.repeat([0, 1], [5 * size, size]),
    )
