"""Ten kinds of objects in four domains: Amazon, Caltech, DSLR and Webcam.

B. Gong, Y. Shi, F. Sha and K. Grauman. Geodesic Flow Kernel for Unsupervised Domain Adaptation.
CVPR 2012 (the data set); X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning
on Non-IID Features via Local Batch Normalization. ICLR 2021 (as packed here).

Licence: none is stated; Office and Caltech-256, from which the images are, are given for research.

What comes: ``office_caltech_10_dataset.zip``, FedBN's pack, on Google Drive, which asks for a click
that no program can make: put it into the raw folder yourself. It holds the images,
``office_caltech_10/<domain>/<class>/<image>.jpg``, and for each domain a list of training and one
of test images.

What is done: images are resized to a square, bilinearly, without keeping their aspect, as FedBN
does. Of a domain's training list, in its order, the first 60 % (rounded down) are ``train``, the
rest ``val``, as in FedFA (T. Zhou and E. Konukoglu. ICLR 2023), whose sizes are asserted; FedBN
itself trains on parts of these. Pixels are scaled to 0..1 and not normalised, as in FedBN. Grey
images become colour ones.

Memory: one image at a time and the lists, 4 MB here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.fields import Count
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import published_domains, validation
from fl.data.readers.published_domains import fill_images, write_labels

CLASSES = (
    "back_pack",
    "bike",
    "calculator",
    "headphones",
    "keyboard",
    "laptop_computer",
    "monitor",
    "mouse",
    "mug",
    "projector",
)
TRAIN_SHARE = 0.6
"""Of a domain's training list; the rest validates."""

IMAGES_BY_DOMAIN = {
    "amazon": (459, 307, 192),
    "caltech": (538, 360, 225),
    "dslr": (75, 50, 32),
    "webcam": (141, 95, 59),
}
"""Train, val and test samples, as FedFA prints them."""


@dataclass(frozen=True)
class OfficeCaltech10:
    """Colour images in ten classes and four domains.

    Attributes:
        side: Height and width of images in pixels.
        complete: Check the data against the published sizes; false reads a subset.
    """

    side: Count = 256
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "office_caltech_10_dataset.zip",
            None,
            note="it is FedBN's office_caltech_10_dataset.zip on Google Drive, file"
            " 1gxhV5xRXQgC9AL4XexduH7hdxDng7bJ3 (see https://github.com/med-air/FedBN)",
        ),
    )
    domains: ClassVar[tuple[str, ...]] = tuple(IMAGES_BY_DOMAIN)
    classes: ClassVar[int] = len(CLASSES)
    natural_clients: ClassVar[int | None] = len(IMAGES_BY_DOMAIN)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(map(sum, IMAGES_BY_DOMAIN.values())) if self.complete else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (3, self.side, self.side)

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[2533, 3, side, side]``, y, domain, client and split ``[2533]``.

        Rows are sorted by domain; within one, train, val and test in the order of its lists.
        """
        archive = raw / self.sources[0].name
        lists = published_domains.read_lists(archive, self.domains, CLASSES)
        samples = published_domains.divide_lists(lists, self.domains, _count_train_val)
        if self.complete:
            published = published_domains.published_counts(IMAGES_BY_DOMAIN)
            validation.check_sizes(samples.counts(self.domains), published, str(archive), "FedFA")
        x = writer.create("x", (len(samples.y), *self.shape), np.uint8)
        fill_images(archive, samples.rows(), x)
        write_labels(writer, samples.y, samples.domain, samples.split)
        normalisation = {"scale": 1 / 255, "mean": 0.0, "sd": 1.0}
        writer.describe(CLASSES, normalisation=normalisation, domains=self.domains)


def _count_train_val(total: int) -> tuple[int, int]:
    train = int(TRAIN_SHARE * total)
    return train, total - train
