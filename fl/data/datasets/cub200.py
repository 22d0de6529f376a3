"""Caltech-UCSD Birds, 2011: photographs of 200 species, and ten captions of each.

C. Wah, S. Branson, P. Welinder, P. Perona and S. Belongie. The Caltech-UCSD Birds-200-2011
Dataset. Technical report CNS-TR-2011-001, California Institute of Technology, 2011; the captions:
S. Reed, Z. Akata, B. Schiele and H. Lee. Learning Deep Representations of Fine-grained Visual
Descriptions. CVPR 2016. arXiv:1605.05395; federated, over clients of either kind: K. Yan et al.
Balancing Similarity and Complementarity for Federated Learning. ICML 2024.

Licence: for non-commercial research and education; the photographs are their owners'.

Sources: ``CUB_200_2011.tgz``, and ``cvpr2016_cub.tar.gz``, which its authors keep on Google Drive,
so that you have to fetch it yourself. Of the latter only ``text_c10/SPECIES/PHOTOGRAPH.txt`` is
read, ten lines each.

Photographs, in the order of ``image_files.txt``, are resized to ``side`` pixels in height and
width, whatever their proportions; the few grey ones become grey in three colours. Captions are cut
into runs of letters and digits, in lower case. They become tokens: the ``vocabulary`` commonest
words of the training captions, 0 being the commonest; one token, ``vocabulary`` itself, stands for
every other word and fills up to ``words``, the 30 of Reed et al. No paper here prints its size of
photographs or its vocabulary. The published split (train, test) is ``train_test_split.txt``.

``complete`` holds the photographs to 11,788, of which 5,994 are for training and 5,794 for testing.

Beside the arrays that it maps, preparing files of the full size needs some 200 MB at most.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.dataset import Modality
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import image_files
from fl.data.readers.archives import iter_members
from fl.data.readers.texts import encode_words, vocabulary
from fl.data.readers.validation import check_missing, check_sizes

CAPTIONS = 10
PHOTOGRAPHS_BY_SPLIT = {"training": 5_994, "test": 5_794}
ARCHIVE_FOLDER = "CUB_200_2011/"
LIST_FILES = ("classes.txt", "images.txt", "image_class_labels.txt", "train_test_split.txt")
CAPTION_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Index:
    """The photographs: their names, species (from 0) and split, and the names of the species."""

    names: list[str]
    species: np.ndarray
    split: np.ndarray
    classes: list[str]


@dataclass(frozen=True)
class CUB200:
    """Photographs of birds in 200 species.

    Attributes:
        side: Height and width of photographs in pixels.
        vocabulary: Number of words with a token of their own.
        words: Number of words that are read of a caption.
        complete: Check the data against the published sizes; false reads a subset.
    """

    side: Count = 64
    vocabulary: Count = 5_000
    words: Count = 30
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "CUB_200_2011.tgz",
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "0c685df5597a8b24909f6a7c9db6d11e008733779a671760afef78feb49bf081",
        ),
        Source(
            "cvpr2016_cub.tar.gz",
            None,
            note="the captions are on Google Drive, linked as `birds` from"
            " https://github.com/reedscot/cvpr2016",
        ),
    )
    classes: ClassVar[int] = 200
    natural_clients: ClassVar[int | None] = None
    published_splits: ClassVar[tuple[str, ...]] = ("train", "test")

    @property
    def size(self) -> int | None:
        """Number of photographs."""
        return sum(PHOTOGRAPHS_BY_SPLIT.values()) if self.complete else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a photograph."""
        return (3, self.side, self.side)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities: photographs, and the captions of each photograph one after the other."""
        captions = Modality("text", "text", (CAPTIONS, self.words), self.vocabulary + 1)
        return Modality("image", "x", self.shape), captions

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[n, 3, side, side]``, y, split and text int32 ``[n, 10, words]``."""
        archive, captions = (raw / source.name for source in self.sources)
        index = read_index(archive)
        if self.complete:
            counts = np.bincount(index.split, minlength=2).tolist()
            sizes = dict(zip(PHOTOGRAPHS_BY_SPLIT, counts, strict=True))
            check_sizes(sizes, PHOTOGRAPHS_BY_SPLIT, str(archive), "Wah et al.", "photographs")
        words = read_captions(captions, index.names)
        writer.save("text", self._tokens(words, index.split == 0))
        x = writer.create("x", (len(index.names), *self.shape), np.uint8)
        self._fill(x, archive, index.names)
        writer.save("y", index.species)
        writer.save("split", index.split)
        writer.describe(
            index.classes, normalisation=_measure_normalisation(x, np.flatnonzero(index.split == 0))
        )

    def _tokens(self, captions: list[list[list[str]]], training: np.ndarray) -> np.ndarray:
        counts = Counter(
            word for i in np.flatnonzero(training) for words in captions[i] for word in words
        )
        number_by_word = vocabulary(counts, self.vocabulary)
        encoded = [
            [encode_words(words, number_by_word, self.words, self.vocabulary) for words in of_one]
            for of_one in captions
        ]
        return np.array(encoded, np.int32)

    def _fill(self, x: np.ndarray, archive: Path, names: list[str]) -> None:
        missing = {f"{ARCHIVE_FOLDER}images/{name}": i for i, name in enumerate(names)}
        for member, stream in iter_members(archive, missing.__contains__):
            x[missing.pop(member)] = image_files.decode_image(stream, (self.side, self.side))
        check_missing(archive, missing)


