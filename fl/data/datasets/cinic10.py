"""The classes of CIFAR-10 over 270,000 photographs of 32 x 32 pixels, from CIFAR-10 and ImageNet.

L. N. Darlow, E. J. Crowley, A. Antoniou and A. J. Storkey. CINIC-10 is not ImageNet or CIFAR-10.
2018. arXiv:1810.03505

Licence: CC BY 4.0, https://datashare.ed.ac.uk/handle/10283/3192, where the archive comes from.

Pictures are decoded as they are (grey ones among them become colour) in the archive's order.
``split`` says which are the published 90,000 each to train, to validate and to test on; every split
has 9,000 of every class.

Memory: besides the arrays, preparation needs 10 MB at most for any number of images.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.datasets.cifar10 import OBJECTS
from fl.data.download import Source
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.readers.archives import iter_members
from fl.data.readers.image_files import decode_image
from fl.data.readers.validation import check_missing, check_sizes

SPLIT_BY_FOLDER = {"train": "train", "test": "test", "valid": "val"}
"""The split by the name of its folder."""
IMAGE_SIDE, IMAGES_PER_FOLDER = 32, 9000
CINIC10_NORMALISATION = {
    "scale": 1 / 255,
    "mean": [0.47889522, 0.47227842, 0.43047404],
    "sd": [0.24205776, 0.23828046, 0.25874835],
}
"""Per colour, on the scale from 0 to 1, as its authors state (github.com/BayesWatch/cinic-10)."""


@dataclass(frozen=True)
class CINIC10:
    """Images of 3 x 32 x 32 pixels, 0 to 255, in ten classes.

    Attributes:
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "CINIC-10.tar.gz",
            "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
            "31b095acf6d75e25a9e028bae82a07a0f94ff6b00671be2802d34ac4efa81a9e",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = (3, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return len(SPLIT_BY_FOLDER) * len(OBJECTS) * IMAGES_PER_FOLDER if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[270000, 3, 32, 32]``, y int64 and split int8 ``[270000]``."""
        archive, counts = raw / self.sources[0].name, Counter[str]()
        for path, content in iter_members(archive, lambda path: path.endswith(".png")):
            folder, _, inner_path = path.partition("/")
            name = inner_path.partition("/")[0]
            if folder not in SPLIT_BY_FOLDER or name not in OBJECTS:
                allowed = f"{', '.join(SPLIT_BY_FOLDER)}, and in each {', '.join(OBJECTS)}"
                raise DataError(
                    f"{archive}: member {path} is in no folder of CINIC-10's; {allowed}"
                )
            image = decode_image(content, None)
            if image.shape != self.shape:
                problem = f"is {image.shape[2]} x {image.shape[1]} pixels. Allowed: 32 x 32"
                raise DataError(f"{archive}: member {path} {problem}")
            split = np.int8(SPLIT_NAMES.index(SPLIT_BY_FOLDER[folder]))
            writer.add(x=image, y=np.int64(OBJECTS.index(name)), split=split)
            counts[f"{folder}/{name}"] += 1
        folders = [f"{folder}/{name}" for folder in SPLIT_BY_FOLDER for name in OBJECTS]
        check_missing(archive, [subset for subset in folders if not counts[subset]])
        if self.complete:
            check_sizes(
                counts, dict.fromkeys(folders, IMAGES_PER_FOLDER), "cinic10", "Darlow et al. 2018"
            )
        writer.describe(OBJECTS, normalisation=CINIC10_NORMALISATION)
