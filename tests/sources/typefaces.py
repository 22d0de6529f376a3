"""Typefaces: npm archives with fonts in WOFF, whose letters are rectangles.

Format: the files of ``@fontsource``'s packages; fontTools makes the fonts. A font of weight 700 has
bolder, that is wider, rectangles.
"""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
BROKEN = {
    "no Latin": ({"without": "caveat-latin"}, r"fontsource-caveat.*tgz: lacks files of Latin"),
    "no font": (
        {"spoil": "caveat-latin-400", "strange": b"wOFF none"},
        r"caveat-latin-400-normal\.woff: is no font",
    ),
    "a blank": ({"blank": "Q"}, r"latin-400-normal\.woff: Q: is blank"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}
NAMES = """abril-fatface amatic-sc bitter caveat cinzel comfortaa courier-prime crimson-pro
dancing-script eb-garamond inconsolata indie-flower josefin-sans kalam lato lobster merriweather
montserrat orbitron oswald pacifico patrick-hand playfair-display press-start-2p roboto
shadows-into-light source-code-pro space-mono vt323 zilla-slab"""
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
EM = 96
"""Units of a font, at whose size one is a pixel."""


def sides(character, weight):
    """The width and the height of a character in pixels; the reader scales the longer one to 20."""
    number = CHARACTERS.index(character)
    return (20, 40 + 20 * (number % 3)) if weight == "400" else (40, 40 + 40 * (number % 2))


@cache
def font(weight, blank=""):
    """A font in WOFF whose glyphs are rectangles on the base line, some below it."""
    builder = FontBuilder(EM, isTTF=True)
    names = {ord(character): f"glyph{i}" for i, character in enumerate(CHARACTERS)}
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    glyphs = {".notdef": TTGlyphPen(None).glyph()}
    for i, character in enumerate(CHARACTERS):
        pen = TTGlyphPen(None)
        if character != blank:
            width, height = sides(character, weight)
            left, low = 4, -20 * (i % 2)
            pen.moveTo((left, low))
            for corner in ((0, height), (width, height), (width, 0)):
                pen.lineTo((left + corner[0], low + corner[1]))
            pen.closePath()
        glyphs[f"glyph{i}"] = pen.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (60, 4)))
    builder.setupHorizontalHeader(ascent=80, descent=-20)
    builder.setupNameTable({"familyName": "Rectangles", "styleName": weight})
    builder.setupOS2(sTypoAscender=80, usWinAscent=80, usWinDescent=20)
    builder.setupPost()
    builder.font.flavor = "woff"
    out = io.BytesIO()
    builder.font.save(out)
    return out.getvalue()


def image(character, weight):
    """A rectangle with a longer side of 20 pixels, in the middle."""
    width, height = sides(character, weight)
    wide, high = (round(20 * side / max(width, height)) for side in (width, height))
    pixels = np.zeros((28, 28), np.uint8)
    top, left = round(14 - high / 2), round(14 - wide / 2)
    pixels[top : top + high, left : left + wide] = 255
    return pixels


def pack_typefaces(folder, weights_of, blank="", **broken):
    """An archive of each typeface, with the weights that ``weights_of(number)`` names."""
    for number, name in enumerate(NAMES.split()):
        files = f"package/files/{name}"
        members = {"package/package.json": "{}", "package/LICENSE": "SIL"}
        for weight in weights_of(number):
            members[f"{files}-latin-{weight}-normal.woff"] = font(weight, blank)
            members[f"{files}-latin-{weight}-normal.woff2"] = b"wOF2"
            members[f"{files}-cyrillic-{weight}-normal.woff"] = b"wOFF"
        pack(folder / f"fontsource-{name}-5.3.0.tgz", members, **broken)


def weights_of_typeface(number):
    return ("400", "700") if number % 3 == 0 else ("400",)


def write(folder, **broken):
    pack_typefaces(folder, lambda number: ("100", *weights_of_typeface(number)), **broken)
    styles = [(client, each) for client in range(30) for each in weights_of_typeface(client)]
    count = len(CHARACTERS)
    label = ["0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ".index(each.upper()) for each in CHARACTERS]
    return Made(
        samples=len(styles) * count,
        shape=(1, 28, 28),
        classes=tuple(CHARACTERS[:36]),
        y=np.tile(label, len(styles)),
        x={
            style * count + i: image(CHARACTERS[i], styles[style][1])[None]
            for style in (0, 1, 2, len(styles) - 1)
            for i in (0, 1, 11, 35, 36, 61)
        },
        client=np.repeat([client for client, _ in styles], count),
    )
