"""Human activity by telephone, its raw signals: the archive of `sources.har`, with other members.

Format: ``README.txt`` in the inner zip: each file of ``Inertial Signals`` has one axis of one
sensor, a window of 128 readings in each row.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.har import LABELS, NAMES, PEOPLE, SIZES, column, nested, rows

PARAMS = {"complete": False}
FOLDER = "UCI HAR Dataset/"
GYRO = "body_gyro_z_test"
BROKEN = {
    "no gyroscope": ({"without": GYRO}, rf"smartphones\.zip: lacks .*{GYRO}\.txt"),
}
STUDY = {"models": [{"fusion": {"channels": [4], "features": 8}}]}
SIGNALS = {"x": "total_acc", "input_gyroscope": "body_gyro"}


def write(folder, **broken):
    draw, members = np.random.default_rng(1), {}
    members[f"{FOLDER}activity_labels.txt"] = LABELS
    signals = {array: {} for array in SIGNALS}
    y, who = {}, {}
    for group, n in SIZES.items():
        at = f"{FOLDER}{group}/"
        y[group], who[group] = np.arange(n) % 6 + 1, np.repeat(PEOPLE[group], n // 3)
        members[f"{at}y_{group}.txt"] = column(y[group])
        members[f"{at}subject_{group}.txt"] = column(who[group])
        members[f"{at}X_{group}.txt"] = "not read\n"
        members[f"{at}Inertial Signals/body_acc_x_{group}.txt"] = "not read\n"
        for array, kind in SIGNALS.items():
            # Each of an activity and a sensor moves at a rate of its own, so that it can be learnt.
            rate = y[group][:, None, None] * (1 if array == "x" else 2) / 20
            wave = np.sin(rate * np.arange(128) + draw.uniform(0, 6, (n, 3, 1)))
            values = np.round(wave + draw.normal(0, 0.1, wave.shape), 5)
            signals[array][group] = values
            for place, axis in enumerate("xyz"):
                name = f"{at}Inertial Signals/{kind}_{axis}_{group}.txt"
                members[name] = rows(values[:, place])
    nested(folder, members, **broken)
    whole = {
        array: np.concatenate([sets["train"], sets["test"]]).astype(np.float32)
        for array, sets in signals.items()
    }
    known = {
        array: {row: values[row] for row in (0, 17, 18, 26)} for array, values in whole.items()
    }
    both = [np.concatenate([kind["train"], kind["test"]]) for kind in (y, who)]
    return Made(
        samples=27,
        shape=(3, 128),
        classes=NAMES,
        y=both[0] - 1,
        x=known.pop("x"),
        inputs=known,
        client=np.searchsorted([1, 2, 4, 5, 9, 30], both[1]),
        split=np.repeat([0, 1], [18, 9]),
    )
