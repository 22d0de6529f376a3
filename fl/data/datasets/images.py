"""Images of your own: a folder of classes, or a table that says what each image shows.

No publication: it is yours. What is in the files is part of what a run is.

A folder has one folder for each class, ``photos/cat/1.png``, with images in it or in folders below.
If its folders are called train, test and val (or valid, validation; in any case of letters), they
are the published split, and the classes are in them: ``photos/train/cat/1.png``. A table, CSV or
Parquet, has a row for each image: its path, from the folder where the table lies, its label, and if
there are such columns its client and its split.

Images are PNG, JPEG, BMP, GIF, TIFF or WebP files; hidden files and others are passed over. Links
to folders are followed, and no image may be there twice. Images are turned as their EXIF data say.
They stay grey where all of them are, and become colour ones otherwise. They must be of one size, or
are resized to ``pixels``, bilinearly and without keeping their aspect. Inputs are scaled to 0..1
and normalised by mean and deviation of each colour over the images that a partition trains on: its
split train, without clients that are held out.
Images are in the order of their paths, or of the table; classes in order too: whole numbers by
value, anything else by spelling.

Memory: one image at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError, reading
from fl.base.fields import Count
from fl.base.files import is_file, is_folder
from fl.base.places import path_of
from fl.data import columns
from fl.data.contents import below, stamp
from fl.data.download import Source
from fl.data.images import BROKEN, decode, look
from fl.data.normalisation import OPEN
from fl.data.prepared import SPLIT, Writer

ENDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SPLITS = {
    name: SPLIT.index("val" if name.startswith("val") else name)
    for name in ("train", "test", "val", "valid", "validation")
}
"""What folders of splits are called, and the number of each split."""
GREY = ("1", "L", "LA")
KINDS = (*GREY, "P", "RGB", "RGBA", "CMYK")
"""Pillow's names of the kinds of images that are taken."""


