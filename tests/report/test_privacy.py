"""Epsilon of stored runs: what it is, when none is told, and where it stands."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import make_results
import pytest
from make_results import clients, entry, plan, write_plan, write_run

from fl.report import cost_tables, privacy, references
from fl.report.cells import NOTHING
from fl.report.facts import gather
from fl.report.tables import read_plan_hash
from fl.store.run_record import Costs, RunRecord

WIRE = [{"name": "clip", "norm": 1.0}, {"name": "noise", "multiplier": 2.0, "delta": 0.01}]


def record(wire: list[dict[str, Any]], **costs: int) -> RunRecord:
    plain = {"clients": 100, "participants": 20}
    return make_results.record(30, spec={"wire": wire}, costs={**plain, **costs})


def of_order_two(multiplier: float, share: float, rounds: int, delta: float) -> float:
    """What the order 2 says of a Gaussian of multiplier s, whose divergence is 1 / s^2.

    Wang et al. 2019, theorem 27: log(1 + q^2 min(4 (e^(1 / s^2) - 1), 2 e^(1 / s^2))); from there
    to epsilon Canonne, Kamath, Steinke 2020, proposition 12.
    """
    divergence = 1 / multiplier**2
    smaller = min(4 * math.expm1(divergence), 2 * math.exp(divergence))
    return rounds * math.log1p(share**2 * smaller) + math.log(1 / 2) - math.log(2 * delta)


def test_epsilon_is_of_clients_drawn_without_replacement_and_exchanged() -> None:
    """A client that is exchanged moves the sum by twice the clip, which halves the multiplier. With
    as little noise as here the order 2 says the most.
    """
    value = privacy.epsilon(1.0, 100, 20, 30, 0.01)
    assert value == pytest.approx(of_order_two(0.5, 0.2, 30, 0.01), rel=1e-12)
    assert privacy.epsilon(2.0, 100, 20, 30, 0.01) <= of_order_two(1.0, 0.2, 30, 0.01)
    more = [privacy.epsilon(z, 100, 20, 30, 0.01) for z in (1.0, 2.0, 4.0, 8.0)]
    assert more == sorted(more, reverse=True)


@pytest.mark.parametrize(("taking", "clients"), [(20, 20), (19, 20)])
def test_it_is_never_above_that_of_rounds_that_everyone_joins(taking: int, clients: int) -> None:
    """Of z = 2 the divergence of order a is a / 2 a round (Mironov 2017, corollary 3), so 2 a over
    four; from there to epsilon as above, by the best of many orders.
    """
    orders = [1 + i / 10 for i in range(1, 300)]
    plain = min(2 * a + math.log1p(-1 / a) - math.log(0.05 * a) / (a - 1) for a in orders)
    value = privacy.epsilon(2.0, clients, taking, 4, 0.05)
    assert value == pytest.approx(plain, rel=1e-3)
    assert value == pytest.approx(5.60, abs=0.005)
    assert privacy.epsilon_columns(record(WIRE, clients=20, participants=20))["epsilon"] > 0


def test_a_record_tells_it_at_its_delta_or_at_one_over_the_clients() -> None:
    told = privacy.epsilon_columns(record(WIRE))
    assert told == {"epsilon": privacy.epsilon(2.0, 100, 20, 30, 0.01), "delta": 0.01}
    plain = [WIRE[0], {**WIRE[1], "delta": None}]
    assert privacy.epsilon_columns(record(plain, clients=50))["delta"] == 0.02


@pytest.mark.parametrize(
    ("given", "lacks"),
    [
        (
            replace(record(WIRE), spec={"wire": WIRE, "start": "abc"}),
            "it starts from another run, which trained on the same clients",
        ),
        (
            replace(record(WIRE), costs=Costs()),
            "its record does not say how many clients there are",
        ),
    ],
)
def test_where_none_can_be_told_it_is_said_why(given: RunRecord, lacks: str) -> None:
    assert privacy.epsilon_columns(given) == {"epsilon_lacks": lacks}


def test_without_noise_nothing_is_told() -> None:
    assert privacy.epsilon_columns(record(WIRE[:1])) == {}
    assert privacy.epsilon_columns(record([WIRE[0], {**WIRE[1], "multiplier": 0.0}])) == {}
    assert privacy.epsilon_columns(make_results.record(30)) == {}


COSTS = {
    **{"clients": 100, "participants": 20, "traffic": [[2, 8, 8]], "bytes_down": 8, "bytes_up": 8},
    **{"flops": 1, "flops_server": 0, "state_client": 0, "state_server": 8},
}


def test_the_report_has_epsilon_beside_accuracy(tmp_path) -> None:
    store, costs = tmp_path / "runs", COSTS
    write_run(store, "a", clients([0.5, 0.7]))
    write_run(store, "b", clients([0.5, 0.5]), spec={"wire": WIRE}, costs=costs)
    every = {**costs, "participants": 100}
    write_run(store, "c", clients([0.4, 0.4]), spec={"wire": WIRE}, costs=every)
    entries = [entry("a", "fedavg"), entry("b", "noised"), entry("c", "always")]
    write_plan(tmp_path, plan(entries))
    facts = gather("small", tmp_path, store)
    table = cost_tables.privacy_table(facts)
    assert table is not None
    shown = {row.head: [cell.text for cell in row.cells] for row in table.rows}
    assert "fedavg" not in shown
    epsilon = f"{privacy.epsilon(2.0, 100, 20, 2, 0.01):.3g}"
    assert shown["noised"][:3] == [epsilon, "0.01", "20 of 100"]
    assert shown["noised"][3].startswith("50.0")
    always = f"{privacy.epsilon(2.0, 100, 100, 2, 0.01):.3g}"
    assert shown["always"][:3] == [always, "0.01", "100 of 100"]
    figure = cost_tables.privacy_figure(facts)
    assert figure is not None
    [panel] = figure.panels
    assert figure.legend == ("noised", "always")
    # A method without noise has no epsilon, and no point.
    assert f"noised 50.0 at {epsilon}; always 40.0 at {always}" in panel.alt
    picture = panel.picture.files()[".svg"]
    # Numbers on the logarithmic axis are plain, as texts know no mathematics.
    assert b"epsilon" in picture and b">3</text>" in picture and b"mathdefault" not in picture
    assert dict(references.shown_citations(facts)) == {"table privacy": privacy.CITATION}
    assert "title = {{Renyi Differential Privacy}}" in references.document(facts)


def test_the_largest_epsilon_of_a_methods_runs_is_shown(tmp_path) -> None:
    """Seeds of 2, 5 and 5 rounds, as early stopping ends them; the first has the least epsilon."""
    store, runs = tmp_path / "runs", []
    for seed, rounds in enumerate((2, 5, 5)):
        write_run(store, f"a{seed}", clients([0.5], rounds), spec={"wire": WIRE}, costs=COSTS)
        runs.append(entry(f"a{seed}", "noised", seed=seed))
    write_run(store, "b", clients([0.4], 9), spec={"wire": WIRE}, costs=COSTS)
    write_plan(tmp_path, plan([*runs, entry("b", "longer")]))
    facts = gather("small", tmp_path, store)
    table, figure = cost_tables.privacy_table(facts), cost_tables.privacy_figure(facts)
    assert table is not None and figure is not None
    largest = f"{privacy.epsilon(2.0, 100, 20, 5, 0.01):.3g}"
    assert {row.head: row.cells[0].text for row in table.rows}["noised"] == largest
    assert f"noised 50.0 at {largest}; " in figure.panels[0].alt
    assert "stopped early" in table.note, "which epsilon does not count"


def test_an_epsilon_that_one_run_lacks_holds_for_no_method(tmp_path) -> None:
    store = tmp_path / "runs"
    write_run(store, "a0", clients([0.5]), spec={"wire": WIRE}, costs=COSTS)
    write_run(store, "a1", clients([0.5]), spec={"wire": WIRE})
    write_plan(tmp_path, plan([entry(f"a{seed}", "noised", seed=seed) for seed in (0, 1)]))
    table = cost_tables.privacy_table(gather("small", tmp_path, store))
    assert table is not None
    [row] = table.rows
    reason = "its record does not say how many clients there are"
    assert [cell.text for cell in row.cells[:3]] == [reason, NOTHING, f"20 of 100, {NOTHING}"]


@pytest.mark.parametrize(("least", "there"), [(4, True), (5, False)])
def test_values_are_drawn_against_bytes_where_these_differ_much(
    tmp_path, least: int, there: bool
) -> None:
    store = tmp_path / "runs"
    write_run(store, "a", clients([0.5]), costs=COSTS)
    write_run(store, "b", clients([0.4]), costs={**COSTS, "bytes_up": least})
    write_plan(tmp_path, plan([entry("a", "whole"), entry("b", "small")]))
    figure = cost_tables.bytes_figure(gather("small", tmp_path, store))
    assert (figure is not None) == there
    if figure:
        assert f"small 40.0 at {least} B" in figure.panels[0].alt


def test_epsilon_stands_beside_the_shared_model_and_not_clients_own(tmp_path) -> None:
    """The shared model has a test accuracy of 40 %, the clients' own 80 %; one is never scored."""
    store = tmp_path / "runs"
    own = clients([0.7, 0.9], stage="personal")
    write_run(store, "a", [*clients([0.3, 0.5]), *own], spec={"wire": WIRE}, costs=COSTS)
    write_run(store, "b", own, spec={"wire": WIRE}, costs=COSTS)
    write_plan(tmp_path, plan([entry("a", "both"), entry("b", "own")]))
    table = cost_tables.privacy_table(gather("small", tmp_path, store))
    assert table is not None
    assert "shared model" in table.caption
    shown = {row.head: row.cells[3].text for row in table.rows}
    assert shown["both"].startswith("40.0")
    assert shown["own"] == NOTHING


def test_a_table_that_was_made_without_the_package_is_made_again_with_it(
    tmp_path, monkeypatch
) -> None:
    write_run(tmp_path / "runs", "a", clients([0.5]), spec={"wire": WIRE}, costs=COSTS)
    write_plan(tmp_path, plan([entry("a", "noised")]))

    def lacks() -> list[str]:
        runs = gather("small", tmp_path, tmp_path / "runs").runs
        return [*runs["epsilon_lacks"].dropna()]

    with monkeypatch.context() as absent:
        absent.setattr(privacy, "PACKAGE", "no_such_package")
        assert lacks() == ["dp-accounting is not installed (`make extras`)"]
        file = tmp_path / "tables" / "small.runs.parquet"
        assert read_plan_hash(file)[1], "nothing is to be made again as long as it is absent"
    assert not read_plan_hash(file)[1]
    assert lacks() == []
    assert read_plan_hash(file)[1]
