"""Five domains over scikit-learn's digits: a small stand-in for the DIGITS benchmark.

X. Li, M. Jiang, X. Zhang, M. Kamp and Q. Dou. FedBN: Federated Learning on Non-IID Features via
Local Batch Normalization. ICLR 2021 (the benchmark); Y. Ganin and V. Lempitsky. Unsupervised Domain
Adaptation by Backpropagation. ICML 2015 (MNIST-M, SynthDigits); E. Alpaydin and C. Kaynak. Optical
Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998 (the digits).

DIGITS joins MNIST, SVHN, USPS, SynthDigits and MNIST-M. Here, in their place and made as two of
them were:

- ``plain``: the handwritten digits as they are, bright on dark.
- ``inverted``: dark on bright, the other polarity, which SVHN mixes with the first.
- ``blended``: the absolute difference of a digit and a patch of one of two photographs, per colour,
  as MNIST-M was made.
- ``rotated``: turned, blurred and noised.
- ``drawn``: drawn from fonts, in random colours, sizes and places, as SynthDigits was.

Splits come before domains: the 1,797 digits are dealt class by class over the first four domains,
so each occurs in one domain and one version only, and whatever a partition does, no test digit is
trained on in another domain. ``drawn`` holds as many drawings of its own as the others hold digits.
Every domain is a natural client, of about 449 samples with nearly equal classes.

Images are 3 x 16 x 16: digits of 8 x 8 are enlarged bilinearly, so that the photographs keep some
texture, and stay small enough to train on one core in seconds.

What it stands in for: features that differ between clients while labels do not, at no download. It
shows whether a method copes with such a shift. It says nothing about DIGITS' own accuracies: the
images are smaller and fewer, four domains share their writers, the two photographs serve training
and test alike, and the shifts are those above rather than those of cameras and post offices.

Source files are pinned by checksum. Decoding the photographs and rasterising the fonts is Pillow's
work, at preparation only; another version of it may round single pixels differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.rng import generator
from fl.data.datasets.digits import Digits, read_digits
from fl.data.download import Source
from fl.data.prepared import Writer

SIDE, CANVAS = 16, 64
"""Pixels along an image, and along the canvas that a font's digit is drawn on."""

MEAN, SD = 0.44048695729590437, 0.33363288416491504
"""Of all values of the 2,246 images, on the scale from 0 to 1."""

FONTS = {
    "DejaVuSans.ttf": "3fdf69cabf06049ea70a00b5919340e2ce1e6d02b0cc3c4b44fb6801bd1e0d22",
    "DejaVuSans-Bold.ttf": "b184b89e3c1075f22f6b71575b6fc20d4972b3cfd3b23322ca6fd596dcaef167",
    "DejaVuSans-Oblique.ttf": "ccdf74b350f11fd3dd5774de50e5e6346a1a5da1f5b7d5fb83590665e97a5213",
    "DejaVuSansMono.ttf": "602ec86b8948cfcd956482fe64f94c36c867770149ef2f791d4613f443bcecb3",
    "DejaVuSerif.ttf": "107244956e9962b9e96faccdc551825e0ae0898ae13737133e1b921a2fd35ffa",
    "DejaVuSerif-Bold.ttf": "c3753f2ed6bc673f15846dc45addbeb3b9c872f32fb18fd53a21f1bef1ed7676",
}
PHOTOGRAPHS = {
    "china.jpg": "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
    "flower.jpg": "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
}


