"""Images, decoded by Pillow.

One rule holds for images of the user's own, in files and in memory (`decode_own_image`,
`image_array`): what would be lost is refused. The colours of a palette and of print (CMYK, without
colour profiles) become RGB, and an alpha channel that is opaque is left out; transparent pixels,
numbers of more than 8 bits and further pages are refused. Files are turned as their EXIF data say;
an image in memory whose EXIF data turn it is refused, as it may be turned already.

Published images are decoded as their publishers' code does (`decode_image`).
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.readers.archives import stream_name

if TYPE_CHECKING:
    from PIL.Image import Image


UNREADABLE = ("cannot be read as an image", "get the image, or its archive, again")
"""Problem and advice for images that Pillow cannot read."""

GREY_MODES = ("1", "L", "LA")
MODES = (*GREY_MODES, "P", "RGB", "RGBA", "CMYK")
"""Modes of the user's own images that are accepted, by Pillow's names."""

WIDE_NUMBERS = re.compile(r"\b(?!BGR)[A-Za-z]+;16")
"""Pillow's names for pixels of 16 bits a channel, of which it would drop 8; BGR;16 has 5 or 6."""

EXIF, ORIENTATION, UPSIDE_DOWN, LAST_ORIENTATION = "exif", 0x0112, 4, 8
"""Pillow's name of EXIF data, the number of their orientation, its largest value for which height
and width are not exchanged, and its largest value; 1 turns nothing."""

Box = tuple[int, int, int, int]
"""Left, upper, right, lower, in pixels."""


def decode_image(
    stream: BinaryIO | bytes,
    size: tuple[int, int] | None,
    mode: Literal["RGB", "L"] = "RGB",
    crop: Box | Literal["centre"] | None = None,
    *,
    converts: tuple[str, ...] = ("L",),
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear",
    name: str = "",
) -> np.ndarray:
    """Decode an image to an array.

    Args:
        stream: The image.
        size: (height, width) to which it is resized; None keeps its size.
        mode: Pillow's name of the mode of the result.
        crop: Region that is cut out first: a box, or the largest square in the centre.
        converts: Other modes that are converted to ``mode``, by Pillow's names (1, L, P, RGB, RGBA,
            CMYK, I;16, ...).
        resample: Pillow's name of the filter for resizing.
        name: Name for errors if it is not a member of an archive.

    Returns:
        uint8 ``[3, height, width]``, or ``[1, height, width]`` for mode ``L``.

    Raises:
        DataError: If its mode is not accepted, or if it cannot be read.
    """
    from PIL import Image

    content = stream if isinstance(stream, bytes) else stream.read()
    name = name or ("a picture" if isinstance(stream, bytes) else stream_name(stream))
    with wrap_read_errors(name, *UNREADABLE), Image.open(io.BytesIO(content)) as image:
        picture = _convert_mode(image, mode, converts, name)
    if crop is not None:
        picture = picture.crop(_centre_square(*picture.size) if crop == "centre" else crop)
    if size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Image.Resampling[resample.upper()])
    return _to_array(picture)


def decode_own_image(
    content: bytes, size: tuple[int, int], mode: Literal["RGB", "L"], name: str
) -> np.ndarray:
    """Decode an image of the user's own to an array, upright.

    Args:
        content: The bytes of the file.
        size: (height, width) to which it is resized, bilinearly.
        mode: Pillow's name of the mode of the result.
        name: Its name for errors.

    Returns:
        uint8 ``[3, height, width]``, or ``[1, height, width]`` for mode ``L``.

    Raises:
        DataError: If it cannot be read, or if something in it would be lost.
    """
    from PIL import Image, ImageOps

    with wrap_read_errors(name, *UNREADABLE), Image.open(io.BytesIO(content)) as image:
        _check_format(image, name)
        image.load()  # EXIF data may stand behind the pixels.
        turned = ImageOps.exif_transpose(image) if EXIF in image.info else image
        picture = _convert_own(turned, mode, name)
    if picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Image.Resampling.BILINEAR)
    return _to_array(picture)


