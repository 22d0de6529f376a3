"""Prostate MRI from six sites: slices with the gland's segmentation.

Q. Liu, Q. Dou and P.-A. Heng. Shape-Aware Meta-Learning for Generalizing Prostate MRI Segmentation
to Unseen Domains. MICCAI 2020 (the collection); N. Bloch et al. NCI-ISBI 2013 Challenge. 2015
(RUNMC, BMC); G. Lemaitre et al. Computer-Aided Detection and Diagnosis for Prostate Cancer.
Computers in Biology and Medicine 2015 (I2CVB); G. Litjens et al. The PROMISE12 Challenge. Medical
Image Analysis 2014 (UCL, BIDMC, HK).

Licence: none is stated for the collection; RUNMC and BMC are CC BY 3.0, the others for research.

What comes: ``Processed_data_nii.zip``, on Google Drive, which asks for a click that no program can
make: put it into the raw folder yourself. It holds 116 volumes, ``<site>/Case<nn>.nii.gz``, of
384 x 384 pixels a slice, and for each one ``Case<nn>_segmentation.nii.gz`` (BMC writes it with a
capital).

What is done, as in FedFA (T. Zhou and E. Konukoglu. ICLR 2023), after HarmoFL: a volume's values
above its 99th percentile are cut off and the rest is scaled to whole numbers from 0 to 255; a
sample is a slice with its two neighbours as channels, so that a volume's first and last slice are
none; slices without the gland are left out. Any label above 0 is the gland. A model sees the 0 to
255 as they are, as in FedFA. A site's slices are shuffled; the first 60 % (rounded down) are
``train``, the next 20 % ``val``, the last 20 % ``test``; one or two between the last are in none
and are left out. The order is this reader's, by ``seed``: FedFA's is not published, so its sizes
are asserted but its very slices are not known. Slices of one volume fall into several splits there,
and so they do here.

The task is the segmentation of the gland, ``mask``. ``task: classification`` asks instead whether a
slice shows it, which ``empty: true`` makes a question by keeping the slices that do not: beyond the
papers.

Memory: one volume as numbers of eight bytes, three times over: 101 MB for 24 slices.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal

import numpy as np

from fl.base.errors import DataError, optional_package, wrap_read_errors
from fl.base.fields import Seed
from fl.base.rng import generator
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import published_domains, validation
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.published_domains import TEST, TRAIN, VAL, write_labels

SLICE_SIDE = 384
SLICE_CLASSES = ("no gland", "gland")
SLICES_BY_SITE = {
    "BIDMC": (156, 52, 52),
    "HK": (94, 31, 31),
    "I2CVB": (280, 93, 93),
    "BMC": (230, 76, 76),
    "RUNMC": (246, 82, 82),
    "UCL": (105, 35, 35),
}
"""Train, val and test samples of each site, as FedFA prints them."""

VOLUME_FILE = re.compile(
    r"(?:^|/)(?P<site>\w+)/(?P<case>Case\d+)(?P<mask>_segmentation)?\.nii\.gz$", re.I
)

Case = tuple[str, str]
"""Site and name of a volume."""


@dataclass(frozen=True)
class ProstateMri:
    """Slices of 3 x 384 x 384 pixels with masks of 384 x 384, in six domains.

    Attributes:
        task: Task: the gland's mask, or whether a slice shows the gland.
        empty: Whether slices without the gland are used.
        seed: Seed of the order in which a site's slices are divided.
        complete: Check the data against the published sizes; false reads a subset.
    """

    task: Literal["segmentation", "classification"] = "segmentation"
    empty: bool = False
    seed: Seed = 0
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "Processed_data_nii.zip",
            None,
            note="it is on Google Drive, file 1TtrjnlnJ1yqr5m4LUGMelKTQXtvZaru-"
            " (see https://liuquande.github.io/SAML/)",
        ),
    )
    domains: ClassVar[tuple[str, ...]] = tuple(SLICES_BY_SITE)
    shape: ClassVar[tuple[int, ...]] = (3, SLICE_SIDE, SLICE_SIDE)
    classes: ClassVar[int] = len(SLICE_CLASSES)
    natural_clients: ClassVar[int | None] = len(SLICES_BY_SITE)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "val", "test")

    @property
    def size(self) -> int | None:
        """Number of samples; None for a subset and with slices without the gland."""
        return sum(map(sum, SLICES_BY_SITE.values())) if self.complete and not self.empty else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[n, 3, 384, 384]``, mask uint8 ``[n, 384, 384]`` and what goes with them.

        Rows are sorted by site; within one, train, val and test samples.
        """
        archive = raw / self.sources[0].name
        order, split = self._divide(archive, self._slices(archive))
        domain = np.array([self.domains.index(site) for site, _, _ in order], np.int32)
        if self.complete and not self.empty:
            slices = published_domains.domain_counts(domain, split, self.domains)
            validation.check_sizes(
                slices, published_domains.published_counts(SLICES_BY_SITE), str(archive), "FedFA"
            )
        x = writer.create("x", (len(order), *self.shape), np.uint8)
        mask = writer.create("mask", (len(order), SLICE_SIDE, SLICE_SIDE), np.uint8)
        _fill(archive, order, x, mask)
        write_labels(writer, np.array([shown.any() for shown in mask]), domain, split)
        normalisation = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
        writer.describe(SLICE_CLASSES, normalisation=normalisation, domains=self.domains)

    def _slices(self, archive: Path) -> dict[Case, list[int]]:
        """The slices of each case that are samples: inner ones, with the gland unless ``empty``."""
        sizes = {}
        for case, masked, volume in _volumes(archive, masks=True):
            if masked:
                inner = np.arange(1, len(volume) - 1)
                shown = volume[inner].reshape(len(inner), -1).any(axis=1)
                sizes[case] = inner[shown | self.empty].tolist()
        return sizes

    def _divide(
        self, archive: Path, slices: dict[Case, list[int]]
    ) -> tuple[list[tuple[str, str, int]], np.ndarray]:
        """Site, case and slice of each row, and its split."""
        order: list[tuple[str, str, int]] = []
        split: list[int] = []
        for site in self.domains:
            samples = [(*c, i) for c in sorted(slices) if c[0] == site for i in slices[c]]
            if not samples:
                validation.check_missing(archive, [f"segmentations of {site}"])
            n = len(samples)
            shuffled = generator(self.seed, f"prostate-mri {site}").permutation(n)
            # FedFA's arithmetic: 0.6 n may round to just below a whole number.
            train, fifth = int(0.6 * n), int(0.2 * n)
            chosen = [*shuffled[: train + fifth], *shuffled[n - fifth :]]
            order += [samples[i] for i in chosen]
            split += [TRAIN] * train + [VAL] * fifth + [TEST] * fifth
        return order, np.array(split, np.int8)


