"""Images: decoding by Pillow, and lists of the user's own images with their labels.

Images of the user's own are in folders by class, named by a table, or inside Parquet files.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file
from fl.data import tables
from fl.data.archives import stream_name
from fl.data.own_files import list_files_below
from fl.data.prepared import SPLIT_NAMES
from fl.data.tables import SPLIT_NAME, TEXT

if TYPE_CHECKING:
    from PIL.Image import Image


UNREADABLE = ("cannot be read as an image", "get the image, or its archive, again")
"""Problem and advice for images that Pillow cannot read."""

GREY_MODES = ("1", "L", "LA")
MODES = (*GREY_MODES, "P", "RGB", "RGBA", "CMYK")
"""Modes of images that are accepted, by Pillow's names."""

EXIF, ORIENTATION, UPSIDE_DOWN = "exif", 0x0112, 4
"""Pillow's name of EXIF data, the number of their orientation, and its largest value for which
height and width are not exchanged."""

Box = tuple[int, int, int, int]
"""Left, upper, right, lower, in pixels."""


def decode_image(
    stream: BinaryIO | bytes,
    size: tuple[int, int] | None,
    mode: Literal["RGB", "L"] = "RGB",
    crop: Box | Literal["centre"] | None = None,
    *,
    upright: bool = False,
    converts: tuple[str, ...] = ("L",),
    resample: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear",
    name: str = "",
) -> np.ndarray:
    """Decode an image to an array.

    Args:
        stream: The image.
        size: (height, width) to which it is resized; None keeps its size.
        mode: Pillow's name of the mode of the result.
        crop: Region that is cut out first: a box, or the largest square in the centre.
        upright: Whether to turn it by the orientation in its EXIF data.
        converts: Other modes that are converted to ``mode``, by Pillow's names (1, L, P, RGB, RGBA,
            CMYK, I;16, ...).
        resample: Pillow's name of the filter for resizing.
        name: Name for errors if it is not a member of an archive.

    Returns:
        uint8 ``[3, height, width]``, or ``[1, height, width]`` for mode ``L``.

    Raises:
        DataError: If its mode is not accepted, or if it cannot be read.
    """
    from PIL import Image, ImageOps

    content = stream if isinstance(stream, bytes) else stream.read()
    name = name or ("a picture" if isinstance(stream, bytes) else stream_name(stream))
    with wrap_read_errors(name, *UNREADABLE), Image.open(io.BytesIO(content)) as image:
        turned = upright and EXIF in image.info
        image.load()
        picture = _convert_mode(
            ImageOps.exif_transpose(image) if turned else image, mode, converts, name
        )
    if crop is not None:
        picture = picture.crop(_centre_square(*picture.size) if crop == "centre" else crop)
    if size is not None and picture.size != size[::-1]:
        picture = picture.resize(size[::-1], Image.Resampling[resample.upper()])
    return _to_array(picture)


def image_array(picture: Image) -> np.ndarray:
    """Return an image in memory as uint8 [1, height, width] if it is grey, else [3, height, width].

    Raises:
        DataError: If its mode is none of `MODES`.
    """
    mode = "L" if picture.mode in GREY_MODES else "RGB"
    return _to_array(_convert_mode(picture, mode, MODES, "a picture"))


def _to_array(picture: Image) -> np.ndarray:
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def read_image_header(picture: Path | bytes, name: str) -> tuple[str, tuple[int, int]]:
    """Read the mode (Pillow's name) and the upright (height, width) from the header of an image.

    Args:
        picture: Its file or its bytes.
        name: Its name for errors.

    Raises:
        DataError: If it cannot be read.
    """
    from PIL import Image

    source = io.BytesIO(picture) if isinstance(picture, bytes) else picture
    with wrap_read_errors(name, *UNREADABLE), Image.open(source) as image:
        width, height = image.size
        on_its_side = EXIF in image.info and image.getexif().get(ORIENTATION, 1) > UPSIDE_DOWN
        return image.mode, (width, height) if on_its_side else (height, width)


def _convert_mode(image: Image, mode: str, converts: tuple[str, ...], name: str) -> Image:
    if image.mode == mode:
        return image.copy()
    if image.mode not in converts:
        allowed = ", ".join(dict.fromkeys((mode, *converts)))
        raise DataError(f"{name}: the image has mode {image.mode}", allowed)
    return image.convert(mode)


def _centre_square(width: int, height: int) -> Box:
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side


IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SPLIT_BY_NAME = {name: name for name in SPLIT_NAMES} | {"valid": "val", "validation": "val"}
"""Split by the name of its folders and files."""
SHARD = re.compile(r"([a-z]+)(?:-\d{5}-of-\d{5})?\.(?:parquet|pq)", re.IGNORECASE)
"""Names of the files of a split by Hugging Face, ``train-00000-of-00002.parquet``."""
PARQUET_BATCH = 100
"""Number of rows of Parquet that are in memory at once."""


