"""Where pictures of the user's own are, and what each of them shows: in folders, by a table, or in
Parquet files that hold them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file
from fl.data import columns
from fl.data.columns import SPLIT_NAME, TEXT
from fl.data.contents import below
from fl.data.prepared import SPLIT

ENDS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
SPLITS = {name: name for name in SPLIT} | {"valid": "val", "validation": "val"}
"""The split by what its folders and files are called."""
SHARD = re.compile(r"([a-z]+)(?:-\d{5}-of-\d{5})?\.(?:parquet|pq)", re.IGNORECASE)
"""What Hugging Face calls the files of a split, ``train-00000-of-00002.parquet``."""
BATCH = 100
"""Rows of Parquet that are held at once."""


@dataclass(frozen=True)
class Listed:
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
                yield from _held(file, self.column)
            else:
                yield str(file), file


def in_folders(top: Path) -> Listed:
    """Pictures in a folder for each class, or for each split and class."""
    split_of = _split_folders(top, _folders(top))
    files: list[Path] = []
    labels: list[str] = []
    splits: list[str] = []
    for parent in split_of or [top]:
        for folder in _folders(parent):
            inside = [file for file in below(folder) if is_image(file)]
            if not inside:
                raise DataError(f"{folder}: holds no image. Allowed: {_allowed()}")
            files += inside
            labels += [folder.name] * len(inside)
            splits += [split_of[parent]] * len(inside) if split_of else []
    for row in _again(files):
        raise DataError(f"{files[row]}: is in {top} twice, by a link. Allowed: each image once")
    return Listed(tuple(files), tuple(labels), _classes(top, labels), splits=tuple(splits))


def _split_folders(top: Path, folders: list[Path]) -> dict[Path, str]:
    """The published split of each folder, in the order of `SPLIT`; empty if the folders are
    classes.

    A folder that is called like a split may be a class, as trains are of vehicles: then its images
    lie in it, and other classes beside it.

    Raises:
        DataError: If some of the folders are splits and others are not, if one split has two
            folders, or if there is none for training.
    """
    named = {folder: SPLITS[folder.name.lower()] for folder in folders if _split_name(folder)}
    if not any(child.is_dir() for folder in named for child in folder.iterdir()):
        return {}
    splits = [*named.values()]
    if len(named) < len(folders) or len({*splits}) < len(splits) or "train" not in splits:
        listed = ", ".join(folder.name for folder in folders[:20])
        raise DataError(
            f"{top}: has the folders {listed}. Allowed: folders of classes alone, or of splits"
            " alone: train, and beside it test, val (or valid, validation)"
        )
    return dict(sorted(named.items(), key=lambda item: SPLIT.index(item[1])))


def _split_name(folder: Path) -> bool:
    return folder.name.lower() in SPLITS


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


def by_table(path: Path, keys: Mapping[str, str]) -> Listed:
    """Pictures that a table names, from the folder where it lies.

    Args:
        keys: The columns ``image`` and ``label``, and ``client`` and ``split`` where there are.
    """
    texts = _texts(path, keys)
    files = [path.parent / text for text in texts["image"]]
    for row, file in enumerate(files, 1):
        if not is_file(file):
            raise DataError(f"{path}: column {keys['image']!r}, row {row}: {file} is not there")
    for row in _again(files):
        problem = f"{files[row]} stands twice"
        raise DataError(f"{path}: column {keys['image']!r}, row {row + 1}: {problem}")
    return _listed(path, tuple(files), texts)


def in_parquet(path: Path, files: Sequence[Path], keys: Mapping[str, str]) -> Listed:
    """Pictures that Parquet files hold, as ``datasets`` of Hugging Face writes them.

    A picture is in a struct with its ``bytes``, or is bytes itself. Where the files say that labels
    are a ``ClassLabel``, its names are the classes, in its order.

    Args:
        path: A file, or the folder of the files.
        keys: As of `by_table`.
    """
    texts: dict[str, list[str]] = {key: [] for key in keys if key != "image"}
    splits = [] if "split" in keys else _shards(path, files)
    published: list[str] = []
    for place, file in enumerate(files):
        if not holds(file, keys["image"]):
            problem = f"column {keys['image']!r} holds no pictures"
            raise DataError(f"{file}: {problem}. Allowed: bytes, or a struct that has `bytes`")
        rows = _texts(file, {key: column for key, column in keys.items() if key != "image"})
        named = class_names(file, keys["label"])
        rows["label"] = [_named(file, text, named) for text in rows["label"]]
        for key, column in rows.items():
            texts[key] += column
        published += [splits[place]] * len(rows["label"]) if splits else []
    order = class_names(files[0], keys["label"])
    listed = _listed(path, tuple(files), texts | ({"split": published} if published else {}))
    return replace(listed, column=keys["image"], order=order or listed.order)


def holds(path: Path, column: str) -> bool:
    """Whether a file is Parquet whose column is pictures, and not their paths."""
    import pyarrow.parquet as pq
    from pyarrow import types

    if path.suffix not in columns.PARQUET or not is_file(path):
        return False
    columns.require(path, columns.names(path), "image", column)
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


def _named(path: Path, text: str, names: Sequence[str]) -> str:
    """The class of a label that is a number among names, or the label itself."""
    if not names:
        return text
    if not text.isdecimal() or int(text) >= len(names):
        problem = f"{path}: has the label {text}, and {len(names)} names of classes"
        raise DataError(f"{problem}. Allowed: 0 to {len(names) - 1}")
    return names[int(text)]


def _shards(path: Path, files: Sequence[Path]) -> list[str]:
    """The split of each file by its name, or by its folder's; none where no name is a split's."""
    by_name = [
        SPLITS.get(match[1].lower() if (match := SHARD.fullmatch(file.name)) else "")
        if file.parent == path or path == file
        else SPLITS.get(file.parent.name.lower())
        for file in files
    ]
    if len(files) == 1 or all(split is None for split in by_name):
        return []
    for file, split in zip(files, by_name, strict=True):
        if split is None:
            named = "train, test, val (or valid, validation)"
            raise DataError(f"{file}: its name is no split's, unlike others. Allowed: {named}")
    return [split for split in by_name if split is not None]


def _held(path: Path, column: str) -> Iterator[tuple[str, bytes]]:
    import pyarrow.parquet as pq

    row = 0
    with wrap_read_errors(path, "cannot be read as a table"), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=[column]):
            for value in batch.column(0).to_pylist():
                row += 1
                content = value.get("bytes") if isinstance(value, dict) else value
                name = f"{path}: row {row}"
                if not content:
                    raise DataError(f"{name}: holds no picture. Allowed: its bytes in the file")
                yield name, content


def _texts(path: Path, keys: Mapping[str, str]) -> dict[str, list[str]]:
    """The columns of a table by the keys that name them."""
    there = columns.names(path, other=", or a folder of images")
    for key, column in keys.items():
        columns.require(path, there, key, column)
    kinds = {column: SPLIT_NAME if key == "split" else TEXT for key, column in keys.items()}
    texts: dict[str, list[str]] = {key: [] for key in keys}
    for piece in columns.pieces(path, kinds):
        for key, column in keys.items():
            texts[key] += piece[column].tolist()
    return texts


def _listed(path: Path, files: tuple[Path, ...], texts: Mapping[str, list[str]]) -> Listed:
    return Listed(
        files=files,
        labels=tuple(texts["label"]),
        order=_classes(path, texts["label"]),
        clients=tuple(texts.get("client", ())),
        splits=tuple(texts.get("split", ())),
    )


def _classes(path: Path, labels: Sequence[str]) -> tuple[str, ...]:
    classes = columns.in_order(labels)
    columns.check_classes(path, "the label", classes, len(labels))
    return tuple(classes)
