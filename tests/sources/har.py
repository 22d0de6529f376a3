"""Human activity by telephone: a zip of UCI's in which the authors' zip lies.

Format: ``README.txt`` in the inner zip, which lists the files; ``activity_labels.txt`` has a number
and a name in each row. The inner zip was packed on a Mac, and holds its shadow files.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
NAMES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
BROKEN = {
    "no subjects": ({"without": "subject_test"}, r"smartphones\.zip: lacks .*subject_test\.txt"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}
LABELS = "".join(f"{n} {name}\n" for n, name in enumerate(NAMES, 1))
SIZES = {"train": 18, "test": 9}
PEOPLE = {"train": (30, 1, 5), "test": (4, 2, 9)}


def rows(x):
    return "".join("".join(f"{value: 16.7e}" for value in row) + "\n" for row in x)


def column(values):
    return "".join(f"{value}\n" for value in values)


def nested(folder, members, **broken):
    """The zip in a zip."""
    inner = folder / "inner.zip"
    pack(inner, members, **broken)
    name = "human+activity+recognition+using+smartphones.zip"
    whole = {"UCI HAR Dataset.names": "see README.txt", "UCI HAR Dataset.zip": inner.read_bytes()}
    pack(folder / name, whole)
    inner.unlink()


def write(folder, **broken):
    draw, members, x, y, who = np.random.default_rng(0), {}, {}, {}, {}
    members["UCI HAR Dataset/activity_labels.txt"] = LABELS
    members["__MACOSX/UCI HAR Dataset/._activity_labels.txt"] = "\0\5\26\7"
    for group in ("test", "train"):
        n, at = SIZES[group], f"UCI HAR Dataset/{group}/"
        x[group] = np.round(draw.uniform(-1, 1, (n, 561)), 4)
        y[group] = np.arange(n) % 6 + 1
        who[group] = np.repeat(PEOPLE[group], n // 3)
        members[f"{at}X_{group}.txt"] = rows(x[group])
        members[f"{at}y_{group}.txt"] = column(y[group])
        members[f"{at}subject_{group}.txt"] = column(who[group])
        members[f"{at}Inertial Signals/body_acc_x_{group}.txt"] = "0\n"
    nested(folder, members, **broken)
    both = [np.concatenate([kind["train"], kind["test"]]) for kind in (x, y, who)]
    return Made(
        samples=27,
        shape=(561,),
        classes=NAMES,
        y=both[1] - 1,
        x={row: both[0][row].astype(np.float32) for row in (0, 17, 18, 26)},
        client=np.searchsorted([1, 2, 4, 5, 9, 30], both[2]),
        split=np.repeat([0, 1], [18, 9]),
    )
