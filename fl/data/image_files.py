"""Pictures, decoded to arrays of one shape. Pillow does the work, at preparation only.

Where pictures of the user's own are, and what each of them shows: in folders, by a table, or in
Parquet files that hold them.
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


UNREADABLE = ("cannot be read as a picture", "get it again, or its archive")
"""What is wrong with what Pillow cannot read, and what to do."""

GREY_MODES = ("1", "L", "LA")
MODES = (*GREY_MODES, "P", "RGB", "RGBA", "CMYK")
"""Pillow's names of the kinds of images that are taken."""

EXIF, ORIENTATION, UPSIDE_DOWN = "exif", 0x0112, 4
"""What Pillow calls EXIF data, the number of the orientation there, and the last of its values by
which height and width stay what they are."""

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
    """A picture as an array.

    Args:
        size: (height, width) that it is brought to; None keeps its own.
        crop: What is cut out first: a box, or the largest square in the middle.
        upright: Whether it is turned as its camera says (EXIF's orientation).
        converts: The modes that are converted where the picture has one of them in place of
            ``mode``, by Pillow's names (1, L, P, RGB, RGBA, CMYK, I;16, ...).
        name: What errors call the picture, where it is not a member of an archive.

    Returns:
        uint8 ``[3, height, width]``, or ``[1, height, width]`` for mode ``L``.

    Raises:
        DataError: If its mode is another one, or if it cannot be read.
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
    """A picture of the user's own in memory, uint8: ``[1, height, width]`` where it is grey, else
    ``[3, height, width]``; `DataError` for one whose mode is none of `MODES`.
    """
    mode = "L" if picture.mode in GREY_MODES else "RGB"
    return _to_array(_convert_mode(picture, mode, MODES, "a picture"))


def _to_array(picture: Image) -> np.ndarray:
    array = np.asarray(picture)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def read_image_header(picture: Path | bytes, name: str) -> tuple[str, tuple[int, int]]:
    """The mode of a picture by Pillow's name, and (height, width) when it is upright; read from its
    first bytes alone.

    Args:
        picture: Its file, or what is in it.
        name: What errors call it.

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
        raise DataError(f"{name}: is a picture of mode {image.mode}. Allowed: {allowed}")
    return image.convert(mode)


def _centre_square(width: int, height: int) -> Box:
    side = min(width, height)
    left, upper = (width - side) // 2, (height - side) // 2
    return left, upper, left + side, upper + side


IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SPLIT_BY_NAME = {name: name for name in SPLIT_NAMES} | {"valid": "val", "validation": "val"}
"""The split by what its folders and files are called."""
SHARD = re.compile(r"([a-z]+)(?:-\d{5}-of-\d{5})?\.(?:parquet|pq)", re.IGNORECASE)
"""What Hugging Face calls the files of a split, ``train-00000-of-00002.parquet``."""
PARQUET_BATCH = 100
"""Rows of Parquet that are held at once."""


@dataclass(frozen=True)
class ImageList:
    """Pictures with the label of each, and its client and published split if any.

    Attributes:
        files: What is read: pictures, or Parquet files that hold them in ``column``.
        order: The classes, in order.
    """

    files: tuple[Path, ...]
    labels: tuple[str, ...]
    order: tuple[str, ...]
    clients: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    column: str = ""

    def pictures(self) -> Iterator[tuple[str, Path | bytes]]:
        """Each in order, as a file or as its bytes, under its name in errors."""
        for file in self.files:
            if self.column:
                yield from _iter_embedded(file, self.column)
            else:
                yield str(file), file


def list_folders(top: Path) -> ImageList:
    """Pictures in a folder for each class, or for each split and class."""
    split_of = _split_folders(top, _folders(top))
    files: list[Path] = []
    labels: list[str] = []
    splits: list[str] = []
    for parent in split_of or [top]:
        for folder in _folders(parent):
            inside = [file for file in list_files_below(folder) if is_image(file)]
            if not inside:
                raise DataError(f"{folder}: holds no image. Allowed: {_suffix_text()}")
            files += inside
            labels += [folder.name] * len(inside)
            splits += [split_of[parent]] * len(inside) if split_of else []
    for row in _duplicates(files):
        raise DataError(f"{files[row]}: is in {top} twice, by a link. Allowed: each image once")
    return ImageList(tuple(files), tuple(labels), _classes(top, labels), splits=tuple(splits))


def _split_folders(top: Path, folders: list[Path]) -> dict[Path, str]:
    """The published split of each folder, in the order of `SPLIT_NAMES`; empty if the folders are
    classes.

    A folder that is called like a split may be a class, as trains are of vehicles: then its images
    lie in it, and other classes beside it.

    Raises:
        DataError: If some of the folders are splits and others are not, if one split has two
            folders, or if there is none for training.
    """
    named = {
        folder: SPLIT_BY_NAME[folder.name.lower()] for folder in folders if _is_split_folder(folder)
    }
    if not any(child.is_dir() for folder in named for child in folder.iterdir()):
        return {}
    splits = [*named.values()]
    if len(named) < len(folders) or len({*splits}) < len(splits) or "train" not in splits:
        listed = ", ".join(folder.name for folder in folders[:20])
        raise DataError(
            f"{top}: has the folders {listed}. Allowed: folders of classes alone, or of splits"
            " alone: train, and beside it test, val (or valid, validation)"
        )
    return dict(sorted(named.items(), key=lambda item: SPLIT_NAMES.index(item[1])))


