"""Exercises by smart watch: a wheel in which ``watch_dataset.npy`` is an array of one dictionary.

Format: ``seglearn/datasets.py``, which reads it; the pickle in the file has protocol 2.
"""

from __future__ import annotations

import io
import pickle

import numpy as np

from sources import Made
from sources.packing import pack

PARAMS = {"complete": False}
NAMES = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
MEMBER = "seglearn/data/watch_dataset.npy"
BROKEN = {
    "no series": ({"without": "watch"}, r"seglearn.*whl: has no member .*watch_dataset\.npy"),
    "no array": ({"spoil": "watch", "strange": "none"}, r"watch_dataset\.npy: is no NumPy file"),
    "other channels": ({"channels": ["ax"]}, r"names other exercises or channels"),
    "a label too many": ({"last": 7}, r"do not belong together"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, channels=("ax", "ay", "az", "wx", "wy", "wz"), last=6, **broken):
    draw, y, people = np.random.default_rng(0), np.arange(28) % 7, np.repeat([3, 8], 14)
    labels = np.append(y[:-1], last)
    series = [draw.normal(size=(149 + 50 * (i % 3), 6)) for i in range(28)]
    content = {
        "X": series,
        "y_labels": [*NAMES],
        "y": labels,
        "subject": people,
        "side": np.arange(28) % 2.0,
        "X_labels": [*channels],
    }
    array, out = np.array(content, object), io.BytesIO()
    header = {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(out, header)
    pickle.dump(array, out, protocol=2)
    pack(folder / "seglearn-1.2.5-py3-none-any.whl", {MEMBER: out.getvalue()}, **broken)
    counts = [1 + i % 3 for i in range(28)]
    # The first series gives one window, the second one two.
    return Made(
        samples=sum(counts),
        shape=(6, 100),
        classes=NAMES,
        y=np.repeat(y, counts),
        x={
            0: series[0][:100].T.astype(np.float32),
            2: series[1][50:150].T.astype(np.float32),
        },
        client=np.repeat(np.repeat([0, 1], 14), counts),
    )