@dataclass(frozen=True)
class ImageList:
    """Images with their labels and, if known, clients and published splits.

    Attributes:
        files: Image files, or Parquet files that contain images in ``column``.
        labels: Label of each image.
        order: The classes in order.
        clients: Natural client of each image, or empty.
        splits: Published split of each image, or empty.
        column: Column of the images in Parquet files, or "".
    """

    files: tuple[Path, ...]
    labels: tuple[str, ...]
    order: tuple[str, ...]
    clients: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    column: str = ""

    def pictures(self) -> Iterator[tuple[str, Path | bytes]]:
        """Yield each image in order: its name for errors, and its file or its bytes."""
        for file in self.files:
            if self.column:
                yield from _iter_embedded(file, self.column)
            else:
                yield str(file), file


def list_folders(top: Path) -> ImageList:
    """List the images in folders by class, or by split and class."""
    split_of = _split_folders(top, _folders(top))
    files: list[Path] = []
    labels: list[str] = []
    splits: list[str] = []
    for parent in split_of or [top]:
        for folder in _folders(parent):
            images = [file for file in list_files_below(folder) if is_image(file)]
            if not images:
                raise DataError(f"{folder}: contains no image", _suffix_text())
            files += images
            labels += [folder.name] * len(images)
            splits += [split_of[parent]] * len(images) if split_of else []
    for row in _duplicates(files):
        problem = f"{files[row]}: a link adds the image to {top} a second time"
        raise DataError(problem, advice="delete the link")
    return ImageList(tuple(files), tuple(labels), _classes(top, labels), splits=tuple(splits))


def _split_folders(top: Path, folders: list[Path]) -> dict[Path, str]:
    """Return the published split of each folder in the order of `SPLIT_NAMES`; empty for classes.

    A folder with the name of a split may be a class, such as trains among vehicles. Then it
    contains images directly and is beside folders of other classes.

    Raises:
        DataError: If some folders are splits and others are not, if one split has two folders, or
            if no folder is for training.
    """
    split_by_folder = {
        folder: SPLIT_BY_NAME[folder.name.lower()] for folder in folders if _is_split_folder(folder)
    }
    if not any(child.is_dir() for folder in split_by_folder for child in folder.iterdir()):
        return {}
    splits = [*split_by_folder.values()]
    if len(split_by_folder) < len(folders) or len({*splits}) < len(splits) or "train" not in splits:
        listed = ", ".join(folder.name for folder in folders[:20])
        raise DataError(
            f"{top}: has the folders {listed}",
            "folders of classes only, or of splits only: train, test, val (or valid, validation)",
        )
    return dict(sorted(split_by_folder.items(), key=lambda item: SPLIT_NAMES.index(item[1])))


def _is_split_folder(folder: Path) -> bool:
    return folder.name.lower() in SPLIT_BY_NAME


def _folders(top: Path) -> list[Path]:
    """Return the folders in a folder; raise a `DataError` for an image beside them."""
    paths = sorted(path for path in top.iterdir() if not path.name.startswith("."))
    for path in paths:
        if is_image(path):
            raise DataError(
                f"{path}: the image is in no folder of a class", f"{top}/CLASS/{path.name}"
            )
    folders = [path for path in paths if path.is_dir()]
    if not folders:
        raise DataError(f"{top}: has no folders", "a folder for each class, with images in it")
    return folders


