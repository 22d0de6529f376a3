"""Images of your own: in a folder for each class, named by a table, or in Parquet files.

No publication: it is yours. What is in the files is part of what a run is.

A folder has one folder for each class, ``photos/cat/1.png``, with images in it or in folders below.
If its folders are called train, test and val (or valid, validation; in any case of letters), they
are the published split, and the classes are in them: ``photos/train/cat/1.png``. Other folders with
folders of the same names (hospitals, folds) are refused; a table can list these images.

A table, CSV or Parquet, has a row for each image: its path, from the folder where the table lies,
its label, and if there are such columns its client and its split. With ``target`` in place of
``label`` the task is regression of that column's numbers.

In place of paths, Parquet may hold the images, as ``datasets`` of Hugging Face writes them: their
bytes, alone or in a struct beside a path. The path may then be a folder of such files: those that
are called train, test or val, or are in folders of these names
(``data/train-00000-of-00002.parquet``, ``train/0000.parquet``), are the published split. Files are
refused if their names differ in other words, or if one of a numbered series is missing or surplus.
Where the files name the classes of labels that are numbers, the classes are in that order.

Images are PNG, JPEG, BMP, GIF, TIFF or WebP files of one page, with the usual endings; other images
are refused. Hidden files are not read, and neither are files of other kinds, which the log counts.
Links to folders are followed, and no image may be there twice. Images are turned as their EXIF data
say. Transparent pixels and numbers of more than 8 bits are refused, as something of them would be
lost; palettes and CMYK become RGB (without colour profiles), and an opaque alpha channel is left
out. Images stay grey where all of them are, and become colour ones otherwise. They must be of one
size, or are resized to ``pixels``, bilinearly and without keeping their aspect. Inputs are scaled
to 0..1 and normalised by mean and deviation of each colour over the images that a partition trains
on: its split train, without clients that are held out. Targets are float64 and standardised by mean
and deviation over the same images.

Images are in the order of their paths, or of the table. Classes are in order too, if nothing else
says it: whole numbers by value, anything else by spelling.

Memory: one image at a time; of Parquet, 100.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.fields import Count
from fl.base.files import is_folder, list_files_below
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.data.download import Source
from fl.data.groups import groups_in_paths
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers import image_lists, tables
from fl.data.readers.image_files import (
    GREY_MODES,
    UNREADABLE,
    decode_own_image,
    read_image_header,
)
from fl.data.readers.image_lists import ImageList
from fl.data.readers.raw_inputs import ImageReader


@dataclass(frozen=True)
class Images:
    """Images, each with a class or a target.

    Attributes:
        path: Path of the folder or the table.
        pixels: Side to which images are resized.
        image: Column of a table with images, or with their paths.
        label: Column of classes.
        client: Column of clients.
        split: Column of a published split: train, val or test.
        group: Column of groups of images that belong together, such as patients. For a folder:
            regular expression for their part of an image's path, such as ``"P[0-9]+"``. A group is
            kept whole.
        target: Column of numbers to predict, in place of `label`.
    """

    path: str
    pixels: Count | None = None
    image: str = "path"
    label: str = "label"
    client: str | None = None
    split: str | None = None
    group: str | None = None
    target: str | None = None

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def listed(self) -> ImageList:
        """The images; `DataError` if there are none."""
        with wrap_read_errors(self.path, "cannot be read", "correct its name or its permissions"):
            return _listed(self, change_stamp([path_of(self.path)]))

    @property
    def files(self) -> list[Path]:
        """All files that are read: the folder, or the table and its images."""
        path = path_of(self.path)
        if is_folder(path) or self.listed.column:
            return [path]
        return [path, *self.listed.files]

    @property
    def shape(self) -> tuple[int, ...]:
        """Colours (1 or 3), height, width."""
        return _shape(self, change_stamp(self.listed.files))

    @property
    def classes(self) -> int:
        """Number of different labels; 1 for a target."""
        return len(self.listed.order)

    @property
    def task(self) -> str:
        """The task: regression of a target, or classification."""
        return "classification" if self.target is None else "regression"

    @property
    def natural_clients(self) -> int | None:
        """Number of different clients, or None without a column of clients."""
        return len(set(self.listed.clients)) or None

    @property
    def client_names(self) -> list[str]:
        """Names of the clients by number; empty without clients."""
        return tables.sort_texts(self.listed.clients)

    @property
    def size(self) -> int:
        """Number of images."""
        return len(self.listed.labels or self.listed.targets)

    @property
    def input_reader(self) -> ImageReader:
        """The reader of raw inputs, see `fl.data.readers.raw_inputs`."""
        return ImageReader(is_resized=self.pixels is not None)

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x uint8 ``[images, colours, height, width]``; y int64; client, group, split.

        A target is float64, beside a y of zeros.
        """
        listed, (colours, *sides) = self.listed, self.shape
        x = writer.create("x", (self.size, colours, *sides), np.uint8)
        for row, (name, picture) in enumerate(listed.pictures()):
            x[row] = _decoded(picture, name, (sides[0], sides[1]), "L" if colours == 1 else "RGB")
        if listed.targets:
            writer.save("target", np.array(listed.targets, np.float64))
            writer.save("y", np.zeros(self.size, np.int64))
        else:
            writer.save("y", tables.number_texts(listed.labels, listed.order))
        groups = tables.sort_texts(listed.groups)
        for array, names in (("client", listed.clients), ("group", listed.groups)):
            if names:
                numbers = tables.number_texts(names, tables.sort_texts(names))
                writer.save(array, numbers.astype(np.int32))
        if listed.splits:
            writer.save("split", listed.splits)
        normalisation = {**TRAINING_NORMALISATION, "scale": 1 / 255}
        writer.describe(
            listed.order,
            normalisation=normalisation,
            groups=groups,
            inputs={"target": TRAINING_NORMALISATION} if listed.targets else {},
            notes=listed.notes,
        )