@dataclass(frozen=True)
class DigitsDomains:
    """Images of 3 x 16 x 16 pixels, 0 to 255, in ten classes and five domains."""

    sources: ClassVar[tuple[Source, ...]] = (
        *Digits.sources,
        *(Source(n, f"package:sklearn/datasets/images/{n}", s) for n, s in PHOTOGRAPHS.items()),
        *(Source(n, f"package:matplotlib/mpl-data/fonts/ttf/{n}", s) for n, s in FONTS.items()),
    )

    domains: ClassVar[tuple[str, ...]] = ("plain", "inverted", "blended", "rotated", "drawn")
    size: ClassVar[int] = 1797 + 449
    shape: ClassVar[tuple[int, ...]] = (3, SIDE, SIDE)
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = 5
    published_splits: ClassVar[tuple[str, ...]] = ()

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[2246, 3, 16, 16]``, y int64, domain and client int32 ``[2246]``.

        Rows are sorted by domain; a domain's digits are in their original order.
        """
        digits, labels = read_digits(raw / self.sources[0].name)
        domain_of_digit, grey = assign_domains(labels), enlarge(digits)
        drawn = np.arange(self.size - len(labels)) % self.classes
        images = [
            _in_colour(grey[domain_of_digit == 0]),
            _in_colour(255 - grey[domain_of_digit == 1]),
            blend_with_patches(
                grey[domain_of_digit == 2], read_photographs([raw / name for name in PHOTOGRAPHS])
            ),
            _in_colour(rotate_blur_noise(grey[domain_of_digit == 3])),
            render_digits(drawn, [raw / name for name in FONTS]),
        ]
        domain = np.repeat(np.arange(5, dtype=np.int32), [len(of_domain) for of_domain in images])
        writer.save("x", np.concatenate(images))
        writer.save("y", np.concatenate([*(labels[domain_of_digit == d] for d in range(4)), drawn]))
        writer.save("domain", domain)
        writer.save("client", domain)
        normalisation = {"scale": 1 / 255, "mean": MEAN, "sd": SD}
        names = [str(digit) for digit in range(self.classes)]
        writer.describe(names, normalisation=normalisation, domains=self.domains)


def read_photographs(paths: Sequence[Path]) -> np.ndarray:
    """Photographs of one size, uint8 ``[photographs, 3, height, width]``."""
    from PIL import Image

    pixels = [np.asarray(Image.open(path).convert("RGB")) for path in paths]
    return np.stack(pixels).transpose(0, 3, 1, 2)


def assign_domains(labels: np.ndarray) -> np.ndarray:
    """The domain, 0 to 3, of each handwritten digit: at random, sizes and classes alike."""
    shuffled = generator(0, "digits-domains deal").permutation(len(labels))
    domain_of_digit = np.empty(len(labels), np.int64)
    domain_of_digit[np.lexsort((shuffled, labels))] = np.arange(len(labels)) % 4
    return domain_of_digit


def enlarge(digits: np.ndarray) -> np.ndarray:
    """Images ``[n, 8, 8]`` of 0 to 16 as uint8 ``[n, 16, 16]`` of 0 to 255, bilinearly."""
    positions = (np.arange(SIDE) + 0.5) / 2 - 0.5
    weights = np.stack([np.interp(positions, np.arange(8), row) for row in np.eye(8)], axis=1)
    return _bytes(weights @ digits @ weights.T * (255 / 16))


def blend_with_patches(grey: np.ndarray, photographs: np.ndarray) -> np.ndarray:
    """Images ``[n, 16, 16]`` as ``|image - patch|`` of random patches, ``[n, 3, 16, 16]``."""
    patches = random_patches(photographs, len(grey)).astype(np.int64)
    return np.abs(grey[:, None].astype(np.int64) - patches).astype(np.uint8)


def random_patches(photographs: np.ndarray, n: int) -> np.ndarray:
    """Patches ``[n, 3, 16, 16]`` from random places of random photographs."""
    rng = generator(0, "digits-domains patches")
    windows = np.lib.stride_tricks.sliding_window_view(photographs, (SIDE, SIDE), axis=(2, 3))
    photograph, row, column = (rng.integers(0, windows.shape[axis], n) for axis in (0, 2, 3))
    return windows[photograph, :, row, column]


def rotate_blur_noise(grey: np.ndarray) -> np.ndarray:
    """Images ``[n, 16, 16]`` turned by up to 30 degrees, blurred and noised (sd 25)."""
    rng = generator(0, "digits-domains disturb")
    turned = rotate(grey, rng.uniform(-30, 30, len(grey)))
    padded = np.pad(turned, ((0, 0), (1, 1), (1, 1)), mode="edge")
    rows = (padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]) / 4
    blurred = (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 4
    return _bytes(blurred + rng.normal(0, 25, blurred.shape))


def render_digits(labels: np.ndarray, fonts: Sequence[Path]) -> np.ndarray:
    """Digits in random fonts, sizes, places, angles and colours, ``[n, 3, 16, 16]``.

    Half are bright (144 to 255 in each colour) on dark (0 to 111), half the other way round.
    """
    from PIL import Image, ImageDraw, ImageFont

    rng = generator(0, "digits-domains draw")
    masks = np.empty((len(labels), CANVAS, CANVAS))
    for mask, label in zip(masks, labels, strict=True):
        path, height = fonts[int(rng.integers(len(fonts)))], int(rng.integers(48, 65))
        font = ImageFont.truetype(str(path), height, layout_engine=ImageFont.Layout.BASIC)
        canvas = Image.new("L", (CANVAS, CANVAS))
        x, y = (CANVAS // 2 + int(shift) for shift in rng.integers(-6, 7, 2))
        ImageDraw.Draw(canvas).text((x, y), str(label), fill=255, font=font, anchor="mm")
        mask[:] = np.asarray(canvas)
    turned = rotate(masks, rng.uniform(-15, 15, len(labels))) / 255
    step = CANVAS // SIDE
    cover = turned.reshape(-1, 1, SIDE, step, SIDE, step).mean(axis=(3, 5))
    dark, bright = (rng.integers(*ends, (len(labels), 3, 1, 1)) for ends in ((0, 112), (144, 256)))
    swapped = rng.random((len(labels), 1, 1, 1)) < 0.5
    ground, ink = np.where(swapped, bright, dark), np.where(swapped, dark, bright)
    return _bytes(ground + (ink - ground) * cover)


def rotate(images: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Images ``[n, s, s]`` turned about their centres, bilinearly; beyond their edges is 0."""
    side = images.shape[-1]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1))).astype(np.float64)
    offsets = np.arange(side) - (side - 1) / 2
    angle = np.deg2rad(degrees)[:, None, None]
    sine, cosine = np.sin(angle), np.cos(angle)
    exact_positions = (
        cosine * offsets[:, None] - sine * offsets,
        sine * offsets[:, None] + cosine * offsets,
    )
    row, column = (np.clip(place + (side + 1) / 2, 0, side + 1) for place in exact_positions)
    top_row, left_column = (np.minimum(place.astype(np.int64), side) for place in (row, column))
    fraction_down, fraction_right = row - top_row, column - left_column
    image = np.arange(len(images))[:, None, None]
    upper = (
        padded[image, top_row, left_column] * (1 - fraction_right)
        + padded[image, top_row, left_column + 1] * fraction_right
    )
    lower = (
        padded[image, top_row + 1, left_column] * (1 - fraction_right)
        + padded[image, top_row + 1, left_column + 1] * fraction_right
    )
    return upper * (1 - fraction_down) + lower * fraction_down


def _in_colour(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[:, None], 3, axis=1)


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)
