"""AG News: two csv files, as the readme of Zhang et al.'s archive describes them.

Three columns (class index from 1, title, description), all in double quotes, inner ones doubled; a
new line within a text is a backslash and an n.
"""

from __future__ import annotations

import csv
import io

import numpy as np

from sources import Made

Row = tuple[str, str, str]

PARAMS = {"complete": False, "vocabulary": 6, "length": 8}
BROKEN = {
    "another class": (
        {"first": ("5", "a", "b")},
        r"train\.csv: row 1 has 3 cells and begins with \['5'\]",
    ),
    "an endless cell": ({"first": ("1", "a", "b" * 200_000)}, r"is no CSV file .*field larger"),
}
STUDY = {"models": [{"text-cnn": {"tokens": 7, "width": 8, "channels": 4}}]}
TRAIN: list[Row] = [
    (str(n % 4 + 1), f'The "big" game, no. {n}', f"Reuters - It's the game\\nof the {n}!")
    for n in range(20)
]
TEST: list[Row] = [("3", "Stocks", "The game of the markets"), ("1", "A", "the war?")]


def write(folder, first=None):
    for name, rows in (("train", [*filter(None, [first]), *TRAIN]), ("test", TEST)):
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
        (folder / f"{name}.csv").write_text(text.getvalue(), encoding="utf-8")
    # "the" three times a row, "game" twice, then once each by spelling: ! , . big
    the, game, _, comma, stop, big, other = range(7)
    return Made(
        samples=22,
        shape=(8,),
        classes=("World", "Sports", "Business", "Sci/Tech"),
        y=np.array([int(row[0]) - 1 for row in (*TRAIN, *TEST)]),
        x={
            0: np.array([the, big, game, comma, other, stop, other, other]),
            20: np.array([other, the, game, other, the, other, other, other]),
            21: np.array([other, the, *[other] * 6]),
        },
        split=np.repeat([0, 1], [20, 2]),
    )
