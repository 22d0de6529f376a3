"""Lists of the user's own images with their labels.

Images are in folders by class, named by a table, or inside Parquet files.
"""

from __future__ import annotations

import json
import logging
import mimetypes
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file, list_files_below
from fl.data.prepared import SPLIT_NAMES
from fl.data.readers import tables
from fl.data.readers.image_files import is_readable_image
from fl.data.readers.missing_values import EMPTY_CELLS, check_missing_codes
from fl.data.readers.shards import SPLIT_BY_NAME, check_shards, published_splits
from fl.data.readers.spellings import check_spellings
from fl.data.readers.tables import SPLIT_NAME, TARGET, TEXT

log = logging.getLogger(__name__)

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
LISTED = 10
"""Number of folders that a note names."""
PARQUET_BATCH = 100
"""Number of rows of Parquet that are in memory at once."""
TABLE_ADVICE = (
    "rename folders of splits to train, val and test, or write a table with a row for each image, "
    "with columns of its label and its split"
)


@dataclass(frozen=True)
class ImageList:
    """Images with their labels or targets and, if known, clients, published splits and groups.

    Attributes:
        files: Image files, or Parquet files that contain images in ``column``.
        labels: Label of each image; empty if they have targets.
        order: The classes in order, or the name of the target.
        clients: Natural client of each image, or empty.
        splits: Published split of each image, or empty.
        groups: Group of each image, or empty.
        column: Column of the images in Parquet files, or "".
        notes: What a reader of results should know of the images.
        targets: Target of each image, or empty.
    """

    files: tuple[Path, ...]
    labels: tuple[str, ...]
    order: tuple[str, ...]
    clients: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    column: str = ""
    notes: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()

    def pictures(self) -> Iterator[tuple[str, Path | bytes]]:
        """Yield each image in order: its name for errors, and its file or its bytes."""
        for file in self.files:
            if self.column:
                yield from _iter_embedded(file, self.column)
            else:
                yield str(file), file


def list_folders(top: Path) -> ImageList:
    """List the images in folders by class, or by split and class."""
    notes = _other_file_notes(top)
    split_of = _split_folders(top, _folders(top))
    files: list[Path] = []
    labels: list[str] = []
    splits: list[str] = []
    for parent in split_of or [top]:
        images_by_folder = {folder: _images_below(folder) for folder in _folders(parent)}
        _check_class_folders(parent, images_by_folder)
        notes += _unread_folder_notes(parent, images_by_folder)
        for folder, images in images_by_folder.items():
            files += images
            labels += [folder.name] * len(images)
            splits += [split_of[parent]] * len(images) if split_of else []
    for row in _duplicates(files):
        problem = f"{files[row]}: a link adds the image to {top} a second time"
        raise DataError(problem, advice="delete the link")
    classes = _classes(top, labels, lambda label: str(files[labels.index(label)]))
    return ImageList(tuple(files), tuple(labels), classes, splits=tuple(splits), notes=tuple(notes))


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


def _images_below(folder: Path) -> list[Path]:
    """Return the images of a class; raise a `DataError` if there are none or it has no name."""
    if folder.name.strip() in EMPTY_CELLS:
        problem = f"{folder}: the name {folder.name!r} means a missing class"
        raise DataError(problem, advice="rename the folder, or move it elsewhere")
    images = [file for file in list_files_below(folder) if is_image(file)]
    if not images:
        advice = "put images into it, or delete it"
        raise DataError(f"{folder}: contains no image", _suffix_text(), advice)
    return images


def _check_class_folders(parent: Path, images_by_folder: Mapping[Path, Sequence[Path]]) -> None:
    """Raise a `DataError` if folders of splits, clients or folds would be classes.

    These contain no image themselves. Their folders are the classes, and so have the same names;
    or another of them, such as test images without labels, contains images itself.
    """
    folders_below = {
        folder: {image.relative_to(folder).parts[0] for image in images}
        for folder, images in images_by_folder.items()
        if all(image.parent != folder for image in images)
    }
    has_images = len(images_by_folder) > len(folders_below)
    parents_by_name: dict[str, list[str]] = {}
    for folder, names in folders_below.items():
        for name in sorted(names):
            parents_by_name.setdefault(name, []).append(folder.name)
        if has_images and len(names) > 1:
            problem = f"{parent}: {folder.name} contains images in folders only, others directly"
            raise DataError(problem, "folders of classes", TABLE_ADVICE)
    for name, parents in parents_by_name.items():
        if len(parents) > 1:
            problem = (
                f"{parent}: each of {', '.join(parents[:20])} has a folder {name!r} with images"
            )
            allowed = "folders of classes, or train, test and val with folders of classes"
            raise DataError(problem, allowed, TABLE_ADVICE)


