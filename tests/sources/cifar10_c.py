"""CIFAR-10-C: a plain tar of one .npy for each corruption, and the labels.

Format: the README of the published archive (five severities one after the other, the labels of each
row in labels.npy) and https://github.com/hendrycks/robustness (uint8 [50000, 32, 32, 3]).
"""

from __future__ import annotations

import io

import numpy as np

from sources import Made
from sources.packing import pack

CORRUPTIONS = ("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost")
CORRUPTIONS += ("gaussian_blur", "gaussian_noise", "glass_blur", "impulse_noise")
CORRUPTIONS += ("jpeg_compression", "motion_blur", "pixelate", "saturate", "shot_noise", "snow")
CORRUPTIONS += ("spatter", "speckle_noise", "zoom_blur")
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck"
PARAMS = {"complete": False}
BROKEN = {
    "missing corruption": ({"without": "fog"}, r"CIFAR-10-C\.tar: lacks fog\.npy"),
    "fewer labels": ({"labels": 49}, r"CIFAR-10-C\.tar: labels\.npy has 49 labels for 50"),
    "channels first": ({"turn": True}, r"zoom_blur\.npy: has images of uint8 \[3, 32, 32\]"),
}
IMAGES = 10


def npy(array):
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(array))
    return out.getvalue()


def write(folder, labels=None, turn=False, **broken):
    draw, images = np.random.default_rng(2), IMAGES
    shape = (len(CORRUPTIONS), 5, images, 32, 32, 3)
    x = draw.integers(0, 256, shape, dtype=np.uint8)
    y = np.tile(np.arange(images) % 10, 5)
    members = {}
    # Neither the archive's order nor that of the domains is that of the other.
    for name in sorted(CORRUPTIONS, reverse=True):
        array = x[CORRUPTIONS.index(name)].reshape(-1, 32, 32, 3)
        members[name] = array.transpose(0, 3, 1, 2) if turn else array
    members = {"zoom_blur": members.pop("zoom_blur"), **members, "labels": y[:labels]}
    packed = {f"CIFAR-10-C/{name}.npy": npy(array) for name, array in members.items()}
    pack(folder / "CIFAR-10-C.tar", packed, **broken)
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
