"""What readers of several domains share: images out of archives into rows, and what rows are.

An archive is read once, in its own order; each image goes straight to its row of a memory-mapped
array, so that no more than one image at a time is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl.data.archives import entries
from fl.data.counts import lacking
from fl.data.images import decode
from fl.data.prepared import SPLIT, Writer

Reader = Callable[[BinaryIO], np.ndarray]

TRAIN, TEST, VAL = (SPLIT.index(name) for name in ("train", "test", "val"))

PLAIN = ("L", "LA", "P", "RGBA", "CMYK")
"""Kinds of pictures that are taken for colour ones: grey, with transparency, or for print."""


def known(name: str, names: Mapping[str, Any]) -> str | None:
    """The entry of ``names`` that the path ``name`` ends with, whatever folders lie around it."""
    while name not in names:
        _, inside, name = name.partition("/")
        if not inside:
            return None
    return name


def place(
    archive: Path, rows: Mapping[str, Any], x: np.ndarray, read: Reader | None = None
) -> None:
    """Put images of an archive into an array.

    Args:
        rows: By path in ``archive``, the index of ``x`` where the image belongs.
        read: Turns a stream into the values of one image. By default it is decoded in colour and
            brought to the height and width of ``x``.

    Raises:
        DataError: If an image is missing or cannot be read.
    """
    read = read or (lambda stream: decode(stream, x.shape[-2:], converts=PLAIN))
    missing = dict.fromkeys(rows)
    for name, stream in entries(archive, lambda name: known(name, missing) is not None):
        key = known(name, rows)
        assert key is not None
        x[rows[key]] = read(stream)
        missing.pop(key, None)
    lacking(archive, missing)


def label(writer: Writer, y: np.ndarray, domain: np.ndarray, split: np.ndarray | None) -> None:
    """Write y int64, domain and client int32 and split int8; every domain is a client."""
    writer.save("y", y.astype(np.int64))
    writer.save("domain", domain.astype(np.int32))
    writer.save("client", domain.astype(np.int32))
    if split is not None:
        writer.save("split", split.astype(np.int8))
