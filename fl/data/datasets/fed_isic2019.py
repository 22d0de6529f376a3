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
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import published_domains, validation
from fl.data.readers.image_files import decode_image
from fl.data.readers.published_domains import TEST, TRAIN, fill_images, write_labels

IMAGE_SIDE, NORM_POWER = 224, 6

LESIONS = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
IMAGES_BY_CENTRE = {
    "BCN": (9930, 2483),
    "HAM_vidir_molemax": (3163, 791),
    "HAM_vidir_modern": (2691, 672),
    "HAM_rosendahl": (1807, 452),
    "MSK": (655, 164),
    "HAM_vienna_dias": (351, 88),
}
"""Train and test samples of each centre, as FLamby states them."""

IMAGENET_MEAN, IMAGENET_SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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
    domains: ClassVar[tuple[str, ...]] = tuple(IMAGES_BY_CENTRE)
    shape: ClassVar[tuple[int, ...]] = (3, IMAGE_SIDE, IMAGE_SIDE)
    classes: ClassVar[int] = len(LESIONS)
    natural_clients: ClassVar[int | None] = len(IMAGES_BY_CENTRE)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(map(sum, IMAGES_BY_CENTRE.values())) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[23247, 3, 224, 224]``, y, domain, client and split ``[23247]``.

        Rows are in the order of ``train_test_split``.
        """
        archive, metadata, truth, split = (raw / source.name for source in self.sources)
        table = _read_split(split)
        _check_labels(table, truth, split)
        _check_centres(table, metadata, split)
        if self.complete:
            by = zip(table["center"], table["fold"], strict=True)
            sizes = Counter(f"{self.domains[centre]} {fold}" for centre, fold in by)
            published = published_domains.published_counts(IMAGES_BY_CENTRE, ("train", "test"))
            validation.check_sizes(sizes, published, str(split), "FLamby")
        x = writer.create("x", (len(table), *self.shape), np.uint8)
        rows = {f"{image}.jpg": row for row, image in enumerate(table["image"])}
        fill_images(archive, rows, x, preprocess)
        fold = np.where(table["fold"] == "test", TEST, TRAIN)
        write_labels(writer, table["target"].to_numpy(), table["center"].to_numpy(), fold)
        normalisation = {"scale": 1 / 255, "mean": list(IMAGENET_MEAN), "sd": list(IMAGENET_SD)}
        writer.describe(LESIONS, normalisation=normalisation, domains=self.domains)


def preprocess(stream: BinaryIO) -> np.ndarray:
    """A picture as uint8 ``[3, 224, 224]``: resized, with constant colour, and cut."""
    from PIL import Image

    pixels = decode_image(stream, None)
    height, width = pixels.shape[1:]
    ratio = IMAGE_SIDE / min(height, width)
    # A side that is 224 but for rounding stays 224: one pixel less could not be cut.
    size = max(IMAGE_SIDE, int(width * ratio)), max(IMAGE_SIDE, int(height * ratio))
    picture = Image.fromarray(pixels.transpose(1, 2, 0))
    small = np.asarray(picture.resize(size, Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    first_row, first_column = (size[1] - IMAGE_SIDE) // 2, (size[0] - IMAGE_SIDE) // 2
    return constant_colour(small)[
        :, first_row : first_row + IMAGE_SIDE, first_column : first_column + IMAGE_SIDE
    ]


def constant_colour(pixels: np.ndarray) -> np.ndarray:
    """Shades of grey with the 6-norm, uint8 ``[3, height, width]``; see the module's text."""
    norms = np.mean(pixels.astype(np.float64) ** NORM_POWER, axis=(1, 2)) ** (1 / NORM_POWER)
    light = norms / max(float(np.linalg.norm(norms)), np.finfo(float).tiny)
    gain = 1 / (np.sqrt(3) * np.maximum(light, np.finfo(float).tiny))
    return np.clip(pixels * gain[:, None, None], 0, 255).astype(np.uint8)


def _read_split(path: Path) -> pd.DataFrame:
    """FLamby's table, whose last column says twice what two others say: so its end is known."""
    table = _read_table(path, ["image", "target", "center", "fold", "fold2"])
    expected = table["fold"].astype(str) + "_" + table["center"].astype(str)
    is_incomplete = table.isna().any(axis=1)
    for row in np.flatnonzero(is_incomplete if is_incomplete.any() else expected != table["fold2"])[
        :1
    ]:
        raise DataError(f"{path}: row {row + 1} is incomplete; delete the file to fetch it again")
    return table


def _read_table(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        return pd.read_csv(path, usecols=columns)[columns]
    except (ValueError, OSError) as error:
        required = ", ".join(columns)
        raise DataError(f"{path}: is no table with the columns {required} ({error})") from error


def _check_labels(table: pd.DataFrame, truth: Path, split: Path) -> None:
    truth_table = _read_table(truth, ["image", *LESIONS]).set_index("image")
    _check_same_images(table, truth_table, truth, split)
    truth_label = truth_table.loc[table["image"]].to_numpy().argmax(axis=1)
    for row in np.flatnonzero(truth_label != table["target"].to_numpy())[:1]:
        image, target = table["image"].iloc[row], table["target"].iloc[row]
        raise DataError(
            f"{split}: {image} has target {target}, but {truth.name} says {truth_label[row]}"
        )


def _check_centres(table: pd.DataFrame, metadata: Path, split: Path) -> None:
    metadata_table = _read_table(metadata, ["image", "lesion_id"]).set_index("image")
    _check_same_images(table, metadata_table, metadata, split)
    names = list(IMAGES_BY_CENTRE)
    for image, lesion, centre in zip(
        table["image"],
        metadata_table.loc[table["image"], "lesion_id"],
        table["center"],
        strict=True,
    ):
        if not 0 <= centre < len(names) or str(lesion)[:3] != names[centre][:3]:
            raise DataError(
                f"{split}: {image} has centre {centre}, but {metadata.name} calls the lesion"
                f" {lesion!r}. Allowed: {', '.join(f'{i} ({n})' for i, n in enumerate(names))}"
            )


def _check_same_images(
    table: pd.DataFrame, other_table: pd.DataFrame, path: Path, split: Path
) -> None:
    for image in table["image"][~table["image"].isin(other_table.index)][:1]:
        raise DataError(f"{path}: has no row for {image}, which is in {split.name}")
