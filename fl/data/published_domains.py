"""What readers of several domains share: images out of archives into rows, and what rows are.

An archive is read once, in its own order; each image goes straight to its row of a memory-mapped
array, so that no more than one image at a time is in memory.

How many samples of each domain are in each split: as they were read, and as published.

The lists by which FedBN's releases divide a domain: paths of images and names of their classes.

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization. ICLR 2021.

A list is a pickle, ``<domain>_train.pkl`` or ``<domain>_test.pkl``, of two sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data import pickles, validation
from fl.data.archives import iter_members, stream_name
from fl.data.image_files import decode_image
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.validation import check_missing

ImageReader = Callable[[BinaryIO], np.ndarray]

TRAIN, TEST, VAL = (SPLIT_NAMES.index(name) for name in ("train", "test", "val"))

COLOUR_MODES = ("L", "LA", "P", "RGBA", "CMYK")
"""Kinds of pictures that are taken for colour ones: grey, with transparency, or for print."""


def matching_name(name: str, names: Mapping[str, Any]) -> str | None:
    """The entry of ``names`` that the path ``name`` ends with, whatever folders lie around it."""
    while name not in names:
        _, inside, name = name.partition("/")
        if not inside:
            return None
    return name


def fill_images(
    archive: Path, rows: Mapping[str, Any], x: np.ndarray, read: ImageReader | None = None
) -> None:
    """Put images of an archive into an array.

    Args:
        rows: By path in ``archive``, the index of ``x`` where the image belongs.
        read: Turns a stream into the values of one image. By default it is decoded in colour and
            brought to the height and width of ``x``.

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
    """Write y int64, domain and client int32 and split int8; every domain is a client."""
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
    parts: Iterable[str] = NUMBER_BY_SPLIT,
) -> dict[str, int]:
    """By ``"<domain> <part>"``, of ``domain`` and ``split`` ``[samples]``."""
    return {
        f"{name} {split_name}": int(np.sum((domain == d) & (split == NUMBER_BY_SPLIT[split_name])))
        for d, name in enumerate(domains)
        for split_name in parts
    }


def published_counts(
    published: Mapping[str, Sequence[int]], parts: Iterable[str] = NUMBER_BY_SPLIT
) -> dict[str, int]:
    """Published sizes, as `domain_counts` names them; one of each part for each domain."""
    return {
        f"{name} {split_name}": size
        for name, sizes in published.items()
        for split_name, size in zip(parts, sizes, strict=True)
    }


@dataclass(frozen=True)
class ListedSamples:
    """Where the images of a data set lie, and what they are; all ``[samples]``."""

    path: tuple[str, ...]
    y: np.ndarray
    domain: np.ndarray
    split: np.ndarray

    def rows(self, domain: int | None = None) -> dict[str, list[int]]:
        """The rows of each path, of one domain or of all; a list may name a path twice."""
        by_path: dict[str, list[int]] = {}
        for row, path in enumerate(self.path):
            if domain is None or self.domain[row] == domain:
                by_path.setdefault(path, []).append(row)
        return by_path

    def counts(self, domains: Sequence[str]) -> dict[str, int]:
        """How many samples each domain has in each split, by ``"<domain> <split>"``."""
        return domain_counts(self.domain, self.split, domains)


def divide_lists(
    lists: Mapping[str, tuple[list[str], list[int]]],
    domains: Sequence[str],
    ends: Callable[[int], tuple[int, int]],
) -> ListedSamples:
    """The samples of all domains, in order: each one's train, val and test samples.

    Args:
        ends: Of a training list of ``n``, how many at its start train and how many at its end
            validate; what lies between is left out.
    """
    path: list[str] = []
    parts = []
    for d, name in enumerate(domains):
        (paths, y), held_out = lists[f"{name}_train.pkl"], lists[f"{name}_test.pkl"]
        train, val = ends(len(paths))
        rest = len(paths) - val
        path += [*paths[:train], *paths[rest:], *held_out[0]]
        y = [*y[:train], *y[rest:], *held_out[1]]
        split = np.repeat([TRAIN, VAL, TEST], [train, val, len(held_out[0])])
        parts.append(np.stack([y, np.full(len(y), d), split]))
    y, domain, split = np.concatenate(parts, axis=1)
    return ListedSamples(tuple(path), y, domain, split)


def read_lists(
    archive: Path, domains: Sequence[str], classes: Sequence[str]
) -> dict[str, tuple[list[str], list[int]]]:
    """The lists in ``archive``: ``{"<domain>_train.pkl": (paths, labels), ...}``.

    Raises:
        DataError: If a list is missing, or is no list of paths and known classes.
    """
    wanted = {f"{domain}_{split}.pkl": None for domain in domains for split in ("train", "test")}
    lists = {
        matching_name(name, wanted): _checked_list(
            pickles.load_pickle(stream), stream_name(stream), classes
        )
        for name, stream in iter_members(
            archive, lambda name: matching_name(name, wanted) is not None
        )
    }
    validation.check_missing(archive, (name for name in wanted if name not in lists))
    return {str(name): value for name, value in lists.items()}


def _checked_list(loaded: Any, name: str, classes: Sequence[str]) -> tuple[list[str], list[int]]:
    with wrap_read_errors(name, "is no pair of paths and class names"):
        paths, labels = (
            [item.decode() if isinstance(item, bytes) else str(item) for item in items]
            for items in loaded
        )
    for label in set(labels) - set(classes):
        raise DataError(f"{name}: has the class {label!r}. Allowed: {', '.join(classes)}")
    if len(paths) != len(labels):
        raise DataError(f"{name}: has {len(paths)} paths but {len(labels)} labels")
    return paths, [classes.index(label) for label in labels]
