"""What generators share: pictures that can be told apart, archives, and ways to spoil them."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def shade(name: str) -> int:
    """The blue, or grey, of the picture of that name, by which it is known."""
    return 20 + zlib.crc32(name.encode()) % 200


def picture(name: str, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: red grows downwards, green to the right, blue is the name's."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, height)[:, None]
    pixels[..., 1] = np.linspace(0, 255, width)
    pixels[..., 2] = shade(name)
    return pixels


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    """A picture file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def seen(content: bytes, height: int, width: int) -> np.ndarray:
    """What a picture file shows at that size, uint8 [3, height, width], by Pillow alone."""
    small = Image.open(io.BytesIO(content)).convert("RGB").resize((width, height), 2)
    return np.moveaxis(np.asarray(small), 2, 0)


def deep() -> bytes:
    """A picture with 16 bits a pixel, which is none of the modes that are taken."""
    return encoded(np.full((8, 8), 40000, np.uint16))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch hacked",)


def pickled(content: Any) -> bytes:
    """A pickle of protocol 4, the highest of the Pythons that the packs were made with."""
    return pickle.dumps(content, protocol=4)


def zipped(
    path: Path,
    members: Mapping[str, bytes],
    without: str = "?",
    spoil: str = "?",
    strange: bytes = b"",
) -> None:
    """A zip with entries for its folders, as most programs write it.

    Members whose names contain ``without`` are left out; those that contain ``spoil`` are
    ``strange``.
    """
    kept = {name: content for name, content in members.items() if without not in name}
    folders = {f"{parent}/" for name in kept for parent in list(Path(name).parents)[:-1]}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(folders):
            archive.writestr(folder, b"")
        for name, content in kept.items():
            archive.writestr(name, strange if spoil in name else content)


def tarred(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """A gzipped tar, the same bytes for the same members."""
    with (
        gzip.GzipFile(path, "wb", 1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
