"""Tables over simulated time, from rows of a study that are written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from matplotlib.axes import Axes

import fl
from fl.base.errors import DataError
from fl.base.schema import CLOCK, CLOCK_METRICS, SERVER_ROW
from fl.base.units import precise_duration
from fl.report import clock_claims, clock_tables, plots
from fl.report.facts import Facts


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """A study of a waiting server and a buffered one, both with the same devices."""
    place = tmp_path_factory.mktemp("clock")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        devices = {"equal": {"speed": 1e7}}
        server = {"fedbuff": {"size": 2, "concurrency": 4}}
        result = fl.run(
            dataset="digits",
            partition={"dirichlet": {"clients": 6, "alpha": 0.5}},
            model={"mlp": {"hidden": [8]}},
            methods={
                "fedavg": {"devices": devices},
                "buffered": {"method": "fedavg", "devices": devices, "asynchronous": server},
            },
            training={"rounds": 6, "local_epochs": 1, "lr": 0.1},
            seeds=2,
        )
        return result._facts()


def test_each_round_has_its_clock(facts: Facts) -> None:
    rows = facts.rows[facts.rows["split"] == CLOCK]
    assert {*rows["metric"]} == {*CLOCK_METRICS}
    assert {*rows["client"]} == {SERVER_ROW}
    assert (rows.groupby(["run", "metric"], observed=True)["round"].nunique() == 6).all()
    seconds = rows[rows["metric"] == "seconds"].sort_values(["run", "round"])
    assert (seconds.groupby("run", observed=True)["value"].diff().dropna() > 0).all()


def test_time_to_a_goal_is_that_of_the_first_evaluated_round(facts: Facts) -> None:
    lines = facts.timed_curves
    means = lines.groupby(["method", "run"], observed=True)["value"].last().groupby("method").mean()
    goal = clock_claims.GOAL * means.max()
    times = clock_claims.times_to_goal(facts, lines).reset_index().set_index("run")
    for run, own in lines.groupby("run", observed=True):
        reached = own[own["value"] >= goal]
        assert times.loc[run, "reaches"] == bool(len(reached))
        expected = reached["seconds"].min() if len(reached) else own["seconds"].max()
        assert times.loc[run, "goal_seconds"] == expected


def test_at_equal_time_each_run_counts_with_its_last_round_until_then(facts: Facts) -> None:
    lines = facts.timed_curves
    limit = lines.groupby("run", observed=True)["seconds"].max().min()
    at = lines[lines["seconds"] <= limit].sort_values("round").groupby(["method", "run"]).last()
    expected = 100 * at["value"].groupby("method").mean()
    [table, *_] = clock_tables.equal_tables(facts)
    shown = {row.head: float(row.cells[0].text.split(" ± ")[0]) for row in table.rows[:2]}
    for method, value in expected.items():
        assert shown[facts.methods[str(method)]] == pytest.approx(value, abs=0.05)


def test_the_shortest_runs_are_those_that_end_first(facts: Facts) -> None:
    """A longer run may have been evaluated at the same number of bytes."""
    ends = facts.timed_curves.groupby("method")["seconds"].max()
    [by_time, paired, *_] = clock_tables.equal_tables(facts)
    assert f"the shortest one ends ({facts.methods[str(ends.idxmin())]})" in by_time.note
    assert paired.name == "equal-time-paired"
    equal_bytes = facts.timed_curves.assign(bytes=lambda table: table["round"])
    longer = facts.methods[str(ends.idxmax())]
    study = replace(facts)
    study.__dict__["timed_curves"] = equal_bytes[
        (equal_bytes["method"] == ends.idxmax()) | (equal_bytes["round"] <= 4)
    ]
    [by_bytes] = [t for t in clock_tables.equal_tables(study) if t.name == "equal-bytes"]
    assert f"({longer}" not in by_bytes.note and f", {longer}" not in by_bytes.note


def test_times_have_three_digits() -> None:
    texts = [precise_duration(s) for s in (0.04213, 6.764, 131.4, 999.7, 6700, 200_000)]
    assert texts == ["0.0421 s", "6.76 s", "131 s", "0.278 h", "1.86 h", "2.31 days"]


def test_a_plot_over_simulated_time(facts: Facts) -> None:
    axes = plots.plot(facts, "time", facts.settings)
    assert isinstance(axes, Axes)
    assert axes.get_xlabel() == plots.TIME_LABEL
    end = facts.timed_curves["seconds"].max()
    assert 0 < max(line.get_xdata()[-1] for line in axes.lines) <= end
    plain = replace(facts, rows=facts.rows[facts.rows["split"] != CLOCK])
    with pytest.raises(DataError, match="no run has devices"):
        plots.plot(plain, "time", plain.settings)


def test_the_report_has_the_figure_and_the_tables(facts: Facts) -> None:
    table = clock_tables.clock_table(facts)
    figure = clock_tables.clock_figure(facts)
    assert table is not None and len(table.rows) == 2
    assert figure is not None and len(figure.panels) == 1


def test_a_study_without_devices_has_none(facts: Facts) -> None:
    plain = replace(facts, rows=facts.rows[facts.rows["split"] != CLOCK])
    assert clock_tables.clock_table(plain) is None
    assert clock_tables.clock_figure(plain) is None
    assert clock_tables.equal_tables(plain) == ()