def _unread_folder_notes(
    parent: Path, images_by_folder: Mapping[Path, Sequence[Path]]
) -> list[str]:
    """Return a note if all images are in folders below those of classes, which are not read.

    These may be kinds of a class, but also the classes, and the folders of classes sites.
    """
    counts = Counter(
        image.relative_to(folder).parts[0]
        for folder, images in images_by_folder.items()
        for image in images
        if image.parent != folder
    )
    if counts.total() < sum(map(len, images_by_folder.values())):
        return []
    classes = ", ".join(folder.name for folder in [*images_by_folder][:LISTED])
    inner = ", ".join(f"{name} ({count:,})" for name, count in [*counts.items()][:LISTED])
    rest_text = f" and {len(counts) - LISTED:,} others" if len(counts) > LISTED else ""
    note = f"the classes are the folders {classes}; not the folders below them, {inner}{rest_text}"
    log.warning("%s: %s", parent, note)
    return [note]


def _other_file_notes(top: Path) -> list[str]:
    """Return a note on the files that are not read; raise a `DataError` for an image."""
    files = [file for file in list_files_below(top) if not is_image(file)]
    suffixes: set[str] = set()
    for file in files:
        suffix = file.suffix.lower()
        # Files with the same ending have the same format.
        if (not suffix or suffix not in suffixes) and _is_other_image(file):
            advice = "convert it, name it by its format, or move it elsewhere"
            raise DataError(f"{file}: the image is not read", _suffix_text(), advice)
        suffixes.add(suffix)
    return notes_of_unread(top, files)


def notes_of_unread(top: Path, files: Iterable[Path]) -> list[str]:
    """Return a note with the numbers of a folder's files that are not read, by their endings."""
    counts = Counter(file.suffix.lower() or "without ending" for file in files)
    if not counts:
        return []
    listed = ", ".join(f"{count} {suffix}" for suffix, count in counts.items())
    note = f"files of other kinds are not read: {listed}"
    log.warning("%s: %s", top, note)
    return [note]


def _is_other_image(file: Path) -> bool:
    kind = mimetypes.guess_type(file.name)[0] or ""
    return kind.startswith("image/") or is_readable_image(file)


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
        keys: Names of the columns by key: ``image``, ``label`` or ``target``, and perhaps
            ``client``, ``split`` and ``group``.
    """
    columns = _read_columns(path, keys)
    files = [path.parent / text for text in columns.texts["image"]]
    for row, file in enumerate(files, 1):
        if not is_file(file):
            raise DataError(f"{path}: column {keys['image']!r}, row {row}: {file} does not exist")
    for row in _duplicates(files):
        problem = f"{files[row]} occurs twice"
        raise DataError(f"{path}: column {keys['image']!r}, row {row + 1}: {problem}")
    return _image_list(path, [path], tuple(files), columns, keys)


def list_parquet(path: Path, files: Sequence[Path], keys: Mapping[str, str]) -> ImageList:
    """List the images inside Parquet files of Hugging Face's ``datasets``.

    An image is a struct with its ``bytes``, or bytes. If the files say that labels are a
    ``ClassLabel``, its names are the classes, in its order.

    Args:
        path: A file, or the folder of the files.
        files: The files.
        keys: Names of the columns by key, see `list_table`.
    """
    cell_keys = {key: column for key, column in keys.items() if key != "image"}
    columns = Columns({key: [] for key in cell_keys}, [])
    check_shards(files)
    splits = [] if "split" in keys else published_splits(path, files)
    published: list[str] = []
    names_by_file: dict[Path, tuple[str, ...]] = {}
    for index, file in enumerate(files):
        if not holds_images(file, keys["image"]):
            problem = f"{file}: column {keys['image']!r} contains no images"
            raise DataError(problem, "bytes, or a struct with `bytes`")
        rows = _read_columns(file, cell_keys)
        if "label" in keys:
            names_by_file[file] = class_names(file, keys["label"])
            rows.texts["label"] = [
                _class_of_number(file, text, names_by_file[file]) for text in rows.texts["label"]
            ]
        for key, texts in rows.texts.items():
            columns.texts[key].extend(texts)
        columns.targets.extend(rows.targets)
        count = len(rows.texts.get("label", rows.targets))
        published += [splits[index]] * count if splits else []
    order = _common_names(names_by_file)
    check_spellings(path, "the label", order)
    if published:
        columns.texts["split"] = published
    listed = _image_list(path, files, tuple(files), columns, keys)
    return replace(listed, column=keys["image"], order=order or listed.order)


def holds_images(path: Path, column: str) -> bool:
    """Whether a file is Parquet with images, and not their paths, in a column."""
    if not tables.is_parquet(path) or not is_file(path):
        return False
    existing = tables.column_names(path)
    image_columns = _image_columns(path)
    if column not in existing and image_columns:
        names = ", ".join(map(repr, image_columns))
        problem = f"{path}: image is {column!r}, but there is no such column; images are in {names}"
        raise DataError(problem, advice=f"`image: {image_columns[0]}`")
    tables.require_column(path, existing, "image", column)
    return column in image_columns


def _image_columns(path: Path) -> list[str]:
    """Return the columns of a Parquet file that are images by their type."""
    import pyarrow.parquet as pq
    from pyarrow import types

    return [
        field.name
        for field in pq.read_schema(path)
        if (types.is_struct(field.type) and field.type.get_field_index("bytes") >= 0)
        or types.is_binary(field.type)
        or types.is_large_binary(field.type)
        or types.is_binary_view(field.type)
    ]


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Return the names of a column's classes from a Hugging Face file, or an empty tuple."""
    import pyarrow.parquet as pq

    text = (pq.read_schema(path).metadata or {}).get(b"huggingface", b"{}")
    with wrap_read_errors(path, "has metadata `huggingface` that cannot be read"):
        feature = json.loads(text).get("info", {}).get("features", {}).get(column, {})
        return tuple(map(str, feature.get("names") or ()))