@dataclass(frozen=True)
class Listed:
    """Images with the label of each, and its client and split (a number in `SPLIT`) if any."""

    files: tuple[Path, ...]
    labels: tuple[str, ...]
    clients: tuple[str, ...] = ()
    splits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Images:
    """Pictures in classes.

    path: the folder, or the table; pixels: of each side that images are brought to; image, label,
    client, split: the columns of the table, of which the last two may be left out.
    """

    path: str
    pixels: Count | None = None
    image: str = "path"
    label: str = "label"
    client: str | None = None
    split: str | None = None

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def listed(self) -> Listed:
        """The images; `DataError` if there are none."""
        with reading(self.path, "cannot be read", "mend its name or its permissions"):
            path = path_of(self.path)
            return (_folder if is_folder(path) else _table)(self, stamp([path]))

    @property
    def files(self) -> list[Path]:
        """All that is read: the folder, or the table and its images."""
        path = path_of(self.path)
        return [path] if is_folder(path) else [path, *self.listed.files]

    @property
    def shape(self) -> tuple[int, ...]:
        """Colours (1 or 3), height, width."""
        return _shape(self, stamp(self.listed.files))

    @property
    def classes(self) -> int:
        """How many different labels there are."""
        return len(columns.in_order(self.listed.labels))

    @property
    def natural(self) -> int | None:
        """How many different clients there are, if there is a column of them."""
        return len(set(self.listed.clients)) or None

    @property
    def size(self) -> int:
        """How many images there are."""
        return len(self.listed.files)

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[images, colours, height, width]``; y int64, client int32, split int8."""
        listed, (colours, *sides) = self.listed, self.shape
        x = writer.create("x", (self.size, colours, *sides), np.uint8)
        for row, file in enumerate(listed.files):
            x[row] = _decoded(file, (sides[0], sides[1]), "L" if colours == 1 else "RGB")
        classes = columns.in_order(listed.labels)
        writer.save("y", columns.numbered(listed.labels, classes))
        if listed.clients:
            order = columns.in_order(listed.clients)
            writer.save("client", columns.numbered(listed.clients, order).astype(np.int32))
        if listed.splits:
            writer.save("split", np.array(listed.splits, np.int8))
        writer.describe(classes, normalisation={**OPEN, "scale": 1 / 255})


@lru_cache(maxsize=32)
def _folder(images: Images, stamped: str) -> Listed:
    top = path_of(images.path)
    for key in ("client", "split"):
        if getattr(images, key) is not None:
            problem = f"{top}: is a folder, in which there is no column {getattr(images, key)!r}"
            raise DataError(f"{problem}; allowed: {key} beside the path of a table")
    split_of = _split_folders(top, _folders(top))
    files: list[Path] = []
    labels: list[str] = []
    splits: list[int] = []
    for parent in split_of or [top]:
        for folder in _folders(parent):
            inside = [file for file in below(folder) if _is_image(file)]
            if not inside:
                raise DataError(f"{folder}: holds no image; allowed: {_allowed()}")
            files += inside
            labels += [folder.name] * len(inside)
            splits += [split_of[parent]] * len(inside) if split_of else []
    _check(top, labels)
    for row in _again(files):
        raise DataError(f"{files[row]}: is in {top} twice, by a link; allowed: each image once")
    return Listed(tuple(files), tuple(labels), splits=tuple(splits))


def _split_folders(top: Path, folders: list[Path]) -> dict[Path, int]:
    """The published split of each folder, by its number in `SPLIT`, in that order; empty if the
    folders are classes.

    A folder that is called like a split may be a class, as trains are of vehicles: then its images
    lie in it, and other classes beside it.

    Raises:
        DataError: If some of the folders are splits and others are not, if one split has two
            folders, or if there is none for training.
    """
    named = {folder: SPLITS[folder.name.lower()] for folder in folders if _split_name(folder)}
    if not any(child.is_dir() for folder in named for child in folder.iterdir()):
        return {}
    splits = sorted(named.values())
    if (
        len(named) < len(folders)
        or len({*splits}) < len(splits)
        or SPLIT.index("train") != splits[0]
    ):
        listed = ", ".join(folder.name for folder in folders[:20])
        raise DataError(
            f"{top}: has the folders {listed}; allowed: folders of classes alone, or of splits"
            " alone: train, and beside it test, val (or valid, validation)"
        )
    return dict(sorted(named.items(), key=lambda item: item[1]))


def _split_name(folder: Path) -> bool:
    return folder.name.lower() in SPLITS


def _folders(top: Path) -> list[Path]:
    """The folders in a folder, in which no image may lie beside them."""
    inside = sorted(path for path in top.iterdir() if not path.name.startswith("."))
    for path in inside:
        if _is_image(path):
            raise DataError(
                f"{path}: lies in no folder of a class; allowed: {top}/CLASS/{path.name}"
            )
    folders = [path for path in inside if path.is_dir()]
    if not folders:
        raise DataError(f"{top}: has no folders; allowed: one for each class, with images in it")
    return folders


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDS and not path.is_dir()


def _again(files: Sequence[Path]) -> Iterator[int]:
    """The places of files that were there before, under whatever path."""
    real = {folder: folder.resolve() for folder in {file.parent for file in files}}
    seen: set[Path] = set()
    for place, file in enumerate(files):
        path = real[file.parent] / file.name
        if path in seen:
            yield place
        seen.add(path)


def _allowed() -> str:
    return "files that end in " + ", ".join(sorted(ENDS))


@lru_cache(maxsize=32)
def _table(images: Images, stamped: str) -> Listed:
    path = path_of(images.path)
    there = columns.names(path)
    keys = [
        key for key in ("image", "label", "client", "split") if getattr(images, key) is not None
    ]
    for key in keys:
        columns.require(path, there, key, getattr(images, key))
    named = [getattr(images, key) for key in keys]
    texts: dict[str, list[str]] = {key: [] for key in keys}
    splits: list[int] = []
    for first, piece in columns.pieces(path, list(dict.fromkeys(named)), named):
        for key, column in zip(keys, named, strict=True):
            texts[key] += columns.labels(path, first, piece[column])
        if images.split is not None:
            splits += columns.splits(path, first, piece[images.split]).tolist()
    files = [path.parent / text for text in texts["image"]]
    for row, file in enumerate(files):
        if not is_file(file):
            raise DataError(f"{path}: column {images.image!r}, row {row + 1}: {file} is not there")
    for row in _again(files):
        problem = f"{files[row]} stands twice"
        raise DataError(f"{path}: column {images.image!r}, row {row + 1}: {problem}")
    _check(path, texts["label"])
    return Listed(
        files=tuple(files),
        labels=tuple(texts["label"]),
        clients=tuple(texts.get("client", ())),
        splits=tuple(splits),
    )


def _check(path: Path, labels: list[str]) -> None:
    if not labels:
        raise DataError(f"{path}: has no rows; allowed: at least one below the header")
    columns.check_classes(path, "the label", columns.in_order(labels), len(labels))


@lru_cache(maxsize=32)
def _shape(images: Images, stamped: str) -> tuple[int, ...]:
    files = images.listed.files
    modes, sizes = zip(*map(look, files), strict=True)
    for file, mode, size in zip(files, modes, sizes, strict=True):
        if mode not in KINDS:
            raise DataError(f"{file}: is an image of mode {mode}; allowed: {', '.join(KINDS)}")
        if images.pixels is None and size != sizes[0]:
            (height, width), (tall, wide) = sizes[0], size
            problem = f"is of {tall} x {wide} pixels, but {files[0]} of {height} x {width}"
            allowed = "images of one size, or the key `pixels`, to which all are resized"
            raise DataError(f"{file}: {problem}; allowed: {allowed}")
    height, width = (images.pixels, images.pixels) if images.pixels else sizes[0]
    return (1 if set(modes) <= set(GREY) else 3, height, width)


def _decoded(file: Path, size: tuple[int, int], mode: Literal["RGB", "L"]) -> np.ndarray:
    converts = tuple(kind for kind in KINDS if kind != mode)
    with reading(file, *BROKEN):
        content = file.read_bytes()
    return decode(content, size, mode, upright=True, converts=converts, name=str(file))
