"""RxRx1: fluorescent microscopy of cells under 50 genetic treatments, in four types of cells.

M. Sypetkowski, M. Rezanejad, S. Saberian, O. Kraus, J. Urbanik, J. Taylor, B. Mabey, M. Victors, J.
Yosinski, A. Rezazadeh Sereshkeh, I. Haque and B. Earnshaw. RxRx1: A Dataset for Evaluating
Experimental Batch Correction Methods. CVPR workshops 2023.

Licence: CC BY-NC-SA 4.0.

What comes: ``rxrx1-metadata.zip`` and ``rxrx1-images.zip`` (46 GB), from the publishers. An image
is six grey pictures of 512 x 512 pixels,
``rxrx1/images/<experiment>/Plate<n>/<well>_s<site>_w<channel> .png``.

What is done, as by FL4Health for Ditto with adaptive constraints (Ayromlou and Emerson 2025): the
``top`` commonest of the 1,139 treatments are kept, the three first channels, and the publishers'
split; the four clients are the four types of cells, RPE, HUVEC, HEPG2 and U2OS (the paper calls
them hospitals). Classes are numbered in ascending order of the treatments' ids. Treatments that are
equally common are taken in that order, too: which of them FL4Health takes is left to pandas, and 19
of the 50 are such (the others are the 31 controls). Images of another ``side`` than 512 are resized
bilinearly. Values are scaled to 0..1. The whole set's number of images, 125,510, is asserted.

Memory: the index of the archive's 753,060 pictures and the metadata, 619 MB.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import validation
from fl.data.readers.archives import read_member
from fl.data.readers.image_files import decode_image
from fl.data.readers.published_domains import TEST, TRAIN, fill_images, write_labels

METADATA = "rxrx1/metadata.csv"
METADATA_COLUMNS = ["cell_type", "dataset", "experiment", "plate", "well", "site", "sirna_id"]
CELL_TYPES = ("RPE", "HUVEC", "HEPG2", "U2OS")
CHANNELS = (1, 2, 3)

ALL_IMAGES = 125_510
"""Of the whole set, all treatments."""

PLATES, EXPERIMENTS, CONTROLS, SITES = 204, 51, 31, 2
"""As designed: a control is on each plate, a treatment in each experiment once; two images each."""


@dataclass(frozen=True)
class RxRx1:
    """Images of cells after treatments, the classes; four cell types are domains.

    Attributes:
        top: Number of treatments; the most frequent ones are used.
        side: Height and width of images in pixels.
        complete: Check the data against the published sizes; false reads a subset.
    """

    top: Count = 50
    side: Count = 512
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = tuple(
        Source(name, f"https://storage.googleapis.com/rxrx/rxrx1/{name}")
        for name in ("rxrx1-metadata.zip", "rxrx1-images.zip")
    )
    domains: ClassVar[tuple[str, ...]] = CELL_TYPES
    natural_clients: ClassVar[int | None] = len(CELL_TYPES)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples by the design of the experiment; a few images are missing."""
        if not self.complete:
            return None
        controls = min(self.top, CONTROLS)
        return SITES * (PLATES * controls + EXPERIMENTS * (self.top - controls))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        return (len(CHANNELS), self.side, self.side)

    @property
    def classes(self) -> int:
        """Number of treatments that are used."""
        return self.top

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[samples, 3, side, side]``, y, domain, client and split ``[samples]``.

        Rows are sorted by domain, and in the order of the metadata within one.
        """
        metadata, archive = (raw / source.name for source in self.sources)
        table = _read_metadata(metadata)
        if self.complete:
            validation.check_sizes(
                {METADATA: len(table)}, {METADATA: ALL_IMAGES}, str(metadata), "its publisher"
            )
        treatments = most_frequent(table["sirna_id"].to_numpy(), self.top, metadata)
        table = _select_treatments(table, treatments, metadata)
        x = writer.create("x", (len(table), *self.shape), np.uint8)
        fill_images(archive, _picture_rows(table), x, self._grey)
        y = np.searchsorted(treatments, table["sirna_id"].to_numpy())
        domain = table["cell_type"].map(CELL_TYPES.index).to_numpy()
        write_labels(writer, y, domain, np.where(table["dataset"] == "test", TEST, TRAIN))
        normalisation = {"scale": 1 / 255, "mean": 0.0, "sd": 1.0}
        names = [f"siRNA {sirna}" for sirna in treatments]
        writer.describe(names, normalisation=normalisation, domains=self.domains)

    def _grey(self, stream: BinaryIO) -> np.ndarray:
        return decode_image(stream, (self.side, self.side), "L", converts=())[0]


def most_frequent(sirna: np.ndarray, top: int, metadata: Path) -> np.ndarray:
    """The ``top`` commonest ids, ascending; of equally common ones the smaller."""
    ids, counts = np.unique(sirna, return_counts=True)
    if len(ids) < top:
        raise DataError(f"{metadata}: has {len(ids)} treatments. Allowed: {top} at least (`top`)")
    return np.sort(ids[np.lexsort((ids, -counts))[:top]])


def _read_metadata(metadata: Path) -> pd.DataFrame:
    content = read_member(metadata, METADATA)
    try:
        return pd.read_csv(content, usecols=METADATA_COLUMNS)
    except ValueError as error:
        required = ", ".join(METADATA_COLUMNS)
        raise DataError(
            f"{metadata}: {METADATA} is no table with the columns {required} ({error})"
        ) from error


def _select_treatments(table: pd.DataFrame, treatments: np.ndarray, metadata: Path) -> pd.DataFrame:
    table = table[table["sirna_id"].isin(treatments)]
    for unknown in set(table["cell_type"]) - set(CELL_TYPES):
        raise DataError(
            f"{metadata}: {METADATA} has the cell type {unknown!r}", ", ".join(CELL_TYPES)
        )
    order = np.argsort(table["cell_type"].map(CELL_TYPES.index).to_numpy(), kind="stable")
    return table.iloc[order]


def _picture_rows(table: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Row and channel of each picture, by its path."""
    columns = (table[name] for name in ("experiment", "plate", "well", "site"))
    return {
        f"images/{experiment}/Plate{plate}/{well}_s{site}_w{w}.png": (row, channel)
        for row, (experiment, plate, well, site) in enumerate(zip(*columns, strict=True))
        for channel, w in enumerate(CHANNELS)
    }
