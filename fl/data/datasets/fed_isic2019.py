"""Fed-ISIC2019: photographs of skin lesions of eight kinds from six centres.

J. Ogier du Terrail et al. FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in
Realistic Healthcare Settings. NeurIPS 2022 (the benchmark); P. Tschandl, C. Rosendahl and H.
Kittler. The HAM10000 Dataset. Scientific Data 2018; N. Codella et al. Skin Lesion Analysis Toward
Melanoma Detection. ISBI 2018; M. Combalia et al. BCN20000. arXiv:1908.02288 (the images).

Licence: CC BY-NC 4.0.

What comes: images, metadata and ground truth from the ISIC 2019 challenge, and FLamby's
``train_test_split``, which says centre and split of the 23,247 of 25,331 images whose centre is
known.

What is done, as in FLamby: the shorter side is brought to 224 pixels bilinearly, keeping the
aspect; then colour constancy by the shades of grey of G. D. Finlayson and E. Trezzi (CIC 2004):
channel c is multiplied by 1 / (sqrt(3) e_c), e the channels' 6-norms divided by their length.
Departures: images are cut to the 224 x 224 pixels in their middle, as arrays need one shape (FLamby
crops 200 x 200 at random places of the whole when training, and from the middle when testing: crop
from these); they are not compressed as JPEG once more; values over 255 are clipped rather than
wrapped around. A model sees ImageNet's normalisation. FLamby's sizes, by centre and split, are
asserted; labels must agree with the challenge's ground truth and centres with its names of lesions.

Memory: one image at a time, 26 MB for one of 1024 x 1024, and the tables.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.data import published_domains, validation
from fl.data.download import Source
from fl.data.image_files import decode_image
from fl.data.prepared import Writer
from fl.data.published_domains import TEST, TRAIN, fill_images, write_labels

SIDE, POWER = 224, 6

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
PUBLISHED = {
    "BCN": (9930, 2483),
    "HAM_vidir_molemax": (3163, 791),
    "HAM_vidir_modern": (2691, 672),
    "HAM_rosendahl": (1807, 452),
    "MSK": (655, 164),
    "HAM_vienna_dias": (351, 88),
}
"""Train and test samples of each centre, as FLamby states them."""

MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by colour."""

CHALLENGE = "https://isic-challenge-data.s3.amazonaws.com/2019"
FLAMBY = (
    "https://raw.githubusercontent.com/owkin/FLamby/ed9c943f19236ec4dedb4a3bee30d9316d08e395"
    "/flamby/datasets/fed_isic2019/dataset_creation_scripts"
)


@dataclass(frozen=True)
class FedIsic2019:
    """Images of 3 x 224 x 224 pixels in eight classes and six domains.

    Attributes:
        complete: Check the data against the published sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source("ISIC_2019_Training_Input.zip", f"{CHALLENGE}/ISIC_2019_Training_Input.zip"),
        Source("ISIC_2019_Training_Metadata.csv", f"{CHALLENGE}/ISIC_2019_Training_Metadata.csv"),
        Source(
            "ISIC_2019_Training_GroundTruth.csv",
            f"{CHALLENGE}/ISIC_2019_Training_GroundTruth.csv",
        ),
        Source("train_test_split", f"{FLAMBY}/train_test_split"),
    )
    domains: ClassVar[tuple[str, ...]] = tuple(PUBLISHED)
    shape: ClassVar[tuple[int, ...]] = (3, SIDE, SIDE)
    classes: ClassVar[int] = len(CLASSES)
    natural_clients: ClassVar[int | None] = len(PUBLISHED)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """How many samples there are; None of a subset."""
        return sum(map(sum, PUBLISHED.values())) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[23247, 3, 224, 224]``, y, domain, client and split ``[23247]``.

        Rows are in the order of ``train_test_split``.
        """
        archive, metadata, truth, split = (raw / source.name for source in self.sources)
        table = _split(split)
        _agree_on_labels(table, truth, split)
        _agree_on_centres(table, metadata, split)
        if self.complete:
            by = zip(table["center"], table["fold"], strict=True)
            sizes = Counter(f"{self.domains[centre]} {fold}" for centre, fold in by)
            published = published_domains.published_counts(PUBLISHED, ("train", "test"))
            validation.check_sizes(sizes, published, str(split), "FLamby")
        x = writer.create("x", (len(table), *self.shape), np.uint8)
        rows = {f"{image}.jpg": row for row, image in enumerate(table["image"])}
        fill_images(archive, rows, x, preprocess)
        fold = np.where(table["fold"] == "test", TEST, TRAIN)
        write_labels(writer, table["target"].to_numpy(), table["center"].to_numpy(), fold)
        normalisation = {"scale": 1 / 255, "mean": list(MEAN), "sd": list(SD)}
        writer.describe(CLASSES, normalisation=normalisation, domains=self.domains)


