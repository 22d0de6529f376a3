"""Claims on time and bytes to a value, on runs that are written by hand, some of which miss it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from make_results import clients, entry, plan, write_plan, write_run

from fl.base.schema import CLOCK, DIVERGED, GLOBAL, SERVER_ROW
from fl.report import claims, clock_claims, clock_tables, result_files, tables
from fl.report.facts import Facts, gather

SEEDS = 6
"""Seeds of each method: the smallest p-value is 2 / 64."""
DEVICES = {"spec": {"devices": [{"name": "equal"}]}}


def write_timed(store: Path, run: str, values: Sequence[float], pace: float, **record: Any) -> None:
    """Write a run that is evaluated in each round, of ``pace`` seconds and 10 * ``pace`` bytes."""
    rows = [row for t, value in enumerate(values, 1) for row in clients([value], round=t)]
    for t in range(1, len(values) + 1):
        clock = {"seconds": pace * t, "bytes_down": 10 * pace, "bytes_up": 0.0, "slowest": pace}
        clock |= {"lost": 0.0, "dropped": 0.0, "idle": 0.0}
        rows += [(t, SERVER_ROW, CLOCK, GLOBAL, name, v, 1) for name, v in clock.items()]
    costs = {"bytes_down": 10 * pace, "bytes_up": 0.0, "flops": 1.0, "participants": 1}
    costs |= {"state_client": 0, "state_server": 0, "traffic": [[len(values), 1, 0]]}
    write_run(store, run, rows, costs=costs, **{**DEVICES, **record})


def curve(reached: int | None, rounds: int = 20) -> list[float]:
    """Values of a run that reaches 0.8 in a round, or never."""
    return [0.8 if reached and t >= reached else 0.5 for t in range(1, rounds + 1)]


Runs = dict[str, list[tuple[list[float], float]]]
"""Curve and seconds of a round of each run, by method."""


def facts_of(place: Path, methods: Runs, **choices: Any) -> Facts:
    """A study of methods, with a run for each seed."""
    planned = []
    for method, runs in methods.items():
        for seed, (values, pace) in enumerate(runs):
            write_timed(place / "runs", f"{method}{seed}", values, pace)
            planned.append(entry(f"{method}{seed}", method, seed=seed))
    write_plan(place, plan(planned, **{"baseline": "slow", "goal": 0.8, **choices}))
    return gather("small", place, place / "runs")


def claimed(facts: Facts, column: str = "seconds") -> dict[str, Any]:
    """The only comparison of a study, of ``quick`` with ``slow``."""
    times = clock_claims.times_to_goal(facts, facts.timed_curves)
    [row] = clock_claims.goal_claims(facts, times, column).to_dict("records")
    assert (row["method"], row["other"], row["unit"]) == ("quick", "slow", claims.SEED)
    return row


def test_a_ratio_of_times_is_claimed_by_its_least_value(tmp_path: Path) -> None:
    """Round 5 of a method with rounds of a second, round 10 of one with two seconds."""
    facts = facts_of(tmp_path, {"quick": [(curve(5), 1.0)] * SEEDS, "slow": [(curve(10), 2.0)] * 6})
    row = claimed(facts)
    assert row["ratio"] == "4"  # 20 s and 5 s.
    assert row["difference"] == pytest.approx(math.log(18 / 5))  # Round 9 is below the value.
    assert row["verdict"] == claims.AHEAD and row["p_corrected"] == 2 / 2**SEEDS
    assert claimed(facts, "bytes")["ratio"] == "4"


def test_one_run_that_misses_the_value_forbids_a_claim_in_favour_of_its_method(
    tmp_path: Path,
) -> None:
    quick = [(curve(2), 1.0)] * 5 + [(curve(None), 1.0)]
    row = claimed(facts_of(tmp_path, {"quick": quick, "slow": [(curve(19), 9.0)] * SEEDS}))
    assert row["verdict"] == claims.OPEN and row["ratio"].startswith("< ")


def test_a_run_that_diverges_forbids_it_too(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"quick": [(curve(2), 1.0)] * 7, "slow": [(curve(19), 9.0)] * 7})
    assert claimed(facts)["verdict"] == claims.AHEAD
    is_lost = (facts.runs["method"] == "quick") & (facts.runs["seed"] == 6)
    runs = facts.runs.assign(state=facts.runs["state"].mask(is_lost, DIVERGED))
    assert claimed(replace(facts, runs=runs))["verdict"] == claims.OPEN


def test_who_never_gets_there_counts_with_the_whole_time(tmp_path: Path) -> None:
    """The least time of a run without the value is that of all its rounds."""
    slow = [(curve(None), 2.0)] * 3 + [(curve(10), 2.0)] * 3
    row = claimed(facts_of(tmp_path, {"quick": [(curve(5), 1.0)] * SEEDS, "slow": slow}))
    assert row["verdict"] == claims.AHEAD and row["ratio"].startswith("> ")
    assert row["difference"] == pytest.approx((math.log(40 / 5) + math.log(18 / 5)) / 2)


def test_a_run_that_ends_before_the_other_gets_there_is_no_claim(tmp_path: Path) -> None:
    """Runs of 3 seconds without the value might have had it at 4, where the other has it at 5."""
    slow = [(curve(None, rounds=3), 1.0)] * SEEDS
    row = claimed(facts_of(tmp_path, {"quick": [(curve(5), 1.0)] * SEEDS, "slow": slow}))
    assert row["verdict"] == claims.OPEN


def test_where_both_miss_it_nothing_is_tested(tmp_path: Path) -> None:
    quick = [(curve(2), 1.0)] * 5 + [(curve(None), 1.0)]
    slow = [(curve(None), 1.0)] * 5 + [(curve(2), 1.0)]
    row = claimed(facts_of(tmp_path, {"quick": quick, "slow": slow}))
    assert row["verdict"] == claims.UNINFORMATIVE and row["reason"] == clock_claims.BOTH_MISS
    assert math.isnan(row["p"])


def test_the_other_way_round_the_method_is_behind(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"quick": [(curve(10), 2.0)] * 6, "slow": [(curve(5), 1.0)] * 6})
    row = claimed(facts)
    assert row["verdict"] == claims.BEHIND
    assert row["difference"] == pytest.approx(math.log(5 / 18))


def test_rare_evaluations_are_no_disadvantage_to_claim(tmp_path: Path) -> None:
    """A method that is evaluated once, at 10 seconds, may have had the value before 5 seconds."""
    runs = {"quick": [(curve(5), 1.0)] * SEEDS, "slow": [([0.8], 10.0)] * SEEDS}
    assert claimed(facts_of(tmp_path, runs))["verdict"] == claims.OPEN


def test_a_larger_time_of_a_run_without_the_value_makes_no_claim_weaker(tmp_path: Path) -> None:
    """With five runs in favour and one against, whatever the time of one of those five."""
    quick = [(curve(5), 1.0)] * 5 + [(curve(12), 1.0)]
    p = []
    for rounds in (12, 60, 600):
        slow = [(curve(None, rounds), 1.0), *[(curve(18), 1.0)] * 4, (curve(5), 1.0)]
        p.append(claimed(facts_of(tmp_path / str(rounds), {"quick": quick, "slow": slow}))["p"])
    assert p == sorted(p, reverse=True)


def test_the_table_says_what_may_be_claimed(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, {"quick": [(curve(5), 1.0)] * SEEDS, "slow": [(curve(10), 2.0)] * 6})
    table = clock_claims.goal_claims_table(facts)
    assert table is not None
    [row] = table.rows
    assert [cell.text for cell in row.cells][:3] == ["4 (at least 3.6)", "0.031", claims.AHEAD]
    assert row.cells[-1].text == "6 seeds"
    measured = clock_tables.clock_table(facts)
    assert measured is not None and "accuracy 80.0 %" in measured.columns[1].name


def test_draws_are_the_units_where_a_setting_has_several(tmp_path: Path) -> None:
    planned = []
    for method, pace in (("quick", 1.0), ("slow", 2.0)):
        for draw in range(SEEDS):
            write_timed(tmp_path / "runs", f"{method}{draw}", curve(9), pace)
            text = f"dirichlet(clients=2, alpha=0.3, seed={draw})"
            planned.append(entry(f"{method}{draw}", method, partition=text))
    write_plan(tmp_path, plan(planned, baseline="slow"))
    facts = gather("small", tmp_path, tmp_path / "runs")
    times = clock_claims.times_to_goal(facts, facts.timed_curves)
    [row] = clock_claims.goal_claims(facts, times, "seconds").to_dict("records")
    assert (row["unit"], row["n"], row["verdict"]) == (claims.DRAW, SEEDS, claims.AHEAD)
    assert row["difference"] == pytest.approx(math.log(16 / 9))


def test_time_and_bytes_of_a_start_are_counted(tmp_path: Path) -> None:
    """Fine-tuning for two rounds of 3 seconds begins with the model of 20 seconds."""
    write_timed(tmp_path / "runs", "avg", curve(None), 1.0)
    fine = [0.5, 0.8]
    write_timed(tmp_path / "runs", "ft", fine, 3.0, start="avg")
    write_timed(tmp_path / "runs", "timeless", fine, 3.0, start="avg", spec={})
    names = ("avg", "ft", "timeless")
    write_plan(tmp_path, plan([entry(name, name) for name in names], goal=0.8))
    facts = gather("small", tmp_path, tmp_path / "runs")
    before = facts.runs.set_index("run")["simulated_before"]
    assert before["avg"] == 0 and before["ft"] == 20 and pd.isna(before["timeless"])
    times = clock_claims.times_to_goal(facts, facts.timed_curves)
    ft = times.reset_index().set_index("run").loc["ft"]
    assert (ft["missed_seconds"], ft["goal_seconds"]) == (23, 26)
    assert (ft["missed_bytes"], ft["goal_bytes"]) == (230, 260)
    table = clock_tables.clock_table(facts)
    assert table is not None and [row.head for row in table.rows] == ["avg", "ft"]
    clock = clock_tables.clock_rows(facts).groupby("run")[["seconds", "bytes"]].max()
    assert clock.loc["ft"].tolist() == [26, 260]


def test_tables_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They have no column of a start's simulated time, which fresh runs do not have."""
    facts = facts_of(tmp_path, {"quick": [(curve(5), 1.0)], "slow": [(curve(10), 2.0)]})
    path = tmp_path / "tables" / "small.runs.parquet"
    old = pd.read_parquet(path).drop(columns="simulated_before")
    stamp = {"plan": facts.plan.hash, "complete": True, "uncounted": False}
    path.write_bytes(tables.parquet(old, stamp))
    both = result_files.read_current(facts.plan, tmp_path)
    assert both is not None
    assert both[1]["simulated_before"].equals(facts.runs["simulated_before"])
