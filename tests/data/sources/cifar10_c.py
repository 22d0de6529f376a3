"""CIFAR-10-C: a plain tar of one .npy for each corruption, and the labels.

Format: the README of the published archive (five severities one after the other, the labels of each
row in labels.npy) and https://github.com/hendrycks/robustness (uint8 [50000, 32, 32, 3]).
"""

from __future__ import annotations

import io
import tarfile

import numpy as np

from sources import Made

CORRUPTIONS = ("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost")
CORRUPTIONS += ("gaussian_blur", "gaussian_noise", "glass_blur", "impulse_noise")
CORRUPTIONS += ("jpeg_compression", "motion_blur", "pixelate", "saturate", "shot_noise", "snow")
CORRUPTIONS += ("spatter", "speckle_noise", "zoom_blur")
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
PARAMS = {"complete": False}
BROKEN = {
    "missing corruption": ({"without": "fog"}, r"CIFAR-10-C\.tar: lacks fog\.npy"),
    "missing labels": ({"without": "labels"}, r"CIFAR-10-C\.tar: lacks labels\.npy"),
    "fewer labels": ({"labels": 49}, r"CIFAR-10-C\.tar: labels\.npy has 49 labels for 50"),
    "labels between classes": ({"shift": 0.5}, r"labels\.npy: labels\[0\] is 0\.5; allowed: whole"),
    "an odd corruption": ({"odd": "snow"}, r"CIFAR-10-C/snow\.npy: has 45 images, but 50"),
    "channels first": ({"turn": True}, r"zoom_blur\.npy: has images of uint8 \[3, 32, 32\]"),
}
IMAGES = 10


def write(folder, without="", labels=None, shift=0, odd="", turn=False, objects="", images=IMAGES):
    draw = np.random.default_rng(2)
    shape = (len(CORRUPTIONS), 5, images, 32, 32, 3)
    x = draw.integers(0, 256, shape, dtype=np.uint8)
    y = np.tile(np.arange(images) % 10, 5)
    with tarfile.open(folder / "CIFAR-10-C.tar", "w") as tar:
        # Neither the archive's order nor that of the domains is that of the other.
        for name in sorted([*CORRUPTIONS, "labels"], reverse=True):
            array = y[:labels] + shift if name == "labels" else x[CORRUPTIONS.index(name)]
            array = array.reshape(-1, *array.shape[2:]) if array.ndim > 1 else array
            if name == odd:
                array = array[:45]
            if turn and array.ndim > 1:
                array = array.transpose(0, 3, 1, 2)
            if name == objects:
                array = array[:, 0, 0, 0].astype(object)
            out = io.BytesIO()
            np.save(out, np.ascontiguousarray(array), allow_pickle=True)
            info = tarfile.TarInfo(f"CIFAR-10-C/{name}.npy")
            info.size = len(out.getvalue())
            if name != without:
                tar.addfile(info, io.BytesIO(out.getvalue()))
    rows = {
        2 * images + 3: (0, 2, 3),
        0: (0, 0, 0),
        5 * images: (1, 0, 0),
        95 * images - 1: (18, 4, -1),
    }
    return Made(
        samples=95 * images,
        shape=(3, 32, 32),
        classes=tuple(CLASSES.split()),
        y=np.tile(y, 19),
        x={row: x[at].transpose(2, 0, 1) for row, at in rows.items()},
        domains=CORRUPTIONS,
        domain=np.repeat(np.arange(19), 5 * images),
        split=np.ones(95 * images),
    )
