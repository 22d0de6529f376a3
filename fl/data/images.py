"""Pictures, decoded to arrays of one shape. Pillow does the work, at preparation only."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.archives import name_of

if TYPE_CHECKING:
    from PIL.Image import Image

BROKEN = ("cannot be read as a picture", "get it again, or its archive")
"""What is wrong with what Pillow cannot read, and what to do."""

GREY = ("1", "L", "LA")
KINDS = (*GREY, "P", "RGB", "RGBA", "CMYK")
"""Pillow's names of the kinds of images that are taken."""

EXIF, ORIENTATION, UPSIDE_DOWN = "exif", 0x0112, 4
"""What Pillow calls EXIF data, the number of the orientation there, and the last of its values by
which height and width stay what they are."""

Box = tuple[int, int, int, int]
"""Left, upper, right, lower, in pixels."""


def decode(
    stream: BinaryIO | bytes,
    size: tuple[int, int] | None,
    mode: Literal["RGB", "L"] = "RGB",
    crop: Box | Literal["centre"] | None = None,
    *,
    upright: bool = False,
    converts: tuple[str, ...] = ("L",),
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear",
    name: str = "",
) -> np.ndarray:
    """A picture as an array.

    Args:
        size: (height, width) that it is brought to; None keeps its own.
        crop: What is cut out first: a box, or the largest square in the middle.
        upright: Whether it is turned as its camera says (EXIF's orientation).
        converts: The modes that are converted where the picture has one of them in place of
            ``mode``, by Pillow's names (1, L, P, RGB, RGBA, CMYK, I;16, ...).
        name: What errors call the picture, where it is not a member of an archive.

    Returns:
        uint8 ``[3, height, width]``, or ``[1, height, width]`` for mode ``L``.

    Raises:
        DataError: If its mode is another one, or if it cannot be read.
    """
    from PIL import Image, ImageOps

    content = stream if isinstance(stream, bytes) else stream.read()
    name = name or ("a picture" if isinstance(stream, bytes) else name_of(stream))
    with wrap_read_errors(name, *BROKEN), Image.open(io.BytesIO(content)) as image:
        turned = upright and EXIF in image.info
        image.load()
        picture = _in_mode(
            ImageOps.exif_transpose(image) if turned else image, mode, converts, name
        )
    if crop is not None:
        picture = picture.crop(_middle(*picture.size) if crop == "centre" else crop)
    if size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Image.Resampling[resample.upper()])
    return _pixels(picture)


def pixels(picture: Image) -> np.ndarray:
    """A picture of the user's own in memory, uint8: ``[1, height, width]`` where it is grey, else
    ``[3, height, width]``; `DataError` for one whose mode is none of `KINDS`.
    """
    mode = "L" if picture.mode in GREY else "RGB"
    return _pixels(_in_mode(picture, mode, KINDS, "a picture"))


def _pixels(picture: Image) -> np.ndarray:
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def look(picture: Path | bytes, name: str) -> tuple[str, tuple[int, int]]:
    """The mode of a picture by Pillow's name, and (height, width) when it is upright; read from its
    first bytes alone.

    Args:
        picture: Its file, or what is in it.
        name: What errors call it.

    Raises:
        DataError: If it cannot be read.
    """
    from PIL import Image

    source = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    with wrap_read_errors(name, *BROKEN), Image.open(source) as image:
        width, height = image.size
        on_its_side = EXIF in image.info and image.getexif().get(ORIENTATION, 1) > UPSIDE_DOWN
        return image.mode, (width, height) if on_its_side else (height, width)


def _in_mode(image: Image, mode: str, converts: tuple[str, ...], name: str) -> Image:
    if image.mode == mode:
        return image.copy()
    if image.mode not in converts:
        allowed = ", ".join(dict.fromkeys((mode, *converts)))
        raise DataError(f"{name}: is a picture of mode {image.mode}. Allowed: {allowed}")
    return image.convert(mode)


def _middle(width: int, height: int) -> Box:
    side = min(width, height)
    left, upper = (width - side) // 2, (height - side) // 2
    return left, upper, left + side, upper + side
