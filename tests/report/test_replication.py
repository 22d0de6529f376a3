"""Verdicts of a track beside those of other draws of it."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from fl.report import tracks
from tools import replication


def lines(gains: dict[str, float], seed: int) -> pd.DataFrame:
    """Nine draws of personalised methods that gain so much over the baseline, give or take .01."""
    random, draws = np.random.default_rng(seed), range(9)
    records = [
        {
            **{key: "" for key, kind in tracks.COLUMNS.items() if kind == "string"},
            **{key: 0.0 for key, kind in tracks.COLUMNS.items() if kind == "float64"},
            **{"track": "t", "method": method, "stage": "personal", "draw": draw},
            **{"accuracy": 0.5 + gain + random.normal(0, 0.01), "errors": 500.0, "floor": 900.0},
        }
        for method, gain in {tracks.BASELINE: 0.0, **gains}.items()
        for draw in draws
    ]
    return pd.DataFrame(records).astype(tracks.COLUMNS)


def test_verdicts_that_hold_that_turn_and_that_are_new_are_counted() -> None:
    first = lines({"a": 0.2, "b": 0.2, "c": -0.2, "d": 0.0}, 0)
    second = lines({"a": 0.2, "b": -0.2, "c": 0.0, "d": 0.2}, 1)
    table = replication.verdicts(first, second)
    assert list(table["method"]) == ["a", "b", "c", "d"]
    assert list(table["verdict_first"]) == ["ahead", "ahead", "behind", "not told apart"]
    assert list(table["verdict_second"]) == ["ahead", "behind", "not told apart", "ahead"]
    claims, of, again, gone, opposite, new = re.findall(r"\d+", replication.summary(table))
    assert (claims, of) == ("3", "4") and (again, gone, opposite, new) == ("1", "1", "1", "1")
    twice = re.findall(r"\d+", replication.summary(replication.verdicts(first, first)))
    assert twice == ["3", "4", "3", "0", "0", "0"], "nothing is lost or new on the same draws"
