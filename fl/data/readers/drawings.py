"""Characters as images by the rule of MNIST: in a box of 20 pixels, centred in one of 28.

Y. LeCun, L. Bottou, Y. Bengio and P. Haffner. Gradient-Based Learning Applied to Document
Recognition. Proceedings of the IEEE 1998.

What is drawn is cut out and resized, its proportions unchanged, until the longer side has 20
pixels. The pixel nearest to its centre of mass then becomes that of the image. Ink is 255, paper 0.

Pillow rasterises and resizes; another version of it may round single pixels differently.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from fl.base.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

BOX_SIDE, IMAGE_SIDE = 20, 28
FONT_SIZE, FONT_CANVAS, FONT_ORIGIN = 96, 384, (144, 240)
"""Size of letters, side of the picture and left end of the base line, in pixels."""
STROKE_LIMIT, STROKE_MARGIN, PEN_WIDTH = 100, 10, 10
"""Largest coordinate of a stroke, what is left free around it, and the width of the pen."""


def open_font(content: bytes, name: str) -> FreeTypeFont:
    """Return a font for `draw_character`.

    Args:
        content: A file of a format that FreeType reads, such as WOFF.
        name: The file, for errors.

    Raises:
        DataError: If it is none.
    """
    from PIL import ImageFont

    basic = ImageFont.Layout.BASIC
    try:
        return ImageFont.truetype(io.BytesIO(content), FONT_SIZE, layout_engine=basic)
    except OSError as error:
        raise DataError(f"{name}: is no font ({error})", advice="fetch it again") from error


def draw_character(font: FreeTypeFont, character: str, name: str) -> np.ndarray:
    """Return a character of a font, uint8 ``[28, 28]``.

    Args:
        font: The font.
        character: The character.
        name: The file of the font, for errors.

    Raises:
        DataError: If it is blank.
    """
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (FONT_CANVAS, FONT_CANVAS))
    ImageDraw.Draw(canvas).text(FONT_ORIGIN, character, fill=255, font=font, anchor="ls")
    return fit(canvas, f"{name}: {character}")


def draw_stroke(points: np.ndarray, name: str) -> np.ndarray:
    """Return the line through points, drawn by a round pen, uint8 ``[28, 28]``.

    Args:
        points: Whole numbers x and y from 0 to 100, y upwards, ``[points, 2]``.
        name: The file, for errors.
    """
    from PIL import Image, ImageDraw

    side = STROKE_LIMIT + 2 * STROKE_MARGIN
    canvas = Image.new("L", (side, side))
    pen = ImageDraw.Draw(canvas)
    places = [(STROKE_MARGIN + int(x), side - STROKE_MARGIN - int(y)) for x, y in points]
    pen.line(places, fill=255, width=PEN_WIDTH)
    radius = PEN_WIDTH / 2
    for x, y in places:
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return fit(canvas, name)


def fit(picture: Image, name: str) -> np.ndarray:
    """Return what is drawn in a picture by the rule of MNIST, uint8 ``[28, 28]``.

    Args:
        picture: Grey values, of which 0 is paper.
        name: What it shows, for errors.

    Raises:
        DataError: If the picture is blank.
    """
    from PIL import Image

    box = picture.getbbox()
    if box is None:
        raise DataError(f"{name}: is blank")
    drawn = picture.crop(box)
    scale = BOX_SIDE / max(drawn.size)
    width, height = (max(1, round(side * scale)) for side in drawn.size)
    resampling = Image.Resampling.BOX if scale < 1 else Image.Resampling.BILINEAR
    ink = np.asarray(drawn.resize((width, height), resampling))
    image = np.zeros((IMAGE_SIDE, IMAGE_SIDE), np.uint8)
    top, left = _begin(ink.sum(axis=1, dtype=np.int64)), _begin(ink.sum(axis=0, dtype=np.int64))
    image[top : top + height, left : left + width] = ink
    return image


def _begin(mass: np.ndarray) -> int:
    """Return the first row of an image for rows of this mass, whose centre comes to the middle."""
    centre = (mass @ np.arange(len(mass)) + mass.sum() / 2) / mass.sum()
    return int(np.clip(np.rint(IMAGE_SIDE / 2 - centre), 0, IMAGE_SIDE - len(mass)))
