"""Shoulder exercises by smart watch: which of seven is done, with the ten people as clients.

D. Burns, N. Leung, M. Hardisty, C. Whyne, P. Henry and S. McLachlin. Shoulder Physiotherapy
Exercise Recognition: Machine Learning the Inertial Signals from a Smartwatch. Physiological
Measurement 2018. arXiv:1802.01489

Licence: the package seglearn, in which the authors give the series out, is under the BSD licence of
three clauses; none of its own is stated for the series.

Source: the wheel of seglearn, of which ``watch_dataset.npy`` is read: 140 series at 50 Hz, of each
person and exercise one on either side, with the acceleration and the angular velocity on three
axes.

A series is cut into windows of 100 readings, each begun 50 after the last one; what does not fill a
window is left out. Windows of one series overlap, so a series is a group and stays in one split. A
person has two series of an exercise. So an exercise that a client trains on is tested, if at all,
on the other side. Each channel is normalised over the windows that a partition trains on.

Memory: the series, twice.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fl.base.errors import DataError, wrap_read_errors
from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.archives import read_member
from fl.data.readers.pickles import load_pickle
from fl.data.readers.validation import check_sizes

WATCH_ARCHIVE = Source(
    "seglearn-1.2.5-py3-none-any.whl",
    "pypi:seglearn/1.2.5",
    "ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd",
)
WATCH_MEMBER = "seglearn/data/watch_dataset.npy"
EXERCISE_NAMES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
CHANNEL_NAMES = ("ax", "ay", "az", "wx", "wy", "wz")
WINDOW, STEP = 100, 50
WATCH_SIZES = {"series": 140, "people": 10, "windows": 4_677}


@dataclass(frozen=True)
class Watch:
    """Acceleration and angular velocity in two seconds, in seven classes, by person.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (WATCH_ARCHIVE,)
    shape: ClassVar[tuple[int, ...]] = (len(CHANNEL_NAMES), WINDOW)
    classes: ClassVar[int] = len(EXERCISE_NAMES)
    natural_clients: ClassVar[int | None] = WATCH_SIZES["people"]
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of windows, or None for a subset."""
        return WATCH_SIZES["windows"] if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[4677, 6, 100]``; y int64, client and group int32 ``[4677]``."""
        archive = raw / WATCH_ARCHIVE.name
        content = read_series(archive)
        people, client = np.unique(content["subject"], return_inverse=True)
        windows = [cut_windows(np.asarray(series, np.float64)) for series in content["X"]]
        counts = [len(piece) for piece in windows]
        if self.complete:
            sizes = {"series": len(counts), "people": len(people), "windows": sum(counts)}
            check_sizes(sizes, WATCH_SIZES, "watch", "seglearn 1.2.5", "items")
        writer.save("x", np.concatenate(windows).astype(np.float32))
        writer.save("y", np.repeat(np.asarray(content["y"], np.int64), counts))
        writer.save("client", np.repeat(client.astype(np.int32), counts))
        writer.save("group", np.repeat(np.arange(len(counts), dtype=np.int32), counts))
        groups = [f"series {i}" for i in range(len(counts))]
        writer.describe(EXERCISE_NAMES, normalisation=TRAINING_NORMALISATION, groups=groups)


def read_series(archive: Path) -> dict[str, Any]:
    """Return the checked content of the file: ``X``, ``y``, ``subject`` and names.

    Raises:
        DataError: If the file is not of the published form.
    """
    location = f"{archive}: {WATCH_MEMBER}"
    stream = read_member(archive, WATCH_MEMBER)
    with wrap_read_errors(location, "is no NumPy file", "fetch it again"):
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
    content = load_pickle(io.BytesIO(stream.read()))[0]
    with wrap_read_errors(location, "is no dictionary of series", "fetch it again"):
        names = tuple(content["y_labels"]), tuple(content["X_labels"])
        widths = {np.shape(series)[1] for series in content["X"]}
        counts = {len(content[key]) for key in ("X", "y", "subject")}
        is_label = np.isin(content["y"], np.arange(len(EXERCISE_NAMES))).all()
        is_finite = all(np.isfinite(series).all() for series in content["X"])
    if names != (EXERCISE_NAMES, CHANNEL_NAMES) or widths != {len(CHANNEL_NAMES)}:
        raise DataError(f"{location}: names other exercises or channels than expected")
    if len(counts) != 1 or not is_label or not is_finite:
        raise DataError(f"{location}: series, labels and people do not belong together")
    return dict(content)


def cut_windows(series: np.ndarray) -> np.ndarray:
    """Return windows ``[n, channels, WINDOW]`` of a series ``[length, channels]``."""
    if len(series) < WINDOW:
        return np.empty((0, series.shape[1], WINDOW))
    return np.lib.stride_tricks.sliding_window_view(series, WINDOW, axis=0)[::STEP]