def read_index(path: Path) -> Index:
    """Read the lists of photographs, species and splits in the archive."""
    lists = {
        name.removeprefix(ARCHIVE_FOLDER): [
            line.split() for line in stream.read().decode("utf-8", "replace").splitlines()
        ]
        for name, stream in iter_members(
            path, lambda name: name.removeprefix(ARCHIVE_FOLDER) in LIST_FILES
        )
    }
    check_missing(path, (f"{ARCHIVE_FOLDER}{name}" for name in LIST_FILES if name not in lists))
    for name in LIST_FILES:
        if any(len(row) != 2 for row in lists[name]):
            raise DataError(f"{path}: {name} has rows that are not a number and a value")
    classes, names, species, training = (dict(lists[name]) for name in LIST_FILES)
    allowed = (classes, {"0": "test", "1": "training"})
    for name, values_by_photograph, values in zip(
        LIST_FILES[2:], (species, training), allowed, strict=True
    ):
        if values_by_photograph.keys() != names.keys():
            raise DataError(f"{path}: {name} and images.txt list different photographs")
        for value in sorted(set(values_by_photograph.values()) - values.keys())[:1]:
            raise DataError(f"{path}: {name} has {value!r}. Allowed: {', '.join(values)}")
    order = {number: index for index, number in enumerate(classes)}
    return Index(
        names=list(names.values()),
        species=np.array([order[species[i]] for i in names], np.int64),
        split=np.array([training[i] == "0" for i in names], np.int8),
        classes=[name.partition(".")[2].replace("_", " ") for name in classes.values()],
    )


def read_captions(path: Path, names: list[str]) -> list[list[list[str]]]:
    """The words of every caption: ``[photographs][10][words]``."""
    index_by_name = {Path(name).with_suffix("").as_posix(): i for i, name in enumerate(names)}
    by_image: list[list[list[str]]] = [[] for _ in names]
    for member, stream in iter_members(path):
        name = member.rpartition("text_c10/")[2]
        i = index_by_name.get(name.removesuffix(".txt"))
        if i is not None and name.endswith(".txt"):
            lines = stream.read().decode("utf-8", "replace").lower().splitlines()
            by_image[i] = [CAPTION_WORD.findall(line) for line in lines if line.strip()]
            if len(by_image[i]) != CAPTIONS:
                problem = f"{member} has {len(by_image[i])} captions. Allowed: {CAPTIONS}"
                raise DataError(f"{path}: {problem}")
    missing = (name for name, captions in zip(names, by_image, strict=True) if not captions)
    check_missing(path, (f"the captions of {name}" for name in missing))
    return by_image


def _measure_normalisation(x: np.ndarray, rows: np.ndarray) -> dict[str, Any]:
    """Mean and standard deviation of each channel over some rows, in one pass over them."""
    sums, squares = np.zeros(3), np.zeros(3)
    for i in rows:
        pixels = x[i].reshape(3, -1) / 255
        sums += pixels.mean(axis=1)
        squares += np.square(pixels).mean(axis=1)
    mean = sums / len(rows)
    sd = np.sqrt(squares / len(rows) - mean**2)
    return {"scale": 1 / 255, "mean": mean.tolist(), "sd": sd.tolist()}
