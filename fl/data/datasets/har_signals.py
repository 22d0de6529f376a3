"""Human activity by telephone: what its accelerometer and its gyroscope measure, two inputs.

D. Anguita, A. Ghio, L. Oneto, X. Parra and J. L. Reyes-Ortiz. A Public Domain Dataset for Human
Activity Recognition Using Smartphones. ESANN 2013. doi:10.24432/C54S4K

Licence: CC BY 4.0, as the UCI Machine Learning Repository states.

Source: the archive of `har`. Of the inner zip are read ``activity_labels.txt`` and, for train and
test each, ``y_*.txt``, ``subject_*.txt`` and of ``Inertial Signals`` the acceleration with gravity
(``total_acc_x_*.txt``, y and z, in units of g) and the angular velocity (``body_gyro_x_*.txt``, y
and z, in radians a second): 128 readings a row, at 50 Hz, of windows that overlap by half.

Rows, people and the published split are those of `har`. Every channel is normalised by its mean and
standard deviation over the training rows. A model of one input sees the acceleration; one of
several sees both, at clients of one kind each where the partition says `modalities`.

Memory: the inner zip (60 MB), and a part's signals twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fl.data.dataset import Modality
from fl.data.datasets.har import ACTIVITY_NAMES, ARCHIVE, HAR, SUBSETS, read_tables, write_people
from fl.data.normalisation import nonzero_deviations
from fl.data.prepared import Writer

READINGS, AXES = 128, "xyz"
GYROSCOPE = "input_gyroscope"
SIGNALS = {"x": "total_acc", GYROSCOPE: "body_gyro"}
"""By array, how the files of its channels begin."""


@dataclass(frozen=True)
class HARSignals(HAR):
    """Acceleration and angular velocity in 2.56 seconds, in six classes, by person.

    Attributes:
        complete: Check the archive against its published checksum and sizes; false reads a subset.
    """

    shape: ClassVar[tuple[int, ...]] = (len(AXES), READINGS)
    modalities: ClassVar[tuple[Modality, ...]] = (
        Modality("accelerometer", "x", shape),
        Modality("gyroscope", GYROSCOPE, shape),
    )

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x and input_gyroscope float32 ``[10299, 3, 128]``, and what `har` writes beside."""
        names = [
            f"Inertial Signals/{file_prefix}_{axis}"
            for file_prefix in SIGNALS.values()
            for axis in AXES
        ]
        tables = read_tables(raw / ARCHIVE.name, dict.fromkeys(names, READINGS))
        write_people(tables, writer, self.complete)
        normalisations = {}
        for array, file_prefix in SIGNALS.items():
            signals = {
                name: np.stack([tables[f"{file_prefix}_{axis}_{name}"] for axis in AXES], axis=1)
                for name in SUBSETS
            }
            normalisations[array] = _measure_normalisation(signals["train"])
            writer.save(array, np.concatenate([*signals.values()]).astype(np.float32))
        first = normalisations.pop("x")
        writer.describe(ACTIVITY_NAMES, normalisation=first, inputs=normalisations)


def _measure_normalisation(series: np.ndarray) -> dict[str, Any]:
    """Mean and standard deviation of each channel of series ``[n, channels, length]``."""
    mean, count = series.mean(axis=(0, 2)), series.shape[0] * series.shape[2]
    sd = nonzero_deviations(series.var(axis=(0, 2)), mean, count)
    return {"scale": 1.0, "mean": mean.tolist(), "sd": sd.tolist()}