def _common_names(names_by_file: Mapping[Path, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the names of all files' classes in order; raise a `DataError` if some have none."""
    unnamed = [file for file, names in names_by_file.items() if not names]
    named = [file for file, names in names_by_file.items() if names]
    if named and unnamed:
        problem = f"{unnamed[0]}: does not name the classes of its labels, but {named[0]} does"
        raise DataError(problem, advice="write all files with the same features")
    return tuple(dict.fromkeys(name for names in names_by_file.values() for name in names))


def _class_of_number(path: Path, text: str, names: Sequence[str]) -> str:
    """Return the class of a label that is an index of ``names``; without names, the label."""
    if not names:
        return text
    if not text.isdecimal() or int(text) >= len(names):
        problem = f"{path}: has the label {text}, but {len(names)} names of classes"
        raise DataError(problem, f"0 to {len(names) - 1}")
    return names[int(text)]


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


class Columns(NamedTuple):
    """Columns of a table: texts by the key that names the column, and targets."""

    texts: dict[str, list[str]]
    targets: list[float]


def _read_columns(path: Path, keys: Mapping[str, str]) -> Columns:
    """Return the columns of a table that keys name."""
    existing = tables.column_names(path, alternatives=", or a folder of images")
    for key, column in keys.items():
        tables.require_column(path, existing, key, column)
    type_by_key = {"split": SPLIT_NAME, "target": TARGET}
    column_types = {column: type_by_key.get(key, TEXT) for key, column in keys.items()}
    columns = Columns({key: [] for key in keys if key != "target"}, [])
    label = keys.get("label")
    advice = _target_advice(label) if label and _has_fractions(path, label) else ""
    for piece in tables.read_pieces(path, column_types, advice=advice):
        for key, column in keys.items():
            (columns.targets if key == "target" else columns.texts[key]).extend(
                piece[column].tolist()
            )
    return columns


def _has_fractions(path: Path, column: str) -> bool:
    """Whether a file is Parquet with floating-point numbers in a column."""
    import pyarrow.parquet as pq
    from pyarrow import types

    if not tables.is_parquet(path):
        return False
    return bool(types.is_floating(pq.read_schema(path).field(column).type))


def _target_advice(label: str) -> str:
    return f"`target: {label}` in place of `label`, if it is a number to predict"


def _image_list(
    path: Path,
    table_files: Sequence[Path],
    files: tuple[Path, ...],
    columns: Columns,
    keys: Mapping[str, str],
) -> ImageList:
    """Return the images of tables whose cells have been read.

    Args:
        path: The table, or the folder of the tables, for errors.
        table_files: The tables.
        files: The files of images.
        columns: The cells.
        keys: Names of the columns by key, see `list_table`.
    """
    texts = columns.texts

    def place(key: str) -> Callable[[str], str]:
        return lambda value: tables.place_of(table_files, keys[key], value)

    for key in ("client", "group"):
        names = dict.fromkeys(texts.get(key, ()))
        check_spellings(path, f"the {key}", names)
        check_missing_codes(path, f"the {key}", names.keys(), place(key))
    if "target" in keys:
        tables.check_targets(path, f"target {keys['target']!r}", {*columns.targets})
        order: tuple[str, ...] = (keys["target"],)
    else:
        order = _classes(path, texts["label"], place("label"), _target_advice(keys["label"]))
    return ImageList(
        files=files,
        labels=tuple(texts.get("label", ())),
        order=order,
        clients=tuple(texts.get("client", ())),
        splits=tuple(texts.get("split", ())),
        groups=tuple(texts.get("group", ())),
        targets=tuple(columns.targets),
    )


def _classes(
    path: Path, labels: Sequence[str], place: Callable[[str], str], target_advice: str = ""
) -> tuple[str, ...]:
    classes = tables.sort_texts(labels)
    tables.check_classes(path, "the label", classes, len(labels), place, target_advice)
    return tuple(classes)
