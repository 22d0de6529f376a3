"""The test images of CIFAR-10 under nineteen corruptions: one domain each.

D. Hendrycks and T. Dietterich. Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations. ICLR 2019.

Licence: CC BY 4.0, https://zenodo.org/records/2535967, where the archive comes from.

Every corruption has the 10,000 test images in the order of CIFAR-10 at each of five severities.
Rows are sorted by domain (in the order of ``corruptions``), then severity, then image. Studies
divide what is a test split here: FedL2P takes ten corruptions at severity 3 and trains on 80 % of
each, FedLGD takes all nineteen. One photograph thus occurs in every domain and severity: where a
client tests on one version of it, others may have trained on another.

Images are copied from the archive into place in pieces of 1,000. Beside the arrays that it maps,
preparing holds some 11 MB at most, of 95,000 images as of 19,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, ClassVar, Literal

import numpy as np

from fl.base.errors import ConfigError, DataError, Where, reading
from fl.data.archives import entries, name_of
from fl.data.counts import hold, lacking
from fl.data.datasets.cifar10 import CLASSES, NORMALISATION, SHAPE
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.whole import whole

Corruption = Literal[
    "brightness",
    "contrast",
    "defocus_blur",
    "elastic_transform",
    "fog",
    "frost",
    "gaussian_blur",
    "gaussian_noise",
    "glass_blur",
    "impulse_noise",
    "jpeg_compression",
    "motion_blur",
    "pixelate",
    "saturate",
    "shot_noise",
    "snow",
    "spatter",
    "speckle_noise",
    "zoom_blur",
]
CORRUPTIONS: tuple[Corruption, ...] = Corruption.__args__  # type: ignore[attr-defined]
SEVERITIES, CHUNK = 5, 1000
IMAGES = 10_000
"""Published images of a corruption at a severity."""


@dataclass(frozen=True)
class CIFAR10C:
    """Images of 3 x 32 x 32 pixels, 0 to 255, in ten classes and up to nineteen domains.

    corruptions: which of them, in this order (FedL2P: brightness, frost, jpeg_compression,
    contrast, snow, motion_blur, pixelate, speckle_noise, fog and saturate).
    severities: which of them, in this order (FedL2P: 3).
    complete: hold the archive to its published checksum and sizes; false reads a subset.
    """

    corruptions: tuple[Corruption, ...] = CORRUPTIONS
    severities: tuple[Literal[1, 2, 3, 4, 5], ...] = (1, 2, 3, 4, 5)
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "CIFAR-10-C.tar",
            "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
            "c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = SHAPE
    classes: ClassVar[int] = 10
    natural: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("test",)

    def __post_init__(self) -> None:
        for key in ("corruptions", "severities"):
            chosen = getattr(self, key)
            if not chosen or len(set(chosen)) != len(chosen):
                allowed = "at least one, each once"
                raise ConfigError(Where("cifar10-c") / key, f"is {list(chosen)}", allowed)

    @property
    def domains(self) -> tuple[str, ...]:
        """The corruptions, in the order of domain numbers."""
        return self.corruptions

    @property
    def size(self) -> int | None:
        """How many samples there are; None of a subset."""
        return len(self.corruptions) * len(self.severities) * IMAGES if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[n, 3, 32, 32]``, y int64, domain int32 and split int8 (test) ``[n]``."""
        archive, images, x = raw / self.sources[0].name, 0, None
        labels, seen = np.empty(0, np.int64), set[str]()
        for path, content in entries(archive, lambda path: path.endswith(".npy")):
            name = PurePosixPath(path).stem
            if name == "labels":
                parts = [piece for _, _, piece in pieces(content, 10**6)]
                numbers = np.concatenate(parts) if parts else labels
                labels = whole(numbers, 0, self.classes - 1, name_of(content), "labels")
            if name not in self.corruptions:
                continue
            for at, total, piece in pieces(content, CHUNK):
                if x is None:
                    images = total // SEVERITIES
                    rows = len(self.corruptions) * len(self.severities) * images
                    x = writer.create("x", (rows, *SHAPE), np.uint8)
                _check_piece(piece, total, images, content)
                self._place(x, name, at, piece, images)
            seen.add(name)
        self._check(archive, seen, labels, images)
        labels = labels.astype(np.int64)
        each = [labels[images * (s - 1) : images * s] for s in self.severities]
        domain = np.arange(len(self.corruptions), dtype=np.int32)
        writer.save("y", np.concatenate(each * len(self.corruptions)))
        writer.save("domain", np.repeat(domain, images * len(self.severities)))
        writer.save("split", np.ones(len(domain) * len(self.severities) * images, np.int8))
        writer.describe(CLASSES, normalisation=NORMALISATION, domains=self.corruptions)

    def _place(self, x: np.ndarray, name: str, at: int, piece: np.ndarray, images: int) -> None:
        """Copy the images of ``part``, rows ``at`` and on of a corruption, to where they belong."""
        index = np.arange(at, at + len(piece))
        severity = index // images + 1
        first = self.corruptions.index(name) * len(self.severities) * images
        for place, wanted in enumerate(self.severities):
            chosen = severity == wanted
            rows = first + place * images + index[chosen] % images
            x[rows] = piece[chosen].transpose(0, 3, 1, 2)

    def _check(self, archive: Path, seen: set[str], labels: np.ndarray, images: int) -> None:
        missing = [f"{name}.npy" for name in self.corruptions if name not in seen]
        missing += ["labels.npy"] if not len(labels) else []
        lacking(archive, missing)
        if len(labels) != images * SEVERITIES:
            problem = f"labels.npy has {len(labels)} labels for {images * SEVERITIES} images"
            raise DataError(f"{archive}: {problem}; expected: one for each")
        if self.complete:
            sizes, published = {"severity 1": images}, {"severity 1": IMAGES}
            hold(sizes, published, "cifar10-c", "Hendrycks and Dietterich 2019")


def _check_piece(piece: np.ndarray, total: int, images: int, stream: BinaryIO) -> None:
    if piece.dtype != np.uint8 or piece.shape[1:] != (32, 32, 3):
        kind = f"{piece.dtype} {list(piece.shape[1:])}"
        raise DataError(f"{name_of(stream)}: has images of {kind}; allowed: uint8 [32, 32, 3]")
    if total != images * SEVERITIES:
        problem = f"has {total} images, but {images * SEVERITIES} were expected"
        raise DataError(
            f"{name_of(stream)}: {problem}: as many in each corruption, at 5 severities"
        )


def pieces(stream: BinaryIO, rows: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """A ``.npy`` stream, up to ``rows`` rows at a time.

    Yields:
        The number of the first row, how many rows there are in all, and the piece.

    Raises:
        DataError: If the stream is no such array, holds objects, or ends early; it names the
            stream.
    """
    name = name_of(stream)
    with reading(name, "is no array of numpy's"):
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    if by_columns or dtype.hasobject or not shape:
        raise DataError(f"{name}: is an array of {dtype} {shape}; allowed: numbers, row by row")
    width = dtype.itemsize * int(np.prod(shape[1:]))
    for first in range(0, shape[0], rows):
        count = min(rows, shape[0] - first)
        content = stream.read(count * width)
        if len(content) != count * width:
            raise DataError(
                f"{name}: ends early, in row {first + len(content) // width:,}; fetch it again"
            )
        yield first, shape[0], np.frombuffer(content, dtype).reshape(count, *shape[1:])
