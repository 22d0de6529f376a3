"""The program that looks for headroom finds what was put into a study's table, and no more."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from tools.headroom import differences, gains

CLIENTS, DRAWS = 30, 2


def table(needs: np.ndarray, noise: float) -> pd.DataFrame:
    """Return the long table of an entry with two points; a client gains .2 at the one it needs."""
    random, rows = np.random.default_rng(0), []
    for draw, point, client, split in itertools.product(
        range(DRAWS), range(2), range(CLIENTS), ("val", "test")
    ):
        entry = {"partition": f"draw {draw}", "seed": draw, "method": "ft", "point": f"lr={point}"}
        value = 0.5 + 0.2 * (needs[client] == point) + random.normal(0, noise)
        where = {"run": f"{draw} {point}", "round": 1, "client": client, "split": split}
        rows.append(entry | where | {"value": value, "selected": point == 0})
    for draw, client, split in itertools.product(range(DRAWS), range(CLIENTS), ("val", "test")):
        entry = {"partition": f"draw {draw}", "seed": draw, "method": "none", "point": ""}
        where = {"run": f"{draw} none", "round": 1, "client": client, "split": split}
        rows.append(entry | where | {"value": 0.5, "selected": True})
    return pd.DataFrame(rows).assign(metric="accuracy", reported=True)


def test_clients_who_need_other_points() -> None:
    rows = table(np.arange(CLIENTS) // 5 % 2, 0.01)
    assert gains(rows, ["ft"]).mean() == pytest.approx(0.1, abs=0.01)
    assert gains(rows, ["ft"], group=5).mean() == pytest.approx(0.1, abs=0.01)
    assert gains(rows, ["ft"], group=0).mean() == 0
    assert gains(rows, ["ft", "none"], reference="none").mean() == pytest.approx(0.2, abs=0.01)


def test_clients_who_are_alike_gain_nothing_by_luck() -> None:
    assert gains(table(np.zeros(CLIENTS), 0.3), ["ft"]).mean() < 0.02


def test_entries_are_compared_at_their_selected_points() -> None:
    names, values = differences(table(np.zeros(CLIENTS), 0.0), "none")
    assert names == ["ft"]
    assert values == pytest.approx(np.full((1, CLIENTS, DRAWS), 0.2))
