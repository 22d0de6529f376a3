"""FedBN's digit_dataset.zip.

Format: utils/data_preprocess.py and utils/data_utils.py of med-air/FedBN: pickles of (images,
labels), ``<domain>/partitions/train_part<0-9>.pkl`` and ``<domain>/test.pkl``; images are uint8,
[n, 28, 28] (MNIST), [n, 16, 16] (USPS), [n, 32, 32, 3] (SVHN, SynthDigits) and [n, 28, 28, 3]
(MNIST-M), labels int64 [n].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from sources import Made
from sources.packing import pack, pickled

PARAMS = {"complete": False}
BROKEN = {
    "missing domain": (
        {"without": "USPS/"},
        r"digit_dataset\.zip: lacks USPS/partitions/train_part0\.pkl and 10 others",
    ),
    "images of another type": (
        {"spoil": "SVHN/test", "strange": pickled((np.zeros((2, 4, 4)), np.zeros(2, int)))},
        r"SVHN/test\.pkl: images are float64 \[2, 4, 4\]. Allowed: uint8",
    ),
}
SHAPES = {
    "MNIST": (28, 28),
    "SVHN": (32, 32, 3),
    "USPS": (16, 16),
    "SynthDigits": (32, 32, 3),
    "MNIST_M": (28, 28, 3),
}
PIECES, TEST = (3,) * 10, 10
"""Images of each training piece of a domain, and of each domain's test."""


def write(folder: Path, **broken: object) -> Made:
    draw = np.random.default_rng(0)
    members, images, labels = {}, [], []
    for name, shape in SHAPES.items():
        for piece, n in enumerate((*PIECES, TEST)):
            x = draw.integers(0, 256, (n, *shape), dtype=np.uint8)
            y = draw.permutation(n).astype(np.int64) % 10
            location = "test" if piece == 10 else f"partitions/train_part{piece}"
            members[f"{name}/{location}.pkl"] = pickled((x, y))
            images += list(x)
            labels += list(y)
    # The archive is not in the order of the rows.
    pack(folder / "digit_dataset.zip", dict(sorted(members.items())), **broken)
    domain = np.repeat(np.arange(5), sum(PIECES) + TEST)
    return Made(
        samples=len(labels),
        shape=(3, 28, 28),
        classes=tuple("0123456789"),
        y=np.array(labels),
        x={row: small(images[row]) for row in (0, 29, 30, 39, 40, 79, 80, 119, 130, 160, 199)},
        domains=("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M"),
        domain=domain,
        client=domain,
        split=np.tile(np.repeat([0, 1], [sum(PIECES), TEST]), 5),
    )


def small(image: np.ndarray) -> np.ndarray:
    """The picture as Pillow shows it in colour, at 28 x 28."""
    picture = Image.fromarray(image).resize((28, 28), 2).convert("RGB")
    return np.moveaxis(np.asarray(picture), 2, 0)
