"""CINIC-10: a tar.gz of folders of PNG files.

Format: https://github.com/BayesWatch/cinic-10 (train, valid and test, a folder for each class in
each, 32 x 32; names tell where a picture is from: cifar10-train-42.png, n02123394_1234.png).
"""

from __future__ import annotations

import io
import tarfile

import numpy as np
from PIL import Image

from sources import Made

CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split(" ")  # noqa: SIM905
PARAMS = {"complete": False}
BROKEN = {
    "missing class folder": (
        {"without": "valid/frog"},
        r"CINIC-10\.tar\.gz: lacks valid/frog; delete the file",
    ),
    "wrong size": ({"side": 64}, r"member train/cat/\S+ is 64 x 64 pixels; allowed: 32 x 32"),
    "other folder": ({"extra": "train/boat/a.png"}, r"member train/boat/a\.png is in no folder"),
}
EACH = 2


def png(pixels, mode="RGB"):
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, "PNG")
    return out.getvalue()


def write(folder, without="", mode="RGB", side=32, extra="", each=EACH):
    draw = np.random.default_rng(3)
    x, y, split = [], [], []
    with tarfile.open(folder / "CINIC-10.tar.gz", "w:gz") as tar:

        def add(name, content):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))

        add("README.md", b"CINIC-10")
        for code, part in enumerate(("train", "test", "valid")):
            for label, name in enumerate(CLASSES):
                odd = (part, name) == ("train", "cat")
                for n in range(each if f"{part}/{name}" != without else 0):
                    edge = side if odd else 32
                    pixels = draw.integers(0, 256, (edge, edge, 3), dtype=np.uint8)
                    content = png(pixels, mode if odd and mode != "none" else "RGB")
                    content = content[:60] if odd and mode == "none" else content
                    if (part, name, n) == ("test", "dog", 0):  # Some are grey.
                        content, pixels = png(pixels[..., 0], "L"), pixels[..., :1].repeat(3, 2)
                    add(f"{part}/{name}/cifar10-{part}-{n}.png", content)
                    x.append(pixels.transpose(2, 0, 1))
                    y.append(label)
                    split.append(code)
        if extra:
            add(extra, png(pixels))
    return Made(
        samples=len(y),
        shape=(3, 32, 32),
        classes=tuple(CLASSES),
        y=np.array(y),
        x=dict(enumerate(x)),
        split=np.array(split),
    )
