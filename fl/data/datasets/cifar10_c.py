"""The test images of CIFAR-10 under nineteen corruptions: one domain each.

D. Hendrycks and T. Dietterich. Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations. ICLR 2019.

Licence: CC BY 4.0, https://zenodo.org/records/2535967, where the archive comes from.

Every corruption has the 10,000 test images in the order of CIFAR-10 at each of five severities.
Rows are sorted by domain (in the order of ``corruptions``), then severity, then image. One
photograph thus occurs in every domain and severity: where a client tests on one version of it, it
and others may have trained on another. With ``photographs`` that many are drawn; each stands once
in every domain, at one of the severities, which are dealt evenly, and a fifth of the photographs,
the same in all domains, is the published test split. So FedL2P takes ten corruptions at severity 3
and trains on 80 % of each, and FedLGD 6,000 photographs of each of all nineteen, of 28 x 28 pixels;
of which severities it does not say.

Images are copied from the archive into place in pieces of 1,000. Beside the arrays that it maps,
preparing needs some 11 MB at most, of 95,000 images as of 19,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, BinaryIO, ClassVar, Literal

import numpy as np

from fl.base.errors import ConfigError, DataError, Location, wrap_read_errors
from fl.base.fields import Bound
from fl.base.rng import generator
from fl.data.datasets.cifar10 import CIFAR10_NORMALISATION, OBJECTS
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.validation import check_missing, check_sizes, check_whole_numbers

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
SEVERITIES, PIECE_ROWS = 5, 1000
IMAGES_PER_SEVERITY = 10_000
"""Published images of a corruption at a severity."""


@dataclass(frozen=True)
class CIFAR10C:
    """Images of 3 x 32 x 32 pixels, 0 to 255, in ten classes and up to nineteen domains.

    Attributes:
        corruptions: Names of the corruptions, in the order of domains (FedL2P: brightness, frost,
            jpeg_compression, contrast, snow, motion_blur, pixelate, speckle_noise, fog and
            saturate).
        severities: Severities, in this order (FedL2P: 3).
        photographs: Number of photographs, drawn once for all corruptions; null: all, at every
            severity.
        pixels: Side of an image: 32 as published, or fewer pixels by bilinear resizing.
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    corruptions: tuple[Corruption, ...] = CORRUPTIONS
    severities: tuple[Literal[1, 2, 3, 4, 5], ...] = (1, 2, 3, 4, 5)
    photographs: Annotated[int, Bound(low=5, high=IMAGES_PER_SEVERITY)] | None = None
    pixels: Annotated[int, Bound(low=8, high=32)] = 32
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "CIFAR-10-C.tar",
            "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar",
            "c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
        ),
    )
    classes: ClassVar[int] = 10
    natural_clients: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        for key in ("corruptions", "severities"):
            chosen = getattr(self, key)
            if not chosen or len(set(chosen)) != len(chosen):
                allowed = "at least one, each once"
                raise ConfigError(Location("cifar10-c") / key, f"is {list(chosen)}", allowed)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image."""
        return (3, self.pixels, self.pixels)

    @property
    def published_splits(self) -> tuple[str, ...]:
        """All images are test images unless photographs are drawn."""
        return ("test",) if self.photographs is None else ("train", "test")

    @property
    def domains(self) -> tuple[str, ...]:
        """The corruptions, in the order of domain numbers."""
        return self.corruptions

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        if self.photographs is not None:
            return len(self.corruptions) * self.photographs
        return (
            len(self.corruptions) * len(self.severities) * IMAGES_PER_SEVERITY
            if self.complete
            else None
        )

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[n, 3, pixels, pixels]``, y, domain and split ``[n]``."""
        archive, images, x = raw / self.sources[0].name, 0, None
        rows = np.empty(0, np.int64)
        labels, existing = np.empty(0, np.int64), set[str]()
        for path, content in iter_members(archive, lambda path: path.endswith(".npy")):
            name = PurePosixPath(path).stem
            if name == "labels":
                label_pieces = [piece for _, _, piece in read_array_pieces(content, 10**6)]
                numbers = np.concatenate(label_pieces) if label_pieces else labels
                labels = check_whole_numbers(
                    numbers, 0, self.classes - 1, stream_name(content), "labels"
                )
            if name not in self.corruptions:
                continue
            for first, total, piece in read_array_pieces(content, PIECE_ROWS):
                if x is None:
                    images = total // SEVERITIES
                    rows = self._rows(archive, images)
                    count = len(self.corruptions) * int((rows >= 0).sum())
                    x = writer.create("x", (count, *self.shape), np.uint8)
                _check_piece(piece, total, images, content)
                self._place(x, name, piece, rows[first : first + len(piece)])
            existing.add(name)
        self._check(archive, existing, labels, images)
        # Indices in the archive's array of the images of a domain, in the order of its rows.
        used = np.flatnonzero(rows >= 0)
        used = used[rows[used].argsort()]
        domains = len(self.corruptions)
        split = np.ones(len(used), np.int8)
        if self.photographs is not None:
            split[: len(used) - len(used) // 5] = 0
        writer.save("y", np.tile(labels.astype(np.int64)[used], domains))
        writer.save("domain", np.repeat(np.arange(domains, dtype=np.int32), len(used)))
        writer.save("split", np.tile(split, domains))
        writer.describe(OBJECTS, normalisation=CIFAR10_NORMALISATION, domains=self.corruptions)

    def _rows(self, archive: Path, images: int) -> np.ndarray:
        """Return the row in the domain of each image of a corruption, [5 images]; -1 for none."""
        rows = np.full((SEVERITIES, images), -1)
        if self.photographs is None:
            for index, severity in enumerate(self.severities):
                rows[severity - 1] = index * images + np.arange(images)
            return rows.reshape(-1)
        if self.photographs > images:
            problem = f"has {images:,} photographs, but the config asks for {self.photographs:,}"
            raise DataError(f"{archive}: {problem}. Allowed: photographs: {images} or fewer")
        photographs = generator(0, "photographs of CIFAR-10-C").permutation(images)[
            : self.photographs
        ]
        severities = np.array(self.severities)[np.arange(len(photographs)) % len(self.severities)]
        rows[severities - 1, photographs] = np.arange(len(photographs))
        return rows.reshape(-1)

    def _place(self, x: np.ndarray, name: str, piece: np.ndarray, rows: np.ndarray) -> None:
        """Copy images of a corruption to their rows in its domain; skip those with row -1."""
        first = self.corruptions.index(name) * (len(x) // len(self.corruptions))
        chosen = piece[rows >= 0]
        if self.pixels != chosen.shape[1]:
            chosen = np.array([shrink(image, self.pixels) for image in chosen], np.uint8)
        if len(chosen):
            x[first + rows[rows >= 0]] = chosen.transpose(0, 3, 1, 2)

    def _check(self, archive: Path, existing: set[str], labels: np.ndarray, images: int) -> None:
        missing = [f"{name}.npy" for name in self.corruptions if name not in existing]
        missing += ["labels.npy"] if not len(labels) else []
        check_missing(archive, missing)
        if len(labels) != images * SEVERITIES:
            problem = f"labels.npy has {len(labels)} labels for {images * SEVERITIES} images"
            raise DataError(f"{archive}: {problem}. Allowed: one for each image")
        if self.complete:
            sizes, published = {"severity 1": images}, {"severity 1": IMAGES_PER_SEVERITY}
            check_sizes(sizes, published, "cifar10-c", "Hendrycks and Dietterich 2019")


def _check_piece(piece: np.ndarray, total: int, images: int, stream: BinaryIO) -> None:
    if piece.dtype != np.uint8 or piece.shape[1:] != (32, 32, 3):
        kind = f"{piece.dtype} {list(piece.shape[1:])}"
        raise DataError(f"{stream_name(stream)}: has images of {kind}. Allowed: uint8 [32, 32, 3]")
    if total != images * SEVERITIES:
        problem = f"has {total} images, but {images * SEVERITIES} were expected"
        raise DataError(
            f"{stream_name(stream)}: {problem}: as many in each corruption, at 5 severities"
        )


def shrink(image: np.ndarray, pixels: int) -> np.ndarray:
    """Return an image, uint8 [h, w, 3], resized to [pixels, pixels, 3]."""
    from PIL import Image

    picture = Image.fromarray(image).resize((pixels, pixels), Image.Resampling.BILINEAR)
    return np.asarray(picture)


def read_array_pieces(stream: BinaryIO, rows: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Read a ``.npy`` stream, up to ``rows`` rows at a time.

    Args:
        stream: The stream.
        rows: Largest number of rows of a piece.

    Yields:
        The index of the first row, the number of rows of the array, and the piece.

    Raises:
        DataError: If the stream is no such array, holds objects, or ends early; it names the
            stream.
    """
    name = stream_name(stream)
    with wrap_read_errors(name, "is no NumPy array"):
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(stream)
    if by_columns or dtype.hasobject or not shape:
        raise DataError(f"{name}: is an array of {dtype} {shape}. Allowed: numbers, row by row")
    width = dtype.itemsize * int(np.prod(shape[1:]))
    for first in range(0, shape[0], rows):
        count = min(rows, shape[0] - first)
        content = stream.read(count * width)
        if len(content) != count * width:
            raise DataError(
                f"{name}: ends early, in row {first + len(content) // width:,}",
                advice="fetch it again",
            )
        yield first, shape[0], np.frombuffer(content, dtype).reshape(count, *shape[1:])
