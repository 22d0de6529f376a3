"""Arrays of your own: a NumPy file with inputs and labels, or a folder of PFLlib.

No publication: it is yours. What is in the file is part of what a run is.

The file is an archive such as ``numpy.savez("mine.npz", x=x, y=y)`` writes: ``x`` [samples, ...]
are inputs and ``y`` [samples] labels, whole numbers or texts, or, in their place, ``target``
[samples] the numbers of a regression; if they are there, ``client`` says whose a
sample is, ``domain`` where it is from, ``group`` which other samples it belongs to, such as those
of one patient, and ``split`` is its published split, train, val or test. A group is kept whole.
The classes are the different labels, in order: whole numbers by value, anything else by spelling.

Inputs that are floating-point numbers are normalised by mean and deviation of each channel (the
first dimension of an input) over the samples that a partition trains on; those of 8 bits are
images, scaled to 0..1 first. Other whole numbers are tokens. A study in Python writes such files
itself, see `fl.arrays`.

A folder that PFLlib generated, such as its ``dataset/MNIST``, is read as one such file: its clients
have the same numbers, and ``train`` and ``test`` are the published split. PFLlib's inputs are
normalised already; with ``standardise: false`` they stay as they are.

Memory: all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.files import is_file, is_folder
from fl.base.folders import path_of
from fl.base.hashes import change_stamp
from fl.data.download import Source
from fl.data.normalisation import IDENTITY_NORMALISATION, TRAINING_NORMALISATION
from fl.data.prepared import SPLIT_NAMES, Writer
from fl.data.readers import pfllib, tables
from fl.data.readers.missing_values import EMPTY_CELLS, check_missing_codes
from fl.data.readers.spellings import check_spellings

LABEL_ARRAYS = ("y", "client", "domain", "group", "split")
"""Names of the arrays other than ``x`` and ``target``."""


@dataclass(frozen=True)
class Arrays:
    """Inputs and labels or targets of an ``.npz`` file, or of a folder of PFLlib.

    Attributes:
        path: Path of the ``.npz`` file or of the folder.
        standardise: Whether each channel of inputs, except tokens, and the target get mean 0 and
            standard deviation 1 over training samples.
    """

    path: str
    standardise: bool = True

    sources: ClassVar[tuple[Source, ...]] = ()
    padding: ClassVar[int | None] = None

    @property
    def files(self) -> list[Path]:
        """All files that are read.

        Raises:
            DataError: If they are not there.
        """
        path = path_of(self.path)
        if is_folder(path):
            return pfllib.client_files(path)
        if not is_file(path):
            raise DataError(f"{path}: does not exist", "an .npz file, or a folder of PFLlib")
        return [path]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The checked arrays of the files, which are read again only after a change."""
        return _read(self.path, change_stamp(self.files))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an input."""
        return self.arrays["x"].shape[1:]

    @property
    def tokens(self) -> int:
        """One more than the largest, where inputs are tokens; else 0."""
        x = self.arrays["x"]
        return int(x.max()) + 1 if _has_tokens(x) else 0

    @property
    def classes(self) -> int:
        """Number of different labels; 1 for targets."""
        return len(self._class_names)

    @property
    def task(self) -> str:
        """The task: regression of targets, or classification."""
        return "regression" if "target" in self.arrays else "classification"

    @property
    def _class_names(self) -> list[str]:
        """The labels in order, or the name of the target."""
        return ["target"] if "target" in self.arrays else _order(self.arrays["y"])

    @property
    def natural_clients(self) -> int | None:
        """Number of different clients, or None if the file has no clients."""
        return len(self.client_names) or None

    @property
    def client_names(self) -> list[str]:
        """Names of the clients by number; empty without clients."""
        return _order(self.arrays["client"]) if "client" in self.arrays else []

    @property
    def domains(self) -> tuple[str, ...]:
        """The different domains; an empty tuple if the file has none."""
        return tuple(_order(self.arrays["domain"])) if "domain" in self.arrays else ()

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.arrays["x"])

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x unchanged; y int64, client, domain, group int32, split int8 ``[samples]``.

        Targets are float64, beside a y of zeros.
        """
        arrays = self.arrays
        writer.save("x", arrays["x"])
        classes = self._class_names
        if "target" in arrays:
            writer.save("target", arrays["target"].astype(np.float64))
            writer.save("y", np.zeros(len(arrays["target"]), np.int64))
        else:
            writer.save("y", tables.number_texts(map(str, arrays["y"].tolist()), classes))
        for key in ("client", "domain", "group"):
            if key in arrays:
                names = map(str, arrays[key].tolist())
                numbers = tables.number_texts(names, _order(arrays[key]))
                writer.save(key, numbers.astype(np.int32))
        if "split" in arrays:
            writer.save("split", arrays["split"])
        scale = 1 / 255 if arrays["x"].dtype == np.uint8 else 1.0
        normalisation = TRAINING_NORMALISATION if self.standardise else IDENTITY_NORMALISATION
        writer.describe(
            classes,
            normalisation=None if _has_tokens(arrays["x"]) else {**normalisation, "scale": scale},
            domains=self.domains,
            groups=_order(arrays["group"]) if "group" in arrays else (),
            inputs={"target": normalisation} if "target" in arrays else {},
        )