def _fill(
    archive: Path, order: list[tuple[str, str, int]], x: np.ndarray, mask: np.ndarray
) -> None:
    rows: dict[Case, list[tuple[int, int]]] = {}
    for row, (site, case, i) in enumerate(order):
        rows.setdefault((site, case), []).append((row, i))
    missing = dict.fromkeys(rows)
    for (site, case), masked, volume in _volumes(archive):
        values = volume if masked else scale_volume(volume)
        for row, i in rows.get((site, case), []):
            if i + 1 >= len(values):
                problem = "volume and segmentation differ in their numbers of slices"
                raise DataError(f"{archive}: {site}/{case}: {problem}")
            if masked:
                mask[row] = values[i] > 0
            else:
                x[row] = values[i - 1 : i + 2]
        if not masked:
            missing.pop((site, case), None)
    validation.check_missing(archive, (f"{site}/{case}.nii.gz" for site, case in missing))


def _volumes(archive: Path, masks: bool = False) -> Iterator[tuple[Case, bool, np.ndarray]]:
    """Each case's volume, or segmentation, in the archive's order; with ``masks`` only those."""

    def accepts(path: str) -> bool:
        match = VOLUME_FILE.search(path)
        return bool(match and match["site"] in SLICES_BY_SITE and (match["mask"] or not masks))

    for path, stream in iter_members(archive, accepts):
        match = VOLUME_FILE.search(path)
        assert match
        volume = read_volume(stream)
        if volume.shape[1:] != (SLICE_SIDE, SLICE_SIDE) or len(volume) < 3:
            raise DataError(
                f"{stream_name(stream)}: has the shape {list(volume.shape)}. Allowed:"
                f" [slices, {SLICE_SIDE}, {SLICE_SIDE}] with three slices or more"
            )
        yield (match["site"], match["case"]), bool(match["mask"]), volume


def scale_volume(volume: np.ndarray) -> np.ndarray:
    """A volume as uint8: from its least value, 0, to its 99th percentile, 255, cut off there."""
    low, high = float(volume.min()), float(np.quantile(volume, 0.99))
    if high <= low:
        return np.zeros(volume.shape, np.uint8)
    return ((np.minimum(volume, high) - low) / (high - low) * 255).astype(np.uint8)


def read_volume(stream: BinaryIO) -> np.ndarray:
    """The volume in a ``.nii`` or ``.nii.gz`` stream (R. W. Cox et al. NIfTI-1. 2004).

    Axes are in the file's own order, the slowest first, as SimpleITK gives them; no orientation is
    applied.

    Returns:
        An array ``[slices, rows, columns]``: of the file's type where its header asks for no
        scaling, else float64.

    Raises:
        DataError: For a file of another kind and for a damaged one, which it names.
    """
    with optional_package("a NIfTI volume"):
        from nibabel import imageglobals
        from nibabel.nifti1 import Nifti1Image

    name, content = stream_name(stream), stream.read()
    # Its remarks on orientation and voxel sizes concern no array.
    imageglobals.logger.disabled = True
    with wrap_read_errors(name, "is no NIfTI-1 volume", "get the archive again"):
        content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
        values = np.asanyarray(Nifti1Image.from_bytes(content).dataobj)
        values = values.reshape(values.shape[:3]).transpose(2, 1, 0)
    if values.dtype.kind not in "iuf":
        raise DataError(f"{name}: has values of type {values.dtype}. Allowed: numbers")
    return np.ascontiguousarray(values, values.dtype.newbyteorder("="))