def _is_split_folder(folder: Path) -> bool:
    return folder.name.lower() in SPLIT_BY_NAME


def _folders(top: Path) -> list[Path]:
    """The folders in a folder, in which no image may lie beside them."""
    inside = sorted(path for path in top.iterdir() if not path.name.startswith("."))
    for path in inside:
        if is_image(path):
            raise DataError(
                f"{path}: lies in no folder of a class. Allowed: {top}/CLASS/{path.name}"
            )
    folders = [path for path in inside if path.is_dir()]
    if not folders:
        raise DataError(f"{top}: has no folders. Allowed: one for each class, with images in it")
    return folders


def is_image(path: Path) -> bool:
    """Whether a file is one by its name."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.is_dir()


def _duplicates(files: Sequence[Path]) -> Iterator[int]:
    """The places of files that were there before, under whatever path."""
    real = {folder: folder.resolve() for folder in {file.parent for file in files}}
    seen: set[Path] = set()
    for place, file in enumerate(files):
        path = real[file.parent] / file.name
        if path in seen:
            yield place
        seen.add(path)


def _suffix_text() -> str:
    return "files that end in " + ", ".join(sorted(IMAGE_SUFFIXES))


def list_table(path: Path, keys: Mapping[str, str]) -> ImageList:
    """Pictures that a table names, from the folder where it lies.

    Args:
        keys: The columns ``image`` and ``label``, and ``client`` and ``split`` where there are.
    """
    texts = _read_texts(path, keys)
    files = [path.parent / text for text in texts["image"]]
    for row, file in enumerate(files, 1):
        if not is_file(file):
            raise DataError(f"{path}: column {keys['image']!r}, row {row}: {file} is not there")
    for row in _duplicates(files):
        problem = f"{files[row]} stands twice"
        raise DataError(f"{path}: column {keys['image']!r}, row {row + 1}: {problem}")
    return _image_list(path, tuple(files), texts)


def list_parquet(path: Path, files: Sequence[Path], keys: Mapping[str, str]) -> ImageList:
    """Pictures that Parquet files hold, as ``datasets`` of Hugging Face writes them.

    A picture is in a struct with its ``bytes``, or is bytes itself. Where the files say that labels
    are a ``ClassLabel``, its names are the classes, in its order.

    Args:
        path: A file, or the folder of the files.
        keys: As of `list_table`.
    """
    texts: dict[str, list[str]] = {key: [] for key in keys if key != "image"}
    splits = [] if "split" in keys else _splits_by_file_name(path, files)
    published: list[str] = []
    for place, file in enumerate(files):
        if not holds_images(file, keys["image"]):
            problem = f"column {keys['image']!r} holds no pictures"
            raise DataError(f"{file}: {problem}. Allowed: bytes, or a struct that has `bytes`")
        rows = _read_texts(file, {key: column for key, column in keys.items() if key != "image"})
        named = class_names(file, keys["label"])
        rows["label"] = [_class_of_number(file, text, named) for text in rows["label"]]
        for key, column in rows.items():
            texts[key] += column
        published += [splits[place]] * len(rows["label"]) if splits else []
    order = class_names(files[0], keys["label"])
    listed = _image_list(path, tuple(files), texts | ({"split": published} if published else {}))
    return replace(listed, column=keys["image"], order=order or listed.order)


def holds_images(path: Path, column: str) -> bool:
    """Whether a file is Parquet whose column is pictures, and not their paths."""
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
    """The names of a column's classes, where a file of Hugging Face's says them."""
    import pyarrow.parquet as pq

    text = (pq.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    with wrap_read_errors(path, "says nothing readable under `huggingface`"):
        feature = json.loads(text).get("info", {}).get("features", {}).get(column, {})
        return tuple(map(str, feature.get("names") or ()))


def _class_of_number(path: Path, text: str, names: Sequence[str]) -> str:
    """The class of a label that is a number among names, or the label itself."""
    if not names:
        return text
    if not text.isdecimal() or int(text) >= len(names):
        problem = f"{path}: has the label {text}, and {len(names)} names of classes"
        raise DataError(f"{problem}. Allowed: 0 to {len(names) - 1}")
    return names[int(text)]


def _splits_by_file_name(path: Path, files: Sequence[Path]) -> list[str]:
    """The split of each file by its name, or by its folder's; none where no name is a split's."""
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
            named = "train, test, val (or valid, validation)"
            raise DataError(f"{file}: its name is no split's, unlike others. Allowed: {named}")
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
                    raise DataError(f"{name}: holds no picture. Allowed: its bytes in the file")
                yield name, content


def _read_texts(path: Path, keys: Mapping[str, str]) -> dict[str, list[str]]:
    """The columns of a table by the keys that name them."""
    there = tables.column_names(path, other=", or a folder of images")
    for key, column in keys.items():
        tables.require_column(path, there, key, column)
    kinds = {column: SPLIT_NAME if key == "split" else TEXT for key, column in keys.items()}
    texts: dict[str, list[str]] = {key: [] for key in keys}
    for piece in tables.read_pieces(path, kinds):
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
