"""DIGITS: the ten digits in five domains, MNIST, SVHN, USPS, SynthDigits and MNIST-M.

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization. ICLR 2021 (the benchmark); Y. LeCun, L. Bottou, Y. Bengio and P. Haffner.
Gradient-Based Learning Applied to Document Recognition. Proc. IEEE 1998 (MNIST); Y. Netzer et al.
Reading Digits in Natural Images with Unsupervised Feature Learning. NIPS workshop 2011 (SVHN); J.
J. Hull. A Database for Handwritten Text Recognition Research. PAMI 1994 (USPS); Y. Ganin and V.
Lempitsky. Unsupervised Domain Adaptation by Backpropagation. ICML 2015 (SynthDigits, MNIST-M).

Licence: none is stated for the pack; MNIST is CC BY-SA 3.0, SVHN for non-commercial use.

What comes: ``digit_dataset.zip``, FedBN's pack, on Google Drive, which asks for a click that no
program can make: put it into the raw folder yourself. (Of the five sets' own releases, SynthDigits
lies on Google Drive only, so that taking those would spare nobody the click.) The pack joins each
set's own train and test images and divides them anew, class by class, four to one; of the training
part it keeps as many as the smallest domain has, 7,438, in ten pieces: pickles
``<domain>/partitions/train_part<0-9>.pkl`` and ``<domain>/test.pkl``, each an array of images and
one of labels.

What is done: images are resized to 28 x 28 bilinearly, grey ones become colour ones, and a model
sees (x - 0.5) / 0.5, as in FedBN. ``parts`` of the ten pieces are taken: FedBN's main table uses
one. The pieces have no validation samples. FedLGD (C.-Y. Huang et al. TMLR 2024) uses the five
sets' own splits and all their training images instead, and prints no sizes; those of the pack, from
FedBN's preprocessing code, are asserted.

Memory: 341 MB, the largest pickle, SynthDigits' test images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Bound
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import pickles, published_domains, validation
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.published_domains import TEST, TRAIN, matching_name, write_labels
from fl.data.readers.validation import check_whole_numbers

IMAGE_SIDE, TRAINING_PIECES, TRAINING_IMAGES = 28, 10, 7438

DOMAIN_FOLDERS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M")
"""The pack's names of the domains."""

TEST_IMAGES = {"MNIST": 14000, "SVHN": 19858, "USPS": 1860, "SynthDigits": 97791, "MNIST-M": 14000}


@dataclass(frozen=True)
class DigitsFive:
    """Images of 3 x 28 x 28 pixels in ten classes and five domains.

    Attributes:
        parts: Number of the ten pieces of the training images that are used.
        complete: Check the data against the published sizes; false reads a subset.
    """

    parts: Annotated[int, Bound(low=1, high=TRAINING_PIECES)] = TRAINING_PIECES
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "digit_dataset.zip",
            None,
            note="it is FedBN's digit_dataset.zip on Google Drive, file"
            " 1moBE_ASD5vIOaU8ZHm_Nsj0KAfX5T0Sf (see https://github.com/med-air/FedBN)",
        ),
    )
    domains: ClassVar[tuple[str, ...]] = tuple(TEST_IMAGES)
    shape: ClassVar[tuple[int, ...]] = (3, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = len(TEST_IMAGES)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        if not self.complete:
            return None
        return len(TEST_IMAGES) * (TRAINING_IMAGES * self.parts // TRAINING_PIECES) + sum(
            TEST_IMAGES.values()
        )

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[samples, 3, 28, 28]``, y, domain, client and split ``[samples]``.

        Rows are sorted by domain; within one, the training pieces in order and then the test.
        """
        archive = raw / self.sources[0].name
        labels = {name: y for name, _, y in self._pickles(archive)}
        validation.check_missing(archive, (name for name in self._names() if name not in labels))
        starts = self._describe(archive, labels, writer)
        x = writer.create("x", (sum(map(len, labels.values())), *self.shape), np.uint8)
        for name, images, y in self._pickles(archive):
            for row, image in enumerate(images[: len(y)], starts[name]):
                x[row] = resize(image)

    def _names(self) -> dict[str, tuple[int, int]]:
        """Domain and split of each pickle, in the order of the rows."""
        return {
            name: (domain, split)
            for domain, folder in enumerate(DOMAIN_FOLDERS)
            for name, split in (
                *((f"{folder}/partitions/train_part{n}.pkl", TRAIN) for n in range(self.parts)),
                (f"{folder}/test.pkl", TEST),
            )
        }

    def _pickles(self, archive: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        names = self._names()
        for path, stream in iter_members(
            archive, lambda path: matching_name(path, names) is not None
        ):
            images, y = _check_pickle(pickles.load_pickle(stream), stream_name(stream))
            yield str(matching_name(path, names)), images, y

    def _describe(
        self, archive: Path, labels: dict[str, np.ndarray], writer: Writer
    ) -> dict[str, int]:
        """Write all but the images; the first row of each pickle."""
        names = self._names()
        sizes = [len(labels[name]) for name in names]
        domain, split = (
            np.repeat([numbers[i] for numbers in names.values()], sizes) for i in (0, 1)
        )
        if self.complete:
            splits, share = ("train", "test"), TRAINING_IMAGES * self.parts // TRAINING_PIECES
            counted = published_domains.domain_counts(domain, split, self.domains, splits)
            published = published_domains.published_counts(
                {name: (share, n) for name, n in TEST_IMAGES.items()}, splits
            )
            validation.check_sizes(counted, published, str(archive), "FedBN")
        write_labels(writer, np.concatenate([labels[name] for name in names]), domain, split)
        digits = [str(digit) for digit in range(self.classes)]
        normalisation = {"scale": 1 / 255, "mean": 0.5, "sd": 0.5}
        writer.describe(digits, normalisation=normalisation, domains=self.domains)
        return dict(zip(names, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))


def resize(image: np.ndarray) -> np.ndarray:
    """An image ``[side, side]`` or ``[side, side, 3]`` as ``[3, 28, 28]``, bilinearly."""
    from PIL import Image

    small = np.asarray(
        Image.fromarray(image).resize((IMAGE_SIDE, IMAGE_SIDE), Image.Resampling.BILINEAR)
    )
    return small if small.ndim == 2 else small.transpose(2, 0, 1)


def _check_pickle(loaded: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(loaded, list | tuple) or len(loaded) != 2:
        raise DataError(f"{name}: is no pair of images and labels")
    images, labels = loaded
    y = check_whole_numbers(labels, 0, 9, name, "labels").reshape(-1).astype(np.int64)
    grey_or_colour = isinstance(images, np.ndarray) and images.dtype == np.uint8
    if not grey_or_colour or images.ndim < 3 or images.shape[3:] not in ((), (3,)):
        allowed = "uint8 [n, side, side] or [n, side, side, 3]"
        kind = type(images).__name__
        if isinstance(images, np.ndarray):
            kind = f"{images.dtype} {list(images.shape)}"
        raise DataError(f"{name}: images are {kind}. Allowed: {allowed}")
    if len(y) != len(images) or not len(y):
        raise DataError(f"{name}: {len(images)} images have {len(y)} labels. Allowed: one for each")
    return images, y
