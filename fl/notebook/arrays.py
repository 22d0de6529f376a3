"""Data in memory as data sets of a study: arrays, and tables in place of a path."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from fl.base import files
from fl.base.errors import ConfigError, FedloomError, Location
from fl.data.datasets.arrays import check, native
from fl.data.readers.image_files import image_array
from fl.notebook.display import short_traceback

CALL = Location("fl.arrays")
FRAMES = (pd.DataFrame, pd.Series)
"""Types of pandas that have an index."""
REPEATED_SAMPLES = 32
"""Number of samples of a data set that are read twice, to find random transforms."""

FRAME_KEYS = ("frame", "path")
"""Keys of a data set that can have a table in memory as their value."""
SPLIT_COLUMN = "published_split"
"""Column of the split of a row, in a table that is joined from one table for each split."""


@dataclass(frozen=True, repr=False)
class ArrayData:
    """Arrays of the data set `arrays`, and a name for their file.

    Attributes:
        name: First part of the file's name.
        arrays: Arrays by name: ``x``, ``y``, and others that are given.
    """

    name: str
    arrays: Mapping[str, np.ndarray]

    def item(self, folder: Path) -> dict[str, Any]:
        """Return the data set as a study names it; write its file, if it does not exist.

        Args:
            folder: Folder of these files, which are named by their content.
        """
        content = hashlib.sha256()
        for key, array in sorted(self.arrays.items()):
            content.update(f"{key} {array.dtype.str} {array.shape} ".encode())
            content.update(np.ascontiguousarray(array).data)
        path = folder / f"{self.name}-{content.hexdigest()[:16]}.npz"
        if not path.exists():
            array_by_name: dict[str, Any] = dict(self.arrays)
            with files.disk_errors(path):
                folder.mkdir(parents=True, exist_ok=True)
                with files.atomic_writer(path) as file:
                    np.savez(file, **array_by_name)
        return {"arrays": {"path": str(path)}}


@short_traceback
def arrays(
    x: Any,
    y: Any = None,
    *,
    client: Any = None,
    domain: Any = None,
    group: Any = None,
    split: Any = None,
    target: Any = None,
    name: str = "arrays",
) -> ArrayData:
    """Return data of your own for ``fl.run(dataset=...)``: arrays, tensors, or a PyTorch data set.

    They are written to ``arrays/`` in the folder of data, into a file that is named by its content.
    A study with ``arrays: {path: ...}`` uses the same data, and has the same runs.

    Samples are paired by place. DataFrames and Series among the arguments must have one index, as
    pandas would pair their rows by index.

    Args:
        x: Inputs [samples, ...]: floating-point numbers, which are normalised; images of 8 bits
            [samples, channels, height, width]; other whole numbers are tokens. Or a map-style
            ``torch.utils.data.Dataset`` of pairs of an input (an array, a tensor or a Pillow image)
            and a label, without random transforms.
        y: Labels [samples], whole numbers or texts; not given for a ``Dataset``. Floats that are
            not all whole numbers are taken as ``target``.
        client: Client of each sample, for the partition ``natural``.
        domain: Domain of each sample, for partitions by domain.
        group: Group of each sample, such as its patient. A group stays in one split and, where
            clients are drawn, with one client.
        split: Published split of each sample: train, val or test.
        target: Numbers to predict [samples], in place of ``y``: the task is regression.
        name: First part of the file's name.

    Raises:
        FedloomError: If the data cannot be a data set, for example inputs that are not finite or
            labels that are no classes.
    """
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,50}", name)):
        raise ConfigError(CALL / "name", f"is {name!r}", "up to 50 letters, digits, - and _")
    arguments = {"x": x, "y": y, "client": client, "domain": domain, "group": group, "split": split}
    arguments["target"] = target
    _check_indexes(arguments)
    if y is None and target is None:
        arguments["x"], arguments["y"] = _pairs(x)
    converted = {key: _array(key, value) for key, value in arguments.items() if value is not None}
    if target is None and _has_fractions(converted["y"]):
        converted["target"] = converted.pop("y")
    check(converted, "fl.arrays")
    return ArrayData(name, converted)


def _has_fractions(y: np.ndarray) -> bool:
    """Whether an array has numbers that are not whole, and so are no classes."""
    return y.dtype.kind == "f" and bool((y[np.isfinite(y)] % 1 != 0).any())


def _pairs(dataset: Any) -> tuple[Any, Any]:
    """Return inputs and labels of a map-style data set."""
    is_list = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not is_list or hasattr(dataset, "__array__") or isinstance(dataset, str | Mapping):
        problem = f"is a {type(dataset).__name__}, but y is missing"
        raise ConfigError(CALL / "x", problem, advice="give x and y, or a data set with a length")
    pairs = [_pair(dataset, index) for index in range(len(dataset))]
    if not pairs:
        raise ConfigError(CALL / "x", "has no samples", advice="give a data set with samples")
    for index in np.unique(np.linspace(0, len(pairs) - 1, REPEATED_SAMPLES).astype(int)):
        second_reading = _pair(dataset, int(index))
        if any(map(_differ, pairs[index], second_reading)):
            problem = f"differs when sample {index} is read again, as by a random transform"
            advice = "leave out random transforms; `augmentation` changes images in training"
            raise ConfigError(CALL / "x", problem, advice=advice)
    x, y = zip(*pairs, strict=True)
    for index, sample in enumerate(x):
        if sample.shape != x[0].shape or sample.dtype != x[0].dtype:
            form, first_form = (f"{a.dtype} {list(a.shape)}" for a in (sample, x[0]))
            problem = f"is {form} in sample {index}, but {first_form} in the first sample"
            advice = "give all inputs one shape and type, for example by a transform that resizes"
            raise ConfigError(CALL / "x", problem, advice=advice)
    return np.stack(x), _array("y", y)


def _differ(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays of numbers or texts differ; NaN equals NaN."""
    return first.shape != second.shape or first.tobytes() != second.tobytes()