@lru_cache(maxsize=4)
def _read(path: str, stamped: str) -> dict[str, np.ndarray]:
    file = path_of(path)
    if is_folder(file):
        arrays = pfllib.read_folder(file)
    else:
        with (
            wrap_read_errors(file, "is no archive of NumPy arrays", "write it by numpy.savez"),
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    arrays = {name: native(array) for name, array in arrays.items()}
    check(arrays, str(file))
    return arrays


def native(array: np.ndarray) -> np.ndarray:
    """Return an array in a type that PyTorch has: in this machine's byte order, 64 bits at most."""
    if array.dtype.kind == "f" and array.itemsize > np.dtype(np.float64).itemsize:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check(arrays: Mapping[str, np.ndarray], name: str) -> None:
    """Raise a `DataError` unless arrays are those of a data set.

    Args:
        arrays: The arrays by name.
        name: Their file, for errors.
    """
    label = "target" if "target" in arrays else "y"
    for key in ("x", label):
        if key not in arrays:
            raise DataError(
                f"{name}: has no {key}. Allowed: x and y, and {', '.join(LABEL_ARRAYS[1:])}"
            )
    for key in arrays:
        if key not in ("x", label, *LABEL_ARRAYS):
            raise DataError(f"{name}: has {key!r}. Allowed: x, {', '.join(LABEL_ARRAYS)}")
    if {"y", "target"} <= arrays.keys():
        raise DataError(f"{name}: has y and target", "y for classes, or target for a regression")
    x = arrays["x"]
    if x.ndim < 2 or x.dtype.kind not in "uif" or not x.size:
        problem = f"{name}: x is {x.dtype} {list(x.shape)}"
        allowed = "numbers [samples, ...] with two dimensions or more"
        advice = {
            "b": "x.astype('float32')",
            "c": "np.stack([x.real, x.imag], axis=1)",
            "S": "x.astype('float32'), if they are numbers",
            "U": "x.astype('float32'), if they are numbers",
        }.get(x.dtype.kind, "")
        if x.ndim == 1 and x.dtype.kind in "uif":
            advice = "x[:, None], if each sample is one number"
        raise DataError(problem, allowed, advice)
    if (x.ndim > 3 and _has_tokens(x)) or (x.ndim == 3 and x.dtype in (np.int16, np.uint16)):
        problem = f"{name}: x is {x.dtype} {list(x.shape)}, and whole numbers but uint8 are tokens"
        allowed = "images as uint8, 0 to 255, or as floats"
        bits_8 = "x.astype('uint8')" if x.min() >= 0 and x.max() <= 255 else "x.astype('float32')"
        raise DataError(problem, allowed, f"write {bits_8} instead of x")
    if replacement := _channels_first(x):
        problem = f"{name}: x is {x.dtype} {list(x.shape)}, images without a dimension of channels"
        if x.ndim == 4:
            problem = f"{name}: x is {x.dtype} {list(x.shape)}, with channels last"
        allowed = "images as [samples, channels, height, width]"
        raise DataError(problem, allowed, f"write {replacement} instead of x")
    is_wrong = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if is_wrong.any():
        others_text = f" and of {int(is_wrong.sum()) - 1} others" if is_wrong.sum() > 1 else ""
        problem = f"x of sample {int(is_wrong.argmax())}{others_text}"
        raise DataError(
            f"{name}: {problem} has numbers that are not finite; leave these samples out"
        )
    if x.dtype.kind == "f":
        _check_magnitudes(x, name)
    if _has_tokens(x) and x.min() < 0:
        raise DataError(
            f"{name}: x has whole numbers below 0. Allowed: tokens from 0 on, or floats"
        )
    for key in LABEL_ARRAYS:
        if key in arrays:
            _check_names(key, arrays[key], len(x), name)
    if label == "target":
        _check_target(arrays["target"], len(x), name)
    else:
        target = "give numbers to predict as `target`"
        tables.check_classes(
            Path(name), "y", _order(arrays["y"]), len(x), _place_in(arrays["y"]), target
        )


def _check_target(values: np.ndarray, samples: int, name: str) -> None:
    """Raise a `DataError` unless there is one finite number for each sample, of several values."""
    if values.shape != (samples,) or values.dtype.kind not in "uif":
        problem = f"{name}: target is {values.dtype} {list(values.shape)}"
        raise DataError(problem, f"numbers, one for each input, [{samples}]")
    is_wrong = ~(np.abs(values.astype(np.float64)) <= np.finfo(np.float32).max)
    if is_wrong.any():
        number = int(is_wrong.argmax())
        problem = f"{name}: target of sample {number} is {values[number]:g}"
        advice = "leave out samples without a target"
        raise DataError(problem, f"finite numbers up to {np.finfo(np.float32).max:g}", advice)
    tables.check_targets(Path(name), "target", {float(values.min()), float(values.max())})


def _check_magnitudes(x: np.ndarray, name: str) -> None:
    """Raise a `DataError` for floats that float32, in which models compute, cannot hold."""
    inner = (0, *range(2, x.ndim))
    largest = np.maximum(x.max(axis=inner), -x.min(axis=inner))
    limits = np.finfo(np.float32)
    for channel in np.flatnonzero(largest > limits.max)[:1]:
        problem = f"{name}: x of channel {channel} has numbers of size {largest[channel]:g}"
        raise DataError(problem, f"up to {limits.max:g}", "divide x by a constant")
    for channel in np.flatnonzero((largest > 0) & (largest < limits.tiny))[:1]:
        problem = f"{name}: x of channel {channel} has no number above {largest[channel]:g}"
        allowed = f"some number from {limits.tiny:g} on, or zeros alone"
        raise DataError(problem, allowed, "multiply x by a constant")


def _check_names(key: str, values: np.ndarray, samples: int, name: str) -> None:
    if values.shape != (samples,):
        problem = f"{name}: {key} is {list(values.shape)}, and there are {samples} inputs"
        raise DataError(f"{problem}. Allowed: one for each, [{samples}]")
    if values.dtype.kind not in "uiU":
        is_whole = values.dtype.kind == "b" or (values.dtype.kind == "f" and not (values % 1).any())
        advices = [f"{key}.astype(int)"] * is_whole
        advices += ["give `target` in place of `y` for a regression"] * (key == "y")
        advice = "; or ".join(advices)
        raise DataError(f"{name}: {key} is {values.dtype}", "whole numbers or texts", advice)
    unknown = set(values.tolist()) - set(SPLIT_NAMES)
    if key == "split" and unknown:
        raise DataError(
            f"{name}: split has {min(map(str, unknown))!r}. Allowed: {', '.join(SPLIT_NAMES)}"
        )
    different = _order(values)
    missing = [repr(text) for text in different if text.strip() in EMPTY_CELLS]
    if missing:
        advice = "leave these samples out; or, if it is a name, write another text"
        raise DataError(f"{name}: {key} has {missing[0]}, as for a missing value", advice=advice)
    check_spellings(name, key, different)
    check_missing_codes(name, key, different, _place_in(values))


def _place_in(values: np.ndarray) -> Callable[[str], str]:
    """Return the function that says where a text or number is first."""
    return lambda text: f"sample {list(map(str, values.tolist())).index(text)}"


def _channels_first(x: np.ndarray) -> str:
    """Return the expression that moves channels to the second axis, or "" if they are there."""
    colours = (1, 3, 4)
    if x.ndim == 3 and x.dtype == np.uint8:
        return "x[:, None]"
    if x.ndim == 4 and x.shape[3] in colours and x.shape[1] not in colours:
        # Floats may be something else: maps of features, or one column of many channels.
        is_image = x.shape[2] not in colours and (x.shape[1] == x.shape[2] or x.shape[3] > 1)
        if x.dtype == np.uint8 or (x.dtype.kind == "f" and is_image):
            return "x.transpose(0, 3, 1, 2)"
    return ""


def _has_tokens(x: np.ndarray) -> bool:
    return x.dtype.kind in "ui" and x.dtype != np.uint8


def _order(values: np.ndarray) -> list[str]:
    """The different values as texts, in order."""
    return tables.sort_texts(map(str, np.unique(values).tolist()))
