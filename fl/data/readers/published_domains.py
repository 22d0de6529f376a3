"""Helpers of readers of data sets with several domains and published splits.

An archive is read once, in its own order. Each image is written directly to its row of a
memory-mapped array, so that only one image at a time is in memory.

Releases of FedBN divide a domain by lists of paths of images and names of their classes. A list is
a pickle, ``<domain>_train.pkl`` or ``<domain>_test.pkl``, of two sequences: X. Li, M. Jiang, X.
Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization. ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.readers import pickles, validation
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.image_files import decode_image
from fl.data.readers.validation import check_missing

ImageReader = Callable[[BinaryIO], np.ndarray]

TRAIN, TEST, VAL = (SPLIT_NAMES.index(name) for name in ("train", "test", "val"))

COLOUR_MODES = ("L", "LA", "P", "RGBA", "CMYK")
"""Modes of images that are converted to colour: grey, with transparency, or for print."""


def matching_name(name: str, names: Mapping[str, Any]) -> str | None:
    """Return the item of ``names`` with which the path ``name`` ends, or None."""
    while name not in names:
        _, separator, name = name.partition("/")
        if not separator:
            return None
    return name


def fill_images(
    archive: Path, rows: Mapping[str, Any], x: np.ndarray, read: ImageReader | None = None
) -> None:
    """Write images of an archive into an array.

    Args:
        archive: The archive.
        rows: Index in ``x`` of each image, by path in the archive.
        x: The array.
        read: Returns the values of one image from its stream. By default the image is decoded in
            colour and resized to the height and width of ``x``.

    Raises:
        DataError: If an image is missing or cannot be read.
    """
    read = read or (lambda stream: decode_image(stream, x.shape[-2:], converts=COLOUR_MODES))
    missing = dict.fromkeys(rows)
    for name, stream in iter_members(
        archive, lambda name: matching_name(name, missing) is not None
    ):
        key = matching_name(name, rows)
        assert key is not None
        x[rows[key]] = read(stream)
        missing.pop(key, None)
    check_missing(archive, missing)


def write_labels(
    writer: Writer, y: np.ndarray, domain: np.ndarray, split: np.ndarray | None
) -> None:
    """Write y int64, domain and client int32 and split int8; each domain is a natural client."""
    writer.save("y", y.astype(np.int64))
    writer.save("domain", domain.astype(np.int32))
    writer.save("client", domain.astype(np.int32))
    if split is not None:
        writer.save("split", split.astype(np.int8))


NUMBER_BY_SPLIT = {"train": TRAIN, "val": VAL, "test": TEST}


def domain_counts(
    domain: np.ndarray,
    split: np.ndarray,
    domains: Sequence[str],
    splits: Iterable[str] = NUMBER_BY_SPLIT,
) -> dict[str, int]:
    """Return the number of samples by ``"<domain> <split>"``.

    Args:
        domain: Domain of each sample ``[samples]``.
        split: Split of each sample ``[samples]``.
        domains: Names of the domains.
        splits: Names of the splits to count.
    """
    return {
        f"{name} {split_name}": int(
            np.sum((domain == number) & (split == NUMBER_BY_SPLIT[split_name]))
        )
        for number, name in enumerate(domains)
        for split_name in splits
    }


def published_counts(
    published: Mapping[str, Sequence[int]], splits: Iterable[str] = NUMBER_BY_SPLIT
) -> dict[str, int]:
    """Return published sizes by ``"<domain> <split>"`` from the sizes by domain."""
    return {
        f"{name} {split_name}": size
        for name, sizes in published.items()
        for split_name, size in zip(splits, sizes, strict=True)
    }


@dataclass(frozen=True)
class ListedSamples:
    """Images of a data set in the order of its lists.

    Attributes:
        path: Path of each image in its archive ``[samples]``.
        y: Class ``[samples]``.
        domain: Domain ``[samples]``.
        split: Published split ``[samples]``.
    """

    path: tuple[str, ...]
    y: np.ndarray
    domain: np.ndarray
    split: np.ndarray

    def rows(self, domain: int | None = None) -> dict[str, list[int]]:
        """Return the rows of each path, of one domain or of all; a list may repeat a path."""
        by_path: dict[str, list[int]] = {}
        for row, path in enumerate(self.path):
            if domain is None or self.domain[row] == domain:
                by_path.setdefault(path, []).append(row)
        return by_path

    def counts(self, domains: Sequence[str]) -> dict[str, int]:
        """Return the number of samples by ``"<domain> <split>"``."""
        return domain_counts(self.domain, self.split, domains)


def divide_lists(
    lists: Mapping[str, tuple[list[str], list[int]]],
    domains: Sequence[str],
    count_train_val: Callable[[int], tuple[int, int]],
) -> ListedSamples:
    """Return the samples of all domains in order, each domain's train, val and test samples.

    Args:
        lists: Paths and classes by name of the list, see `read_lists`.
        domains: Names of the domains.
        count_train_val: Returns, for the length of a training list, how many samples from its
            start are for training and how many at its end for validation; the samples between
            are left out.
    """
    paths: list[str] = []
    rows = []
    for number, name in enumerate(domains):
        (listed, y), held_out = lists[f"{name}_train.pkl"], lists[f"{name}_test.pkl"]
        train, val = count_train_val(len(listed))
        val_start = len(listed) - val
        paths += [*listed[:train], *listed[val_start:], *held_out[0]]
        y = [*y[:train], *y[val_start:], *held_out[1]]
        split = np.repeat([TRAIN, VAL, TEST], [train, val, len(held_out[0])])
        rows.append(np.stack([y, np.full(len(y), number), split]))
    y, domain, split = np.concatenate(rows, axis=1)
    return ListedSamples(tuple(paths), y, domain, split)


def read_lists(
    archive: Path, domains: Sequence[str], classes: Sequence[str]
) -> dict[str, tuple[list[str], list[int]]]:
    """Return the lists in an archive: ``{"<domain>_train.pkl": (paths, labels), ...}``.

    Raises:
        DataError: If a list is missing, or is no list of paths and known classes.
    """
    names = {f"{domain}_{split}.pkl": None for domain in domains for split in ("train", "test")}
    lists = {
        matching_name(name, names): _checked_list(
            pickles.load_pickle(stream), stream_name(stream), classes
        )
        for name, stream in iter_members(
            archive, lambda name: matching_name(name, names) is not None
        )
    }
    validation.check_missing(archive, (name for name in names if name not in lists))
    return {str(name): value for name, value in lists.items()}


def _checked_list(loaded: Any, name: str, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    with wrap_read_errors(name, "is no pair of paths and class names"):
        paths, labels = (
            [item.decode() if isinstance(item, bytes) else str(item) for item in items]
            for items in loaded
        )
    for label in set(labels) - set(classes):
        raise DataError(f"{name}: has the class {label!r}", ", ".join(classes))
    if len(paths) != len(labels):
        raise DataError(f"{name}: has {len(paths)} paths but {len(labels)} labels")
    return paths, [classes.index(label) for label in labels]
