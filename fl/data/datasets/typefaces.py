"""Printed letters and digits: which of 36 is it, with thirty typefaces as clients.

Fontsource. Thirty Typefaces as npm Packages. Version 5.3.0, 2026. The file ``LICENSE`` of a package
names the authors of its typeface.

Licence: every package is under the SIL Open Font License 1.1, by its ``package.json`` and its
``LICENSE``. What is drawn with a font is not under its licence.

Source: the archives of npm packages ``@fontsource/NAME``, of which the WOFF files of the Latin
alphabet are read, of weights 400 and 700, upright and italic: one to four styles of a typeface.

Each style's digits and letters are drawn by Pillow and placed by the rule of MNIST
(`fl.data.readers.drawings`), with nothing random in them. Capital and small letters are of one
class, as many of them differ only in size, which the rule takes away; digit 0 and letter O, or 1, I
and l, may look the same. A typeface whose small letters are capitals has them twice.

Samples are sorted by typeface, style and character. Styles of a typeface are alike and may be in
several splits. To test on typefaces that nobody trained on, leave clients out
(``natural: {unseen: 5}``).

Memory: the images of a typeface, 0.2 MB.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members
from fl.data.readers.drawings import IMAGE_SIDE, draw_character, open_font
from fl.data.readers.validation import check_missing, check_sizes

FONT_VERSION = "5.3.0"
SHA256_BY_TYPEFACE = {
    "abril-fatface": "261304489f1ad9509af041947230865e79ae1e7c75c330b75d42d67a5c4a8aff",
    "amatic-sc": "76e588455c315b57c558b8ad2bafd1c91cc7c764a6333f6bb5a3dcc4a35c390c",
    "bitter": "f907568dce71e70601cc2ef3ecd4f72d7721a12dad358d8fb4b58ffb55a72efb",
    "caveat": "ebf746fc0667b9d10fcac7c8604e2ba40a264da85a1c9b48bd679c0af3221293",
    "cinzel": "b80629f715b4603fd099c0ceaa94cc7a15308a75a9cf52f0613a312ee6d53c28",
    "comfortaa": "5c82d14fe6efc746213748a2835b7aa7b6e07409f1611eaee52eb25e0bdfcca6",
    "courier-prime": "fd204a077d81426e1425baed6d471ad78a8eccca931091e661637bb10b5f2724",
    "crimson-pro": "e038ef1b4e25471f51bb2c43b326264e1c82198fa0b193120028a4d527360185",
    "dancing-script": "e392efa74afec672f1c97f8699a16bb8439c8aca1a367ddb5cd035f11e70e31a",
    "eb-garamond": "2e61af0740104953d4fc5cb52a8c6de257ae6d83a4a89e0fd4be2f6132fd40d9",
    "inconsolata": "d34e446cb20ca819c3bc2795ff7dd1f071a4a7a6f8a38518af3b47144b5e06d9",
    "indie-flower": "be380503f1e2c5ef08b8399a28f8cb2f1725527db2cb6aacec3037c2bd1b9083",
    "josefin-sans": "a89f83ae9d414f027af83546b84e09ac81e960024dfdeea3bcb491e8ed52a962",
    "kalam": "0aaf22523f3c57ae19f32c4f4df0d43d6efd01b7563a19cf4ed818cd5601426d",
    "lato": "50db251f16e9a6c35fe0177b4692b7ec78478b9734c9272d980a75343638aa5c",
    "lobster": "4ac6f6ab805b684026cb719f55dd605c892ca5d1db3f32fca88ca554a63b86d7",
    "merriweather": "348f20a775e50a50b508ab6660771df6905ab2ea695c6c2a8df889c5cceec42f",
    "montserrat": "919dce59bbe45ace8a517c1e9de5076282bfeb97e8aa8f5f2dc989451c14c7cb",
    "orbitron": "a9b5e98a3421cd897d7bc0c1d8683579d07191e03090913381daebbbe735f492",
    "oswald": "27bf46420288bb65bd186638cde54686aa8f9d5dc975b1d597dfe81a7dd472cb",
    "pacifico": "397f4f0a8a4c44e929cafa4cfede7240f7ac81a922f6779d3fefe2192c67d619",
    "patrick-hand": "c3428d02610c7b8fa92b044cf766f8c30b88bb32a47460b4ac42fa14e0bcdcc0",
    "playfair-display": "564e61951ecc3e962793cd50395f718cda6350cb934f9000dbe0139c768dc023",
    "press-start-2p": "7aa0c201772e5099e713f99ce4117c56ebdda85cb4d95b81f22922c13f655e37",
    "roboto": "77620f437249772e381698224ea1bddd01c985ecd60267a63ddc96b9eb9348f7",
    "shadows-into-light": "0885aefd34c65bd79207cffff0771ae0527f227a202bc850f8cf9a12257fc7f1",
    "source-code-pro": "2cf1e4c495edacec6b2619362571ce84a2768a7d995fbdb66f93309d3edbb9b8",
    "space-mono": "e0cd78cb7aa93e772905297d8d5ad2a3d9eea7a6a12f281a3940a28ec01c19eb",
    "vt323": "aca9d83456bcebf445920008ac46e275206d48efd8360eb9cc4c6a04d45bcaf0",
    "zilla-slab": "b7db2f40f3aaeb44c0e1dfe3da1e5de96d177a674ffe5e5e012c59b6a01e8aab",
}
TYPEFACES = tuple(SHA256_BY_TYPEFACE)
TYPEFACE_SOURCES = tuple(
    Source(
        f"fontsource-{name}-{FONT_VERSION}.tgz", f"npm:@fontsource/{name}/{FONT_VERSION}", checksum
    )
    for name, checksum in SHA256_BY_TYPEFACE.items()
)
FONT_MEMBER = re.compile(r"package/files/[a-z0-9-]+-latin-(\d{3})-(?:normal|italic)\.woff")
TYPEFACE_WEIGHTS = ("400", "700")
CLASS_NAMES = string.digits + string.ascii_uppercase
CHARACTERS = CLASS_NAMES + string.ascii_lowercase
STYLE_COUNT = 78


@dataclass(frozen=True)
class Typefaces:
    """Images of 1 x 28 x 28 pixels, 0 to 255, in 36 classes, by typeface.

    Attributes:
        complete: Check the archives against their checksums and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = TYPEFACE_SOURCES
    shape: ClassVar[tuple[int, ...]] = (1, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = len(CLASS_NAMES)
    natural_clients: ClassVar[int | None] = len(TYPEFACES)
    client_names: ClassVar[tuple[str, ...]] = TYPEFACES
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return STYLE_COUNT * len(CHARACTERS) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[N, 1, 28, 28]``; y int64 and client int32 ``[N]``."""
        y = [CLASS_NAMES.index(character.upper()) for character in CHARACTERS]
        styles = 0
        for client, source in enumerate(TYPEFACE_SOURCES):
            images = draw_typeface(
                raw / source.name, CHARACTERS, lambda weight: weight in TYPEFACE_WEIGHTS
            )
            for image in images:
                writer.append("x", image[:, None])
                writer.append("y", np.array(y, np.int64))
                writer.append("client", np.full(len(y), client, np.int32))
            styles += len(images)
        if self.complete:
            check_sizes(
                {"all": styles}, {"all": STYLE_COUNT}, "typefaces", "Fontsource 5.3.0", "styles"
            )
        normalisation = {**TRAINING_NORMALISATION, "scale": 1 / 255}
        writer.describe(list(CLASS_NAMES), normalisation=normalisation)


def draw_typeface(archive: Path, characters: str, accepts: Callable[[str], bool]) -> np.ndarray:
    """Return characters in the styles of a typeface, uint8 ``[styles, characters, 28, 28]``.

    Args:
        archive: The package of the typeface.
        characters: What is drawn.
        accepts: Whether to take the styles of a weight, such as ``400``.

    Raises:
        DataError: If the archive has no such style, or if a file is no font.
    """

    def is_wanted(member: str) -> bool:
        match = FONT_MEMBER.fullmatch(member)
        return match is not None and accepts(match[1])

    images_by_style = {}
    for name, stream in iter_members(archive, is_wanted):
        location = f"{archive}: {name}"
        font = open_font(stream.read(), location)
        images_by_style[name] = [draw_character(font, each, location) for each in characters]
    check_missing(archive, [] if images_by_style else ["files of Latin letters in WOFF"])
    return np.array([images_by_style[name] for name in sorted(images_by_style)])
