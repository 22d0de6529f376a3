"""Human activity by telephone, its raw signals: the archive of `sources.har`, with other members.

Format: ``README.txt`` in the inner zip: each file of ``Inertial Signals`` has one axis of one
sensor, a window of 128 readings in each row.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.har import NAMES, PEOPLE, SIZES, column, pack, rows

PARAMS = {"complete": False}
FOLDER = "UCI HAR Dataset/"
GYRO = "body_gyro_z_test"
BROKEN = {
    "no gyroscope": ({"without": GYRO}, rf"smartphones\.zip: lacks .*{GYRO}\.txt"),
    "a reading less": ({"readings": 127}, r"_train\.txt: rows of 127 numbers.*128 each"),
    "a window less": (
        {"windows": 8},
        rf"{GYRO}\.txt: 8 rows for 9 of y_test",
    ),
}
STUDY = {"models": [{"fusion": {"channels": [4], "features": 8}}]}
SIGNALS = {"x": "total_acc", "input_gyroscope": "body_gyro"}


def write(folder, without="?", readings=128, windows=None):
    draw, members = np.random.default_rng(1), {}
    labels = "".join(f"{n} {name}\n" for n, name in enumerate(NAMES, 1))
    members[f"{FOLDER}activity_labels.txt"] = labels
    signals = {array: {} for array in SIGNALS}
    y, who = {}, {}
    for part, n in SIZES.items():
        at = f"{FOLDER}{part}/"
        y[part], who[part] = np.arange(n) % 6 + 1, np.repeat(PEOPLE[part], n // 3)
        members[f"{at}y_{part}.txt"] = column(y[part])
        members[f"{at}subject_{part}.txt"] = column(who[part])
        members[f"{at}X_{part}.txt"] = "not read\n"
        members[f"{at}Inertial Signals/body_acc_x_{part}.txt"] = "not read\n"
        for array, kind in SIGNALS.items():
            # Each of an activity and a sensor moves at a rate of its own, so that it can be learnt.
            rate = y[part][:, None, None] * (1 if array == "x" else 2) / 20
            wave = np.sin(rate * np.arange(readings) + draw.uniform(0, 6, (n, 3, 1)))
            values = np.round(wave + draw.normal(0, 0.1, wave.shape), 5)
            signals[array][part] = values
            for place, axis in enumerate("xyz"):
                name = f"{kind}_{axis}_{part}"
                text = rows(values[: windows if name == GYRO else None, place])
                members[f"{at}Inertial Signals/{name}.txt"] = text
    pack(folder, {name: text for name, text in members.items() if without not in name})
    whole = {
        array: np.concatenate([parts["train"], parts["test"]]).astype(np.float32)
        for array, parts in signals.items()
    }
    known = {
        array: {row: values[row] for row in (0, 17, 18, 26)} for array, values in whole.items()
    }
    both = [np.concatenate([kind["train"], kind["test"]]) for kind in (y, who)]
    return Made(
        samples=27,
        shape=(3, readings),
        classes=NAMES,
        y=both[0] - 1,
        x=known.pop("x"),
        inputs=known,
        client=np.searchsorted([1, 2, 4, 5, 9, 30], both[1]),
        split=np.repeat([0, 1], [18, 9]),
    )
