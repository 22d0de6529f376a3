"""Human activity by telephone: a zip of UCI's in which the authors' zip lies.

Format: ``README.txt`` in the inner zip, which lists the files; ``activity_labels.txt`` has a number
and a name in each row. The inner zip was packed on a Mac, and holds its shadow files.
"""

from __future__ import annotations

import io
import zipfile

import numpy as np

from sources import Made

PARAMS = {"complete": False}
NAMES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
BROKEN = {
    "no subjects": ({"without": "subject_test"}, r"smartphones\.zip: lacks .*subject_test\.txt"),
    "a feature less": ({"features": 560}, r"X_test\.txt: rows of 560 numbers.*561 each"),
    "another activity": ({"activity": 7}, r"y_train\.txt has 7; allowed: 1 to 6"),
    "other activities": ({"names": NAMES[::-1]}, r"activity_labels\.txt: names other activities"),
    "a word": ({"word": "NaN"}, r"X_test\.txt: row 1 has what is no number"),
    "a subject less": ({"subjects": 17}, r"subject_train\.txt: 17 rows for 18 of y_train"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}
SIZES = {"train": 18, "test": 9}
PEOPLE = {"train": (30, 1, 5), "test": (4, 2, 9)}


def rows(x):
    return "".join("".join(f"{value: 16.7e}" for value in row) + "\n" for row in x)


def column(values):
    return "".join(f"{value}\n" for value in values)


def pack(folder, members):
    """The zip in a zip."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    name = "human+activity+recognition+using+smartphones.zip"
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("UCI HAR Dataset.names", "see README.txt")
        archive.writestr("UCI HAR Dataset.zip", inner.getvalue())


def write(folder, without="?", features=561, activity=None, names=NAMES, word=None, subjects=None):
    draw, members, x, y, who = np.random.default_rng(0), {}, {}, {}, {}
    labels = "".join(f"{n} {name}\n" for n, name in enumerate(names, 1))
    members["UCI HAR Dataset/activity_labels.txt"] = labels
    members["__MACOSX/UCI HAR Dataset/._activity_labels.txt"] = "\0\5\26\7"
    for part in ("test", "train"):
        n, at = SIZES[part], f"UCI HAR Dataset/{part}/"
        x[part] = np.round(draw.uniform(-1, 1, (n, features)), 4)
        y[part] = np.arange(n) % 6 + 1
        who[part] = np.repeat(PEOPLE[part], n // 3)
        text = rows(x[part])
        members[f"{at}X_{part}.txt"] = text.replace(text[1:16], f"{word:>15}", 1) if word else text
        members[f"{at}y_{part}.txt"] = column([activity or y[part][0], *y[part][1:]])
        members[f"{at}subject_{part}.txt"] = column(who[part][:subjects])
        members[f"{at}Inertial Signals/body_acc_x_{part}.txt"] = "0\n"
    pack(folder, {name: text for name, text in members.items() if without not in name})
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
