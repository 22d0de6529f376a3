"""CINIC-10: a tar.gz of folders of PNG files.

Format: https://github.com/BayesWatch/cinic-10 (train, valid and test, a folder for each class in
each, 32 x 32; names tell where a picture is from: cifar10-train-42.png, n02123394_1234.png).
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import encoded, pack

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split(" ")  # noqa: SIM905
PARAMS = {"complete": False}
BROKEN = {
    "missing class folder": (
        {"without": "valid/frog"},
        r"CINIC-10\.tar\.gz: lacks valid/frog. Try: delete the file",
    ),
    "wrong size": ({"side": 64}, r"member train/cat/\S+ is 64 x 64 pixels. Allowed: 32 x 32"),
}
EACH = 2


def write(folder, side=32, **broken):
    draw = np.random.default_rng(3)
    x, y, split, members = [], [], [], {"README.md": b"CINIC-10"}
    for code, group in enumerate(("train", "test", "valid")):
        for label, name in enumerate(CLASSES):
            edge = side if (group, name) == ("train", "cat") else 32
            for n in range(EACH):
                pixels = draw.integers(0, 256, (edge, edge, 3), dtype=np.uint8)
                content = encoded(pixels)
                if (group, name, n) == ("test", "dog", 0):  # Some are grey.
                    content, pixels = encoded(pixels[..., 0]), pixels[..., :1].repeat(3, 2)
                members[f"{group}/{name}/cifar10-{group}-{n}.png"] = content
                x.append(pixels.transpose(2, 0, 1))
                y.append(label)
                split.append(code)
    pack(folder / "CINIC-10.tar.gz", members, **broken)
    return Made(
        samples=len(y),
        shape=(3, 32, 32),
        classes=tuple(CLASSES),
        y=np.array(y),
        x=dict(enumerate(x)),
        split=np.array(split),
    )