def is_image(path: Path) -> bool:
    """Whether the name of a file is that of an image."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()


def _duplicates(files: Sequence[Path]) -> Iterator[int]:
    """Yield the indices of files that occur a second time, by any path."""
    resolved = {folder: folder.resolve() for folder in {file.parent for file in files}}
    previous: set[Path] = set()
    for index, file in enumerate(files):
        path = resolved[file.parent] / file.name
        if path in previous:
            yield index
        previous.add(path)


def _suffix_text() -> str:
    return "images, files that end in " + ", ".join(sorted(IMAGE_SUFFIXES))


def list_table(path: Path, keys: Mapping[str, str]) -> ImageList:
    """List the images that a table names, relative to its folder.

    Args:
        path: The table.
        keys: Names of the columns by key: ``image``, ``label``, and perhaps ``client`` and
            ``split``.
    """
    texts = _read_texts(path, keys)
    files = [path.parent / text for text in texts["image"]]
    for row, file in enumerate(files, 1):
        if not is_file(file):
            raise DataError(f"{path}: column {keys['image']!r}, row {row}: {file} does not exist")
    for row in _duplicates(files):
        problem = f"{files[row]} occurs twice"
        raise DataError(f"{path}: column {keys['image']!r}, row {row + 1}: {problem}")
    return _image_list(path, tuple(files), texts)


def list_parquet(path: Path, files: Sequence[Path], keys: Mapping[str, str]) -> ImageList:
    """List the images inside Parquet files of Hugging Face's ``datasets``.

    An image is a struct with its ``bytes``, or bytes. If the files say that labels are a
    ``ClassLabel``, its names are the classes, in its order.

    Args:
        path: A file, or the folder of the files.
        files: The files.
        keys: Names of the columns by key, see `list_table`.
    """
    texts: dict[str, list[str]] = {key: [] for key in keys if key != "image"}
    splits = [] if "split" in keys else _splits_by_file_name(path, files)
    published: list[str] = []
    for index, file in enumerate(files):
        if not holds_images(file, keys["image"]):
            problem = f"{file}: column {keys['image']!r} contains no images"
            raise DataError(problem, "bytes, or a struct with `bytes`")
        rows = _read_texts(file, {key: column for key, column in keys.items() if key != "image"})
        names = class_names(file, keys["label"])
        rows["label"] = [_class_of_number(file, text, names) for text in rows["label"]]
        for key, column in rows.items():
            texts[key] += column
        published += [splits[index]] * len(rows["label"]) if splits else []
    order = class_names(files[0], keys["label"])
    listed = _image_list(path, tuple(files), texts | ({"split": published} if published else {}))
    return replace(listed, column=keys["image"], order=order or listed.order)


def holds_images(path: Path, column: str) -> bool:
    """Whether a file is Parquet with images, and not their paths, in a column."""
    import pyarrow.parquet as pq
    from pyarrow import types

    if path.suffix not in tables.PARQUET_SUFFIXES or not is_file(path):
        return False
    tables.require_column(path, tables.column_names(path), "image", column)
    type_ = pq.read_schema(path).field(column).type
    if types.is_struct(type_):
        return type_.get_field_index("bytes") >= 0
    return types.is_binary(type_) or types.is_large_binary(type_)


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Return the names of a column's classes from a Hugging Face file, or an empty tuple."""
    import pyarrow.parquet as pq

    text = (pq.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    with wrap_read_errors(path, "has metadata `huggingface` that cannot be read"):
        feature = json.loads(text).get("info", {}).get("features", {}).get(column, {})
        return tuple(map(str, feature.get("names") or ()))


def _class_of_number(path: Path, text: str, names: Sequence[str]) -> str:
    """Return the class of a label that is an index of ``names``; without names, the label."""
    if not names:
        return text
    if not text.isdecimal() or int(text) >= len(names):
        problem = f"{path}: has the label {text}, but {len(names)} names of classes"
        raise DataError(problem, f"0 to {len(names) - 1}")
    return names[int(text)]


def _splits_by_file_name(path: Path, files: Sequence[Path]) -> list[str]:
    """Return the split of each file by its name or its folder's; empty if no name is a split."""
    by_name = [
        SPLIT_BY_NAME.get(match[1].lower() if (match := SHARD.fullmatch(file.name)) else "")
        if file.parent == path or path == file
        else SPLIT_BY_NAME.get(file.parent.name.lower())
        for file in files
    ]
    if len(files) == 1 or all(split is None for split in by_name):
        return []
    for file, split in zip(files, by_name, strict=True):
        if split is None:
            allowed = "train, test, val (or valid, validation)"
            problem = f"{file}: the file name does not say the split, but other names do"
            raise DataError(problem, allowed)
    return [split for split in by_name if split is not None]


def _iter_embedded(path: Path, column: str) -> Iterator[tuple[str, bytes]]:
    import pyarrow.parquet as pq

    row = 0
    with wrap_read_errors(path, "cannot be read as a table"), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(PARQUET_BATCH, columns=[column]):
            for value in batch.column(0).to_pylist():
                row += 1
                content = value.get("bytes") if isinstance(value, dict) else value
                name = f"{path}: row {row}"
                if not content:
                    raise DataError(f"{name}: the cell contains no image", "bytes of an image")
                yield name, content


def _read_texts(path: Path, keys: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the columns of a table by the keys that name them."""
    existing = tables.column_names(path, alternatives=", or a folder of images")
    for key, column in keys.items():
        tables.require_column(path, existing, key, column)
    column_types = {column: SPLIT_NAME if key == "split" else TEXT for key, column in keys.items()}
    texts: dict[str, list[str]] = {key: [] for key in keys}
    for piece in tables.read_pieces(path, column_types):
        for key, column in keys.items():
            texts[key] += piece[column].tolist()
    return texts


def _image_list(path: Path, files: tuple[Path, ...], texts: Mapping[str, list[str]]) -> ImageList:
    return ImageList(
        files=files,
        labels=tuple(texts["label"]),
        order=_classes(path, texts["label"]),
        clients=tuple(texts.get("client", ())),
        splits=tuple(texts.get("split", ())),
    )


def _classes(path: Path, labels: Sequence[str]) -> tuple[str, ...]:
    classes = tables.sort_texts(labels)
    tables.check_classes(path, "the label", classes, len(labels))
    return tuple(classes)
