"""Tweets in Sentiment140's zip of two csv files, as its site and TensorFlow Datasets describe them.

Latin-1, no header, every cell in quotes: polarity, id, date, query, user, text.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import pack

Row = tuple[str, str, str]
"""Polarity, user, text."""

TRAINING = "training.1600000.processed.noemoticon.csv"
TEST = "testdata.manual.2009.06.14.csv"

PARAMS = {"complete": False, "min_samples": 3, "vocabulary": 8}
BROKEN = {
    "another polarity": (
        {"training": [("4", "tom", "x"), ("3", "tom", "y")]},
        r"zip: training\.16.*: row 2 has 6 cells and begins with \['3'.*Allowed: six, .* 0, 2 or 4",
    ),
}
STUDY = {
    "partitions": ["natural"],
    "models": [{"text-cnn": {"tokens": 9, "width": 8, "channels": 4}}],
}
USERS = {"tom": 5, "ann": 4, "zoë": 3, "seldom": 2}
"""Tweets of each user in the training file."""


def rows() -> tuple[list[Row], list[Row]]:
    """The tweets of both files; those of the users alternate."""
    training = [
        ("4" if (place + turn) % 2 else "0", user, f"@you it's {turn} o'clock, {user} is fine!")
        for turn in range(max(USERS.values()))
        for place, (user, count) in enumerate(USERS.items())
        if turn < count
    ]
    test = [("2", "ann", "Neither here nor there"), ("4", "guest", "a b c")]
    return training, test


def write(folder: Path, training: list[Row] | None = None) -> Made:
    """Write ``trainingandtestdata.zip`` into ``folder``."""
    made, test = rows()
    files = {TRAINING: training or made, TEST: test}
    members = {name: _csv(tweets) for name, tweets in files.items()}
    pack(folder / "trainingandtestdata.zip", members)
    # The eight commonest words of twelve tweets; names and numbers come last, by their spelling.
    known = {word: i for i, word in enumerate(["!", ",", "fine", "is", "it's", "o'clock", "you"])}
    tom = ["you", "it's", "3", "o'clock", ",", "tom", "is", "fine", "!"]
    tokens = [(known | {"tom": 7}).get(word, 8) for word in tom]
    return Made(
        samples=13,
        shape=(25,),
        classes=("bad", "good"),
        y=np.array([1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1, 0]),
        x={4: np.full(25, 8), 8: np.array(tokens + [8] * 16)},
        client=np.repeat([0, 1, 2], [5, 5, 3]),
        split=np.eye(13, dtype=int)[4],
    )


def _csv(tweets: list[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for number, (polarity, user, said) in enumerate(tweets):
        date = f"Mon Apr 06 22:19:{number % 60:02} PDT 2009"
        writer.writerow([polarity, 1467810369 + number, date, "NO_QUERY", user, said])
    return text.getvalue().encode("latin-1")
