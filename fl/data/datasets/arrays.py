"""Arrays of your own: a NumPy file with inputs and labels.

No publication: it is yours. What is in the file is part of what a run is.

The file is an archive such as ``numpy.savez("mine.npz", x=x, y=y)`` writes: ``x`` [samples, ...]
are inputs and ``y`` [samples] labels, numbers or texts; if they are there, ``client`` says whose a
sample is, ``domain`` where it is from, and ``split`` is its published split, train, val or test.
The classes are the different labels, in order: whole numbers by value, anything else by spelling.

Inputs that are floating-point numbers are normalised by mean and deviation of each channel (the
first dimension of an input) over the samples that a partition trains on; those of 8 bits are
images, scaled to 0..1 first. Other whole numbers are tokens. A study in Python writes such files
itself, see `fl.arrays`.

Memory: all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.base.folders import path_of
from fl.data import tables
from fl.data.download import Source
from fl.data.inputs import IDENTITY_NORMALISATION, TRAINING_NORMALISATION
from fl.data.own_files import change_stamp
from fl.data.prepared import SPLIT_NAMES, Writer

LABEL_ARRAYS = ("y", "client", "domain", "split")
"""Names of the arrays other than ``x``."""


@dataclass(frozen=True)
class Arrays:
    """Inputs and labels of an ``.npz`` file.

    Attributes:
        path: Path of the ``.npz`` file.
        standardise: Whether each channel of inputs, except tokens, gets mean 0 and standard
            deviation 1 over training samples.
    """

    path: str
    standardise: bool = True

    sources: ClassVar[tuple[Source, ...]] = ()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The checked arrays of the file, which is read again only after a change."""
        return _read(self.path, change_stamp([path_of(self.path)]))

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
        """Number of different labels."""
        return len(_order(self.arrays["y"]))

    @property
    def natural_clients(self) -> int | None:
        """Number of different clients, or None if the file has no clients."""
        return len(_order(self.arrays["client"])) if "client" in self.arrays else None

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.arrays["x"])

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x unchanged; y int64, client and domain int32, split int8 ``[samples]``."""
        arrays, domains = self.arrays, list[str]()
        writer.save("x", arrays["x"])
        classes = _order(arrays["y"])
        writer.save("y", tables.number_texts(map(str, arrays["y"].tolist()), classes))
        if "client" in arrays:
            order = _order(arrays["client"])
            numbers = tables.number_texts(map(str, arrays["client"].tolist()), order)
            writer.save("client", numbers.astype(np.int32))
        if "domain" in arrays:
            domains = _order(arrays["domain"])
            numbers = tables.number_texts(map(str, arrays["domain"].tolist()), domains)
            writer.save("domain", numbers.astype(np.int32))
        if "split" in arrays:
            writer.save("split", arrays["split"])
        scale = 1 / 255 if arrays["x"].dtype == np.uint8 else 1.0
        normalisation: dict[str, Any] | None
        normalisation = {
            **(TRAINING_NORMALISATION if self.standardise else IDENTITY_NORMALISATION),
            "scale": scale,
        }
        if _has_tokens(arrays["x"]):
            normalisation = None
        writer.describe(classes, normalisation=normalisation, domains=domains)


@lru_cache(maxsize=4)
def _read(path: str, stamped: str) -> dict[str, np.ndarray]:
    file = path_of(path)
    with (
        wrap_read_errors(file, "is no archive of NumPy arrays", "write it by numpy.savez"),
        np.load(file, allow_pickle=False) as archive,
    ):
        arrays = {name: archive[name] for name in archive.files}
    check(arrays, str(file))
    return arrays


def check(arrays: Mapping[str, np.ndarray], name: str) -> None:
    """Raise a `DataError` unless arrays are those of a data set.

    Args:
        arrays: The arrays by name.
        name: Their file, for errors.
    """
    for key in ("x", "y"):
        if key not in arrays:
            raise DataError(
                f"{name}: has no {key}. Allowed: x and y, and {', '.join(LABEL_ARRAYS[1:])}"
            )
    for key in arrays:
        if key not in ("x", *LABEL_ARRAYS):
            raise DataError(f"{name}: has {key!r}. Allowed: x, {', '.join(LABEL_ARRAYS)}")
    x = arrays["x"]
    if x.ndim < 2 or x.dtype.kind not in "uif" or not x.size:
        problem = f"{name}: x is {x.dtype} {list(x.shape)}"
        raise DataError(f"{problem}. Allowed: numbers [samples, ...] with two dimensions or more")
    if x.dtype == np.uint8 and (replacement := _channels_first(x.shape)):
        problem = f"{name}: x is uint8 {list(x.shape)}, images without a dimension of channels"
        if x.ndim == 4:
            problem = f"{name}: x is uint8 {list(x.shape)}, with channels last"
        allowed = "images as [samples, channels, height, width]"
        raise DataError(problem, allowed, f"write {replacement} instead of x")
    is_wrong = ~np.isfinite(x.reshape(len(x), -1)).all(axis=1)
    if is_wrong.any():
        others_text = f" and of {int(is_wrong.sum()) - 1} others" if is_wrong.sum() > 1 else ""
        problem = f"x of sample {int(is_wrong.argmax())}{others_text}"
        raise DataError(
            f"{name}: {problem} has numbers that are not finite; leave these samples out"
        )
    if _has_tokens(x) and x.min() < 0:
        raise DataError(
            f"{name}: x has whole numbers below 0. Allowed: tokens from 0 on, or floats"
        )
    for key in LABEL_ARRAYS:
        if key in arrays:
            _check_names(key, arrays[key], len(x), name)
    tables.check_classes(Path(name), "y", _order(arrays["y"]), len(x))


def _check_names(key: str, values: np.ndarray, samples: int, name: str) -> None:
    if values.shape != (samples,):
        problem = f"{name}: {key} is {list(values.shape)}, and there are {samples} inputs"
        raise DataError(f"{problem}. Allowed: one for each, [{samples}]")
    if values.dtype.kind not in "uiU":
        problem = f"{name}: {key} is {values.dtype}"
        raise DataError(f"{problem}. Allowed: whole numbers or texts")
    unknown = set(values.tolist()) - set(SPLIT_NAMES)
    if key == "split" and unknown:
        raise DataError(
            f"{name}: split has {min(map(str, unknown))!r}. Allowed: {', '.join(SPLIT_NAMES)}"
        )


def _channels_first(shape: tuple[int, ...]) -> str:
    """Return the expression that moves channels to the second axis, or "" if they are there."""
    if len(shape) == 3:
        return "x[:, None]"
    colours = (1, 3, 4)
    if len(shape) == 4 and shape[3] in colours and shape[1] not in colours:
        return "x.transpose(0, 3, 1, 2)"
    return ""


def _has_tokens(x: np.ndarray) -> bool:
    return x.dtype.kind in "ui" and x.dtype != np.uint8


def _order(values: np.ndarray) -> list[str]:
    """The different values as texts, in order."""
    return tables.sort_texts(map(str, np.unique(values).tolist()))
