"""Ten classes of DomainNet in six domains, from clip art and photographs to quick drawings.

X. Peng, Q. Bai, X. Xia, Z. Huang, K. Saenko and B. Wang. Moment Matching for Multi-Source Domain
Adaptation. ICCV 2019 (the data set); X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN:
Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021 (the ten classes,
the lists).

Licence: the publishers state fair use, for research and education.

What comes: an archive of images for each domain, from the publishers (``clipart`` and ``painting``
in the cleaned version, as FedBN takes them; 18 GB together), and FedBN's ``domainnet_dataset.zip``
with a training and a test list for each domain, on Google Drive, which asks for a click that no
program can make: put that one into the raw folder yourself. The ten classes, FedBN's most frequent:
bird, feather, headphones, ice cream, teapot, tiger, whale, windmill, wine glass, zebra.

What is done: the images that the lists name, and no other, are resized to a square, bilinearly,
without keeping their aspect, as FedBN does. The last fifth of a domain's training list is ``val``,
as in FedFA (T. Zhou and E. Konukoglu. ICLR 2023); the first ``0.8 train_share`` of it are ``train``
and what lies between is left out. ``train_share: 0.4`` gives the sizes that FedFA prints, which are
asserted: val and test always, train with that share. FedBN itself trains on the first 5 % of the
smallest list. Pixels are scaled to 0..1 and not normalised, as in FedBN. Grey images become colour
ones.

Memory: one image at a time, the lists and the index of one archive. On generated files, whose
archives are small, 2 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.fields import Count, Share
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import published_domains, validation
from fl.data.readers.published_domains import ListedSamples, fill_images, write_labels

CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
IMAGES_BY_DOMAIN = {
    "clipart": (672, 420, 526),
    "infograph": (840, 525, 657),
    "painting": (791, 494, 619),
    "quickdraw": (1280, 800, 1000),
    "real": (1556, 972, 1217),
    "sketch": (708, 442, 554),
}
"""Train, val and test samples of each domain, as FedFA prints them."""

FEDFA_SHARE = 0.4
"""Of the four fifths that can be trained on: what makes the printed numbers of training samples."""

DOMAINNET_SERVER = "http://csr.bu.edu/ftp/visda/2019/multi-source"
CLEANED_DOMAINS = ("clipart", "painting")


@dataclass(frozen=True)
class DomainNet:
    """Colour images in ten classes and six domains.

    Attributes:
        side: Height and width of images in pixels.
        train_share: Share of a domain's training samples that is used, see above.
        complete: Check the data against the published sizes; false reads a subset.
    """

    side: Count = 256
    train_share: Share = 1.0
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "domainnet_dataset.zip",
            None,
            note="it is FedBN's domainnet_dataset.zip on Google Drive, file"
            " 1_dx2-YDdvnNlQ13DTgDnLoGvMZvMyccR (see https://github.com/med-air/FedBN)",
        ),
        *(
            Source(
                f"{name}.zip",
                f"{DOMAINNET_SERVER}/{'groundtruth/' * (name in CLEANED_DOMAINS)}{name}.zip",
            )
            for name in IMAGES_BY_DOMAIN
        ),
    )
    domains: ClassVar[tuple[str, ...]] = tuple(IMAGES_BY_DOMAIN)
    classes: ClassVar[int] = len(CLASSES)
    natural_clients: ClassVar[int | None] = len(IMAGES_BY_DOMAIN)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, approximate unless the share is FedFA's; None for a subset."""
        if not self.complete:
            return None
        train = sum(train for train, _, _ in IMAGES_BY_DOMAIN.values())
        val_test = sum(val + test for _, val, test in IMAGES_BY_DOMAIN.values())
        return round(train * self.train_share / FEDFA_SHARE) + val_test

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (3, self.side, self.side)

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[samples, 3, side, side]``, y, domain, client and split ``[samples]``.

        Rows are sorted by domain; within one, train, val and test in the order of its lists.
        """
        lists, *archives = (raw / source.name for source in self.sources)
        read_lists = published_domains.read_lists(lists, self.domains, CLASSES)
        samples = published_domains.divide_lists(read_lists, self.domains, self._count_train_val)
        if self.complete:
            self._check_published_sizes(samples, lists)
        x = writer.create("x", (len(samples.y), *self.shape), np.uint8)
        for domain, archive in enumerate(archives):
            # A list's paths start with a folder for the whole set, an archive's with the domain's.
            rows = {p.partition("/")[2]: at for p, at in samples.rows(domain).items()}
            fill_images(archive, rows, x)
        write_labels(writer, samples.y, samples.domain, samples.split)
        normalisation = {"scale": 1 / 255, "mean": 0.0, "sd": 1.0}
        writer.describe(CLASSES, normalisation=normalisation, domains=self.domains)

    def _count_train_val(self, total: int) -> tuple[int, int]:
        val = total // 5
        return int(0.8 * self.train_share * total) if self.train_share < 1 else total - val, val

    def _check_published_sizes(self, samples: ListedSamples, lists: Path) -> None:
        sizes, published = (
            samples.counts(self.domains),
            published_domains.published_counts(IMAGES_BY_DOMAIN),
        )
        if self.train_share != FEDFA_SHARE:
            for name in self.domains:
                del sizes[f"{name} train"], published[f"{name} train"]
        validation.check_sizes(sizes, published, str(lists), "FedFA")