def _pair(dataset: Any, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the input and the label of a sample as arrays."""
    item = dataset[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        problem = f"is a {type(dataset).__name__} whose items are no pairs, and y is missing"
        advice = "give x and y, or a data set of (input, label)"
        raise ConfigError(CALL / "x", problem, advice=advice)
    x, y = item
    return image_array(x) if hasattr(x, "getbands") else _array("x", x), _array("y", y)


def _array(key: str, value: Any) -> np.ndarray:
    """Return a value as an array without masks, in a type that PyTorch has."""
    items = value if isinstance(value, list | tuple) else [value]
    if any(np.ma.is_masked(item) for item in items):
        advice = "leave these samples out, or replace the values"
        raise ConfigError(CALL / key, "has masked values", advice=advice)
    plain = [_in_memory(key, item) if hasattr(item, "detach") else item for item in items]
    try:
        array = np.asarray(plain if isinstance(value, list | tuple) else plain[0])
    except (TypeError, ValueError, RuntimeError) as error:
        dtypes = {str(item.dtype) for item in items if hasattr(item, "detach")}
        kind = f" of {', '.join(sorted(dtypes))}" if dtypes else ""
        advice = "its `dequantize()` or `float()`" if dtypes else ""
        raise ConfigError(CALL / key, f"is no array{kind} ({error})", "", advice) from None
    if array.dtype == object and not array.ndim:
        advice = "an array, such as `x.toarray()` of a sparse matrix"
        raise ConfigError(CALL / key, f"is a {type(value).__name__}, no array", advice=advice)
    if array.dtype == object and all(isinstance(text, str) for text in array.ravel()):
        array = array.astype(str)  # Texts of pandas are objects.
    return native(array)


def _in_memory(key: str, tensor: Any) -> Any:
    """Return a tensor on the CPU, in a type that NumPy has: those of 8 bits and bfloat16 widen."""
    if tensor.is_meta:
        advice = "give a tensor on another device, which has values"
        raise ConfigError(CALL / key, "is a tensor on the device meta, without values", "", advice)
    if str(tensor.layout) != "torch.strided":
        raise ConfigError(CALL / key, f"is a {tensor.layout} tensor", "", "its `to_dense()`")
    tensor = tensor.detach().cpu()
    is_known = str(tensor.dtype).removeprefix("torch.") in np.sctypeDict
    return tensor.float() if tensor.is_floating_point() and not is_known else tensor


def _check_indexes(arguments: Mapping[str, object]) -> None:
    """Raise a `ConfigError` if tables and columns of pandas differ in their indexes.

    Their rows are paired by place, as scikit-learn does, where pandas itself pairs by index.
    """
    indexes = {key: x.index for key, x in arguments.items() if isinstance(x, FRAMES)}
    first = next(iter(indexes), "")
    for key, index in indexes.items():
        if len(index) == len(indexes[first]) and not index.equals(indexes[first]):
            problem = f"has another index than {first}, so that rows can be paired in two ways"
            by_place = f"`{key}.reset_index(drop=True)` and so for {first}"
            advice = f"{by_place}, if rows of one place are a pair"
            if index.is_unique and set(index) == {*indexes[first]}:
                by_index = f"`{key}.loc[{first}.index]`, if rows of one index are a pair"
                advice = f"{by_index}; or {advice}"
            raise ConfigError(CALL / key, problem, "one index", advice)


def is_frame(value: Any) -> bool:
    """Whether a value is a table in memory: of pandas, or a ``Dataset`` of Hugging Face."""
    is_hugging_face = hasattr(value, "features") and hasattr(value, "to_parquet")
    return isinstance(value, pd.DataFrame) or is_hugging_face


def is_frame_by_split(value: Any) -> bool:
    """Whether a value has a table in memory by split, as a ``DatasetDict`` of Hugging Face."""
    return isinstance(value, Mapping) and bool(value) and all(map(is_frame, value.values()))


def with_frame_paths(keys: Mapping[str, Any], folder: Path, location: Location) -> dict[str, Any]:
    """Return keys of a data set with the path of a file in place of a table in memory.

    Args:
        keys: The keys, such as ``frame`` and ``label``.
        folder: Folder of these files, which are named by their content.
        location: Location of the keys in errors.

    Raises:
        ConfigError: If both ``frame`` and ``path`` are given.
        FedloomError: If the table cannot be written.
    """
    if all(key in keys for key in FRAME_KEYS):
        raise ConfigError(location / "frame", "is given in addition to path", advice="give one")
    values = dict(keys)
    for key in FRAME_KEYS:
        if is_frame_by_split(values.get(key)):
            if "split" in values:
                problem = "is given in addition to a table for each split"
                raise ConfigError(location / "split", problem, advice="give one")
            values |= {key: _joined(values[key]), "split": SPLIT_COLUMN}
        if is_frame(values.get(key)):
            values["path"] = str(_write_frame(values.pop(key), folder, location / key))
    return values


def _joined(frame_by_split: Mapping[str, Any]) -> pd.DataFrame:
    """Return one table with the column `SPLIT_COLUMN`."""
    tables = []
    for split, frame in frame_by_split.items():
        table: pd.DataFrame = frame if isinstance(frame, pd.DataFrame) else frame.to_pandas()
        name = "val" if split == "validation" else split
        tables.append(table.assign(**{SPLIT_COLUMN: name}))
    return pd.concat(tables, ignore_index=True)


def _write_frame(frame: Any, folder: Path, location: Location) -> Path:
    """Write a table as Parquet, if its file does not exist; return its path.

    The index of a DataFrame is no column.
    """
    content = io.BytesIO()
    try:
        if isinstance(frame, pd.DataFrame):
            table = pa.Table.from_pandas(frame, preserve_index=False)
            # Metadata hold the version of pandas, which must not rename a run.
            pq.write_table(table.replace_schema_metadata(None), content)
        else:
            frame.to_parquet(content)
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        reason = ": ".join(map(str, error.args))
        raise FedloomError(f"{location}: cannot be written as Parquet ({reason})") from None
    digest = hashlib.sha256(content.getbuffer()).hexdigest()[:16]
    path = folder / f"frame-{digest}.parquet"
    if not path.exists():
        with files.disk_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, content.getvalue())
    return path
