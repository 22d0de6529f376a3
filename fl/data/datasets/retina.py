"""RETINA: photographs of the eye's background from four sites, normal or with glaucoma.

C.-Y. Huang, R. Jin, C. Zhao, D. Xu and X. Li. Federated Learning on Virtual Heterogeneous Data with
Local-Global Dataset Distillation. arXiv:2303.02278 (the benchmark); J. Sivaswamy et al. Drishti-GS:
Retinal Image Dataset for Optic Nerve Head Segmentation. ISBI 2014; A. Diaz-Pinto et al. CNNs for
Automatic Glaucoma Assessment Using Fundus Images. BioMedical Engineering OnLine 2019 (ACRIMA); F.
J. Fumero Batista et al. RIM-ONE DL. Image Analysis & Stereology 2020; J. I. Orlando et al. REFUGE
Challenge. Medical Image Analysis 2020.

Licence: all four are given for research; RIM-ONE DL's, at least, forbids passing it on.

What comes, and what needs you:

- ``acrima.zip``: fetched; ``Database/Images/Im001_ACRIMA.jpg``, with ``_g_`` where it is glaucoma.
- ``Drishti-GS1_files.zip``: its publisher asks for a registration and gives a ``.rar``; unpack that
  and pack the folder ``Drishti-GS1_files`` as a zip. Labels are in ``Drishti-GS1_diagnosis.xlsx``.
- ``RIM-ONE_DL_images.zip``: on Google Drive. The variant that is divided at random is taken.
- ``REFUGE-Training400.zip``: its publisher asks for a registration. The other 800 images of REFUGE
  come without labels in this form, and are not taken.

What is done: images are resized to 96 x 96 bilinearly, without keeping their aspect, and scaled to
0..1. Class 0 is normal, 1 glaucoma. ``split`` is the publisher's (Drishti, RIM-ONE); ACRIMA and
REFUGE have none, and are all training samples. FedLGD's authors cut the images around the optic
disc and balanced the classes, in a way that is not published: ACRIMA's and RIM-ONE's are cut out
already, Drishti's and REFUGE's show the whole eye here. The paper names no test sets; its
accuracies are multiples of 1/19, 1/50, 1/100 and 1/200, all but one. The publishers' numbers of
each class are asserted.

Memory: one image at a time; 3 MB with small ones.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, ClassVar
from xml.etree import ElementTree

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import validation
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.published_domains import TEST, TRAIN, fill_images, write_labels

RESIZED_SIDE = 96
CONDITIONS = ("normal", "glaucoma")
IMAGES_BY_SITE = {"Drishti": (31, 70), "Acrima": (309, 396), "Rim": (313, 172), "Refuge": (360, 40)}
"""Images of each class."""
XML_NAMESPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
SHEET, STRINGS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"

ImageLabels = dict[str, tuple[int, int]]
"""Class and split of the image at each path of an archive."""


@dataclass(frozen=True)
class Retina:
    """Images of 3 x 96 x 96 pixels in two classes and four domains.

    Attributes:
        complete: Check the data against the published sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "Drishti-GS1_files.zip",
            None,
            note="register at https://cvit.iiit.ac.in/projects/mip/drishti-gs/mip-dataset2/Home.php,"
            " unpack Drishti-GS1_files.rar and pack its folder as this zip",
        ),
        Source(
            "acrima.zip",
            "https://figshare.com/ndownloader/files/14137700?private_link=c2d31f850af14c5b5232",
        ),
        Source(
            "RIM-ONE_DL_images.zip",
            None,
            note="it is on Google Drive, at https://bit.ly/rim-one-dl-images"
            " (see https://github.com/miag-ull/rim-one-dl)",
        ),
        Source(
            "REFUGE-Training400.zip",
            None,
            note="register at https://refuge.grand-challenge.org and unpack REFUGE2.zip",
        ),
    )
    domains: ClassVar[tuple[str, ...]] = tuple(IMAGES_BY_SITE)
    shape: ClassVar[tuple[int, ...]] = (3, RESIZED_SIDE, RESIZED_SIDE)
    classes: ClassVar[int] = len(CONDITIONS)
    natural_clients: ClassVar[int | None] = len(IMAGES_BY_SITE)
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(map(sum, IMAGES_BY_SITE.values())) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[1691, 3, 96, 96]``, y, domain, client and split ``[1691]``.

        Rows are sorted by domain and then by the path of the image.
        """
        archives = [raw / source.name for source in self.sources]
        by_path = [find(archive) for find, archive in zip(FINDERS, archives, strict=True)]
        about = np.array([about for images in by_path for about in images.values()]).reshape(-1, 2)
        domain = np.repeat(
            np.arange(len(by_path), dtype=np.int32), [len(images) for images in by_path]
        )
        if self.complete:
            self._check_published_sizes(raw, domain, about[:, 0])
        x = writer.create("x", (len(about), *self.shape), np.uint8)
        start = 0
        for archive, images in zip(archives, by_path, strict=True):
            fill_images(archive, {path: row for row, path in enumerate(images, start)}, x)
            start += len(images)
        write_labels(writer, about[:, 0], domain, about[:, 1])
        normalisation = {"scale": 1 / 255, "mean": 0.0, "sd": 1.0}
        writer.describe(CONDITIONS, normalisation=normalisation, domains=self.domains)

    def _check_published_sizes(self, raw: Path, domain: np.ndarray, y: np.ndarray) -> None:
        for d, (name, sizes) in enumerate(IMAGES_BY_SITE.items()):
            published = {f"{name} {kind}": n for kind, n in zip(CONDITIONS, sizes, strict=True)}
            numbers = np.bincount(y[domain == d], minlength=len(CONDITIONS)).tolist()
            archive = str(raw / self.sources[d].name)
            validation.check_sizes(
                dict(zip(published, numbers, strict=True)), published, archive, "its authors"
            )


def find_drishti(archive: Path) -> ImageLabels:
    """Find the images of Drishti; their labels are in column ``Total`` of a sheet."""
    paths, labels = [], {}
    for path, stream in iter_members(archive, _visible):
        if re.search(r"(Training|Test)/Images/.*drishtiGS_\d+\.png$", path):
            paths.append(path)
        elif path.endswith("Drishti-GS1_diagnosis.xlsx"):
            labels = _diagnoses(read_sheet(stream), f"{archive}: {path}")
    if not labels:
        validation.check_missing(archive, ["Drishti-GS1_diagnosis.xlsx"])
    samples = {}
    for path in sorted(paths):
        stem = PurePosixPath(path).stem
        if stem not in labels:
            raise DataError(f"{archive}: Drishti-GS1_diagnosis.xlsx has no diagnosis of {stem}")
        samples[path] = (labels[stem], TRAIN if "Training/Images/" in path else TEST)
    return samples


def _diagnoses(rows: list[dict[str, str]], name: str) -> dict[str, int]:
    columns = {text.strip(): letters for row in rows for letters, text in row.items()}
    if not {"Drishti-GS File", "Total"} <= set(columns):
        raise DataError(f"{name}: has no columns 'Drishti-GS File' and 'Total'")
    file, total = columns["Drishti-GS File"], columns["Total"]
    words = {"normal": 0, "glaucomatous": 1}
    return {
        match[0]: words[row[total].strip().lower()]
        for row in rows
        if (match := re.match(r"drishtiGS_\d+", row.get(file, "")))
        and row.get(total, "").strip().lower() in words
    }


def find_acrima(archive: Path) -> ImageLabels:
    """Find the images of ACRIMA; ``Im310_g_ACRIMA.jpg`` is glaucoma by its name."""
    return _find_images(
        archive,
        r"Im\d+(?P<glaucoma>_g)?_ACRIMA\.(jpg|png)$",
        lambda match: (int(bool(match["glaucoma"])), TRAIN),
    )


def find_rim(archive: Path) -> ImageLabels:
    """Find the images of RIM-ONE, divided at random, with labels and splits by folder."""
    return _find_images(
        archive,
        r"partitioned_randomly/(?P<split>training|test)_set/(?P<label>normal|glaucoma)/[^/]+\.png$",
        lambda m: (
            CONDITIONS.index(m["label"].lower()),
            TRAIN if m["split"] == "training" else TEST,
        ),
    )


def find_refuge(archive: Path) -> ImageLabels:
    """Find the images of REFUGE with labels by folder."""
    return _find_images(
        archive,
        r"Training400/(?P<other>Non-)?Glaucoma/[^/]+\.jpg$",
        lambda match: (int(not match["other"]), TRAIN),
    )


FINDERS: tuple[Callable[[Path], ImageLabels], ...] = (
    find_drishti,
    find_acrima,
    find_rim,
    find_refuge,
)


def _find_images(
    archive: Path, pattern: str, label_of: Callable[[re.Match[str]], tuple[int, int]]
) -> ImageLabels:
    samples = {
        path: label_of(match)
        for path, _ in iter_members(archive, _visible)
        if (match := re.search(pattern, path, re.IGNORECASE))
    }
    existing = {y for y, _ in samples.values()}
    validation.check_missing(
        archive, (f"the images of {c} eyes" for y, c in enumerate(CONDITIONS) if y not in existing)
    )
    return dict(sorted(samples.items()))


def _visible(path: str) -> bool:
    """Whether a member is a file of the data set and not macOS's metadata of one."""
    return not PurePosixPath(path).name.startswith("._")