@lru_cache(maxsize=32)
def _listed(images: Images, stamped: str) -> ImageList:
    path = path_of(images.path)
    if images.target is not None and images.label != Images.label:
        advice = "name the column of classes under `label`, or that of numbers under `target`"
        raise DataError(f"{path}: label and target are set", advice=advice)
    named = ("image", "label" if images.target is None else "target", "client", "split", "group")
    keys = {key: getattr(images, key) for key in named if getattr(images, key) is not None}
    if not is_folder(path):
        embedded = image_lists.holds_images(path, images.image)
        return (
            image_lists.list_parquet(path, [path], keys)
            if embedded
            else image_lists.list_table(path, keys)
        )
    inside = list(list_files_below(path))
    files = [file for file in inside if tables.is_parquet(file)]
    if files and not any(map(image_lists.is_image, inside)):
        notes = image_lists.notes_of_unread(path, (file for file in inside if file not in files))
        return replace(image_lists.list_parquet(path, files, keys), notes=tuple(notes))
    for key in ("client", "split", "image", "label", "target"):
        if getattr(images, key) != getattr(Images, key):
            problem = f"{path}: is a folder, which has no column {keys[key]!r}"
            raise DataError(problem, f"{key} with the path of a table")
    listed = image_lists.list_folders(path)
    if images.group is None:
        return listed
    return replace(listed, groups=groups_in_paths(path, listed.files, images.group))


@lru_cache(maxsize=32)
def _shape(images: Images, stamped: str) -> tuple[int, ...]:
    grey, first, first_size = True, "", (0, 0)
    for name, picture in images.listed.pictures():
        mode, size = read_image_header(picture, name)
        grey &= mode in GREY_MODES
        first, first_size = (first, first_size) if first else (name, size)
        if images.pixels is None and size != first_size:
            (height, width), (tall, wide) = first_size, size
            problem = f"{name}: has {tall} x {wide} pixels, but {first} has {height} x {width}"
            advice = "write the key `pixels`, to which all images are resized"
            raise DataError(problem, "images of one size", advice)
    height, width = (images.pixels, images.pixels) if images.pixels else first_size
    return (1 if grey else 3, height, width)


def _decoded(
    picture: Path | bytes, name: str, size: tuple[int, int], mode: Literal["RGB", "L"]
) -> np.ndarray:
    with wrap_read_errors(name, *UNREADABLE):
        content = picture if isinstance(picture, bytes) else picture.read_bytes()
    return decode_own_image(content, size, mode, name)