def image_array(picture: Image) -> np.ndarray:
    """Return an image in memory as uint8 [1, height, width] if it is grey, else [3, height, width].

    Raises:
        DataError: If something in it would be lost, or if its EXIF data turn it.
    """
    name = "a picture"
    _check_pages(picture, name, "for a page that is meant, use its `copy()`")
    _check_format(picture, name)
    orientation = picture.getexif().get(ORIENTATION, 1)
    if orientation in range(2, LAST_ORIENTATION + 1):
        problem = f"{name}: EXIF data turn the image (orientation {orientation})"
        advice = "`ImageOps.exif_transpose(image)`; or, if it is upright, `del image.info['exif']`"
        raise DataError(problem, "upright images", advice)
    return _to_array(_convert_own(picture, "L" if picture.mode in GREY_MODES else "RGB", name))


def _check_format(image: Image, name: str) -> None:
    """Raise a `DataError` for an image that is not read yet, if its mode is none of `MODES`."""
    stored = [str(tile[3]) for tile in getattr(image, "tile", ())]
    kind = next((text for text in stored if WIDE_NUMBERS.search(text)), "")
    if image.mode not in MODES or kind:
        shown = f"{image.mode} of 16 bits a channel" if kind and image.mode in MODES else image.mode
        allowed = f"{', '.join(MODES)}, of 8 bits a channel or less"
        advice = "scale its numbers to 0..255 and save it with 8 bits; or give floats by fl.arrays"
        raise DataError(f"{name}: the image has mode {shown}", allowed, advice)


def _convert_own(image: Image, mode: str, name: str) -> Image:
    """Return an image in another mode; raise a `DataError` if it has transparent pixels."""
    if image.has_transparency_data:
        low, _ = image.convert("RGBA").getchannel("A").getextrema()
        if low < 255:  # type: ignore[operator]
            background = "Image.new('RGBA', image.size, 'white')"
            raise DataError(
                f"{name}: the image has transparent pixels, which have no colour of their own",
                "opaque images",
                f"put it on a background, `Image.alpha_composite({background}, "
                "image.convert('RGBA')).convert('RGB')`",
            )
    return image.copy() if image.mode == mode else image.convert(mode)


def _to_array(picture: Image) -> np.ndarray:
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def read_image_header(picture: Path | bytes, name: str) -> tuple[str, tuple[int, int]]:
    """Read the mode (Pillow's name) and the upright (height, width) from the header of an image.

    Args:
        picture: Its file or its bytes.
        name: Its name for errors.

    Raises:
        DataError: If it cannot be read, if it has several pages or frames, or a mode that is none
            of `MODES`.
    """
    from PIL import Image

    source = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    with wrap_read_errors(name, *UNREADABLE), Image.open(source) as image:
        _check_pages(image, name, "write each page that is meant into a file of its own")
        _check_format(image, name)
        if image.format == "PNG" and EXIF not in image.info and _has_exif_chunk(picture):
            image.load()
        width, height = image.size
        on_its_side = EXIF in image.info and image.getexif().get(ORIENTATION, 1) > UPSIDE_DOWN
        return image.mode, (width, height) if on_its_side else (height, width)


def _check_pages(image: Image, name: str, advice: str) -> None:
    """Raise a `DataError` if an image has several pages, of which only one would be read."""
    # The first image of an MPO file is the photograph; previews of it follow.
    pages = 1 if image.format == "MPO" else getattr(image, "n_frames", 1)
    if pages > 1:
        raise DataError(f"{name}: the image has {pages} pages or frames", "one", advice)


def _has_exif_chunk(picture: Path | bytes) -> bool:
    """Whether a PNG image may have EXIF data, which are known only when its pixels are read."""
    return b"eXIf" in (picture if isinstance(picture, bytes) else picture.read_bytes())


def is_readable_image(path: Path) -> bool:
    """Whether Pillow recognises the content of a file as an image."""
    from PIL import Image

    with contextlib.suppress(Exception), Image.open(path):
        return True
    return False


def _convert_mode(image: Image, mode: str, converts: tuple[str, ...], name: str) -> Image:
    if image.mode == mode:
        return image.copy()
    if image.mode not in converts:
        allowed = ", ".join(dict.fromkeys((mode, *converts)))
        raise DataError(f"{name}: the image has mode {image.mode}", allowed)
    return image.convert(mode)


def _centre_square(width: int, height: int) -> Box:
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side