def read_sheet(stream: BinaryIO) -> list[dict[str, str]]:
    """The rows of a workbook's first sheet that have cells: the texts by their column's letters.

    ECMA-376, Office Open XML: a workbook is a zip of XML files, and text cells refer to a table of
    strings that all sheets share.

    Raises:
        DataError: For a file that is no workbook; it names the file.
    """
    with wrap_read_errors(stream_name(stream), "is no readable Excel workbook"):
        with zipfile.ZipFile(io.BytesIO(stream.read())) as book:
            sheet = ElementTree.fromstring(book.read(SHEET))
            shared = book.read(STRINGS) if STRINGS in book.namelist() else b"<none/>"
        strings = [_text(item) for item in ElementTree.fromstring(shared)]
        return [
            {_letters(cell): _content(cell, strings) for cell in row.iter(f"{XML_NAMESPACE}c")}
            for row in sheet.iter(f"{XML_NAMESPACE}row")
        ]


def _letters(cell: ElementTree.Element) -> str:
    return cell.get("r", "").rstrip("0123456789")


def _content(cell: ElementTree.Element, strings: list[str]) -> str:
    if cell.get("t") == "inlineStr":
        return _text(cell)
    value = cell.findtext(f"{XML_NAMESPACE}v", "")
    return strings[int(value)] if cell.get("t") == "s" else value


def _text(element: ElementTree.Element) -> str:
    return "".join(text.text or "" for text in element.iter(f"{XML_NAMESPACE}t"))
