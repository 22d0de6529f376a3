"""Remarks: a chosen value at the edge of its grid, a curve that still rises, an end at chance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from make_results import clients, entry, plan, planned, write_partition, write_plan, write_run

from fl.plan.study_plan import FEWEST_UNITS, few_units_note
from fl.report import claims
from fl.report.facts import gather
from fl.report.remarks import remarks
from fl.report.result_lines import results as result_lines


def told(folder: Path, runs: list[dict[str, Any]], rows: dict[str, Any], **choices: Any) -> str:
    for run in runs:
        of_run = rows[run["run"]]
        write_run(folder / "runs", run["run"], of_run, rounds=max(row[0] for row in of_run))
    write_plan(folder, plan(runs, **choices))
    return " ".join(remarks(gather("small", folder, folder / "runs")))


def curve(*values: float, metric: str = "accuracy") -> list[Any]:
    return [
        row
        for number, value in enumerate(values, 1)
        for row in clients([value, value], number, metric=metric)
    ]


FLAT = curve(0.4, 0.5, 0.6, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)


@pytest.mark.parametrize(
    ("grid", "best", "edge"),
    [
        ([0.01, 0.1, 1.0], 1.0, "lr = 1"),
        ([0.01, 0.1, 1.0], 0.01, "lr = 0.01"),
        ([0.01, 0.1, 1.0], 0.1, ""),
        ([0.0, 0.1, 1.0], 0.0, ""),
        ([0.1], 0.1, ""),
    ],
)
def test_a_value_at_the_edge_of_its_grid(
    tmp_path: Path, grid: list[float], best: float, edge: str
) -> None:
    runs = [entry(f"r{i}", "fedavg", point={"lr": lr}) for i, lr in enumerate(grid)]
    rows = {
        f"r{i}": [*FLAT, *clients([0.9 if lr == best else 0.5] * 2, 10, "val")]
        for i, lr in enumerate(grid)
    }
    text = told(tmp_path, runs, rows)
    assert (edge in text and "At the edge" in text) if edge else text == ""


def test_the_edge_is_counted_over_draws(tmp_path: Path) -> None:
    runs, rows = [], {}
    for draw in range(3):
        for i, lr in enumerate((0.01, 0.1, 1.0)):
            name = f"r{draw}{i}"
            place = f"dirichlet(clients=2, alpha=0.3, seed={draw})"
            runs.append(entry(name, "fedavg", point={"lr": lr}, partition=place))
            chosen = lr == (0.1 if draw == 0 else 1.0)
            rows[name] = [*FLAT, *clients([0.9 if chosen else 0.5] * 2, 10, "val")]
    assert "lr = 1.0, in 2 of 3" in told(tmp_path, runs, rows)


@pytest.mark.parametrize(
    ("metric", "values", "rises"),
    [
        ("accuracy", [0.1 * i for i in range(1, 10)], True),
        ("accuracy", [0.5, 0.8, 0.8, 0.8, 0.8, 0.8], False),
        ("accuracy", [0.5, 0.504, 0.508, 0.512], False),
        ("accuracy", [0.8, 0.7, 0.6, 0.5, 0.4], False),
        ("loss", [2.0, 1.5, 1.0, 0.7, 0.4], True),
        ("loss", [2.0, 0.4, 0.4, 0.4, 0.4], False),
        ("accuracy", [0.1, 0.9], False),
    ],
)
def test_a_curve_that_still_rises(
    tmp_path: Path, metric: str, values: list[float], rises: bool
) -> None:
    rows = {"r": curve(*values, metric=metric)}
    text = told(tmp_path, [entry("r", "fedavg")], rows, metric=metric)
    assert ("Still " in text and "fedavg" in text) == rises


@pytest.mark.parametrize(
    ("loss", "is_told"), [(0.5, False), (40.0, False), (101.0, True), (1e5, True)]
)
def test_an_enormous_loss(tmp_path: Path, loss: float, is_told: bool) -> None:
    rows = {"r": [*FLAT, *curve(*[loss] * 10, metric="loss")]}
    text = told(tmp_path, [entry("r", "fedavg")], rows)
    assert ("smaller lr" in text and "fedavg" in text) == is_told


def test_remarks_are_in_the_terminal_and_in_no_line_of_a_study_without_any(tmp_path: Path) -> None:
    told(tmp_path, [entry("r", "fedavg")], {"r": curve(0.1, 0.3, 0.5, 0.7)})
    shown = " ".join(result_lines(gather("small", tmp_path, tmp_path / "runs")))
    assert "Still rising" in shown and "more rounds" in shown


@pytest.mark.parametrize(
    ("seeds", "draws", "methods", "units"),
    [
        (3, 1, 2, "3 seeds"),
        (5, 1, 2, "5 seeds"),
        (6, 1, 2, ""),
        (1, 1, 2, ""),
        (3, 1, 1, ""),
        (1, 4, 2, "4 draws"),
        (3, 6, 2, ""),
    ],
)
def test_too_few_units_are_told_before_training(
    seeds: int, draws: int, methods: int, units: str
) -> None:
    runs = [
        entry(
            f"r{seed}{draw}{method}",
            f"m{method}",
            seed=seed,
            partition=f"dirichlet(clients=2, seed={draw})",
        )
        for seed in range(seeds)
        for draw in range(draws)
        for method in range(methods)
    ]
    note = few_units_note(planned(plan(runs, seeds=[*range(seeds)])))
    assert (units in note and "6" in note) if units else note == ""


@pytest.mark.parametrize(
    ("accuracy", "loss", "is_told"),
    [(0.25, 1.39, True), (0.25, 30.0, True), (0.5, 1.39, False), (0.25, 0.7, False)],
)
def test_an_end_at_chance(tmp_path: Path, accuracy: float, loss: float, is_told: bool) -> None:
    """Four classes with equal shares: the majority class has .25, and chance a loss of log 4."""
    counts = dict.fromkeys(("train", "test"), [[5] * 4] * 2)
    write_partition(tmp_path, "part", counts, "abcd")
    rows = {"r": [*curve(*[accuracy] * 4), *curve(*[loss] * 4, metric="loss")]}
    text = told(tmp_path, [entry("r", "fedavg")], rows)
    assert ("constant prediction" in text) == is_told


def test_the_fewest_draws_of_a_claim_are_those_of_the_test() -> None:
    assert claims.smallest_p(FEWEST_UNITS) <= claims.LEVEL < claims.smallest_p(FEWEST_UNITS - 1)