def preprocess(stream: BinaryIO) -> np.ndarray:
    """A picture as uint8 ``[3, 224, 224]``: resized, with constant colour, and cut."""
    from PIL import Image

    pixels = decode_image(stream, None)
    height, width = pixels.shape[1:]
    ratio = SIDE / min(height, width)
    # A side that is 224 but for rounding stays 224: one pixel less could not be cut.
    size = max(SIDE, int(width * ratio)), max(SIDE, int(height * ratio))
    picture = Image.fromarray(pixels.transpose(1, 2, 0))
    small = np.asarray(picture.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    top, left = (size[1] - SIDE) // 2, (size[0] - SIDE) // 2
    return constant_colour(small)[:, top : top + SIDE, left : left + SIDE]


def constant_colour(pixels: np.ndarray) -> np.ndarray:
    """Shades of grey with the 6-norm, uint8 ``[3, height, width]``; see the module's text."""
    norms = np.mean(pixels.astype(np.float64) ** POWER, axis=(1, 2)) ** (1 / POWER)
    light = norms / max(float(np.linalg.norm(norms)), np.finfo(float).tiny)
    gain = 1 / (np.sqrt(3) * np.maximum(light, np.finfo(float).tiny))
    return np.clip(pixels * gain[:, None, None], 0, 255).astype(np.uint8)


def _split(path: Path) -> pd.DataFrame:
    """FLamby's table, whose last column says twice what two others say: so its end is known."""
    table = _table(path, ["image", "target", "center", "fold", "fold2"])
    twice = table["fold"].astype(str) + "_" + table["center"].astype(str)
    short = table.isna().any(axis=1)
    for row in np.flatnonzero(short if short.any() else twice != table["fold2"])[:1]:
        raise DataError(f"{path}: row {row + 1} is incomplete; delete the file to fetch it again")
    return table


def _table(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        return pd.read_csv(path, usecols=columns)[columns]
    except (ValueError, OSError) as error:
        wanted = ", ".join(columns)
        raise DataError(f"{path}: is no table with the columns {wanted} ({error})") from error


def _agree_on_labels(table: pd.DataFrame, truth: Path, split: Path) -> None:
    known = _table(truth, ["image", *CLASSES]).set_index("image")
    _same_images(table, known, truth, split)
    label = known.loc[table["image"]].to_numpy().argmax(axis=1)
    for row in np.flatnonzero(label != table["target"].to_numpy())[:1]:
        image, target = table["image"].iloc[row], table["target"].iloc[row]
        raise DataError(f"{split}: {image} has target {target}, but {truth.name} says {label[row]}")


def _agree_on_centres(table: pd.DataFrame, metadata: Path, split: Path) -> None:
    known = _table(metadata, ["image", "lesion_id"]).set_index("image")
    _same_images(table, known, metadata, split)
    names = list(PUBLISHED)
    for image, lesion, centre in zip(
        table["image"], known.loc[table["image"], "lesion_id"], table["center"], strict=True
    ):
        if not 0 <= centre < len(names) or str(lesion)[:3] != names[centre][:3]:
            raise DataError(
                f"{split}: {image} has centre {centre}, but {metadata.name} calls the lesion"
                f" {lesion!r}. Allowed: {', '.join(f'{i} ({n})' for i, n in enumerate(names))}"
            )


def _same_images(table: pd.DataFrame, known: pd.DataFrame, path: Path, split: Path) -> None:
    for image in table["image"][~table["image"].isin(known.index)][:1]:
        raise DataError(f"{path}: has no row for {image}, which is in {split.name}")
