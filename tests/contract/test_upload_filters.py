"""What every stage and every aggregation promises, under methods whose server averages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import worlds
from worlds import world

from fl.api import trees
from fl.api.uploads import UPLOAD_STATE, attacker_mask
from fl.base import plugins, registry
from fl.base.errors import FedloomError
from fl.engine import engine, simulate
from fl.engine.simulation import Simulation
from fl.engine.upload_rows import UploadLayout
from fl.store.checkpoint import load_tree, save_tree

METHODS = ("fedavg", "fedprox", "scaffold", "ditto", "fedbn")

STAGES: dict[str, dict[str, Any]] = {
    "clip": {"norm": 0.1},
    "adaptive-clip": {"count_noise": 0.3},
    "noise": {"multiplier": 1.0},
    "quantize": {"bits": 4},
    "top-k": {"share": 0.1},
    "random-k": {"share": 0.1},
    "sign-flip": {"share": 0.5},
    "label-flip": {"share": 0.5},
    "gaussian": {"share": 0.5},
    "alie": {"share": 0.4, "z": 1.5},
}
"""Values under which each of them is felt."""

NONE: dict[str, dict[str, Any]] = {
    "clip": {"norm": 1e30},
    "adaptive-clip": {"initial": 1e30, "rate": 0.0},
    "noise": {"multiplier": 0.0},
    "quantize": {"bits": 32},
    "top-k": {"share": 1.0},
    "random-k": {"share": 1.0},
    "sign-flip": {"share": 0.0},
    "label-flip": {"share": 0.0},
    "gaussian": {"share": 0.0},
    "alie": {"share": 0.0},
}
"""Values under which they change nothing."""

AGGREGATIONS: dict[str, dict[str, Any]] = {
    "median": {},
    "trimmed-mean": {"share": 0.2},
    "krum": {"attackers": 0},
    "geometric-median": {},
}
OF_FEDLOOM = {*STAGES, *AGGREGATIONS}


def of_plugins(kind: str) -> dict[str, dict[str, Any]]:
    """Those of a plugin, `FEDLOOM_PLUGINS`, with their defaults."""
    documentation = registry.list_documentation(kind)
    return {c.name: {} for c in documentation if not c.file.is_relative_to(plugins.FL)}


STAGES |= of_plugins("upload filter")
AGGREGATIONS |= of_plugins("aggregation")
EVERY = [*STAGES, *AGGREGATIONS]
PLAIN = {"rounds": 2, "local_epochs": None, "local_steps": 2}

every = pytest.mark.parametrize("name", EVERY)
every_method = pytest.mark.parametrize("method", METHODS)


def with_wire(name: str, method: str = "fedavg", **more: Any) -> Simulation:
    """A method with a stage, behind a clip if it is noise, or with an aggregation."""
    more = {**PLAIN, **more}
    if name in AGGREGATIONS:
        return world(method, aggregation={name: AGGREGATIONS[name]}, **more)
    before = {"clip": STAGES["clip"]} if name == "noise" else {}
    return world(method, wire={**before, name: STAGES[name]}, **{"weighting": "uniform", **more})


def test_all_are_here() -> None:
    assert sorted(STAGES) == registry.names("upload filter")
    assert OF_FEDLOOM & {*STAGES} == {*NONE}
    assert sorted(AGGREGATIONS) == registry.names("aggregation")


@every_method
@every
def test_stacked_is_loop_to_rounding(name: str, method: str) -> None:
    ends = [worlds.run(with_wire(name, method), backend) for backend in ("loop", "stacked")]
    (loop, rows), (stacked, stacked_rows) = ends
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    _, plain = worlds.run(world(method, **PLAIN, weighting="uniform"), "stacked")
    assert np.isfinite(rows["value"]).all()
    assert not worlds.rows_agree(rows, plain, 1e-9), "it is felt"


@every_method
@pytest.mark.parametrize("name", NONE)
def test_where_it_changes_nothing_the_run_is_the_plain_one_to_the_bit(
    name: str, method: str
) -> None:
    state, rows = worlds.run(world(method, wire={name: NONE[name]}, **PLAIN))
    plain, plain_rows = worlds.run(world(method, **PLAIN))
    mine, theirs = worlds.tree(state), worlds.tree(plain)
    assert worlds.same(trees.drop(mine, [UPLOAD_STATE]), theirs)
    assert worlds.rows_agree(rows, plain_rows, 0.0)


@every
def test_a_run_resumed_from_a_file_is_an_undisturbed_one(name: str, tmp_path: Path) -> None:
    simulation = with_wire(name)
    first, second = list(simulate.rounds(simulation, simulation.begin(), 0, "stacked"))
    save_tree(first.state.server, tmp_path / "server")
    state = replace(first.state, server=load_tree(tmp_path / "server"))
    [last] = simulate.rounds(with_wire(name), state, 1, "stacked")
    assert worlds.same(worlds.tree(last.state), worlds.tree(second.state))


@every
def test_seeds_trained_together_are_those_trained_apart(name: str) -> None:
    worlds.together({seed: with_wire(name, seed=seed) for seed in (5, 6)})


@every
def test_who_was_drawn_first_does_not_matter(name: str) -> None:
    """The mean over the same clients in another order is the same, to rounding."""
    simulation = with_wire(name, rounds=1, participation=1.0)
    plan, order = simulation.round_schedule(1), np.array([2, 0, 3, 1])
    turned = replace(plan, phases=(plan.last_phase.take(order),))
    states = [
        engine.run_round(simulation.method, simulation.begin(), p, "stacked")[0]
        for p in (plan, turned)
    ]
    assert worlds.distance(worlds.tree(states[0]), worlds.tree(states[1])) < 1e-10


def test_what_is_not_sent_stays_with_the_client_that_took_part() -> None:
    simulation = with_wire("top-k", rounds=1, participation=0.5)
    state, _ = worlds.run(simulation)
    rest = state.clients[UPLOAD_STATE]["top-k"]["rest"]
    took = torch.isin(torch.arange(4), simulation.round_schedule(1).clients)
    assert (rest[~took] == 0).all()
    assert (rest[took] != 0).any(dim=1).all()


def test_attackers_are_a_share_drawn_by_seed_and_larger_shares_have_the_smaller() -> None:
    few, many = attacker_mask(3, 0.2, 50), attacker_mask(3, 0.4, 50)
    assert few.sum() == 10
    assert many.sum() == 20
    assert (many | ~few).all()
    assert (attacker_mask(4, 0.2, 50) != few).any()


def test_a_share_that_is_nobody_is_refused_before_round_1() -> None:
    """Also where a plan cannot know how many clients there are."""
    attacked = world("fedavg", wire={"sign-flip": {"share": 0.1}})
    with pytest.raises(FedloomError, match=r"is 0\.1, which is no attacker among 4 clients"):
        attacked.begin()
    with pytest.raises(FedloomError, match=r"is 0\.1, which is no client of 3 in a round"):
        world("fedavg", stragglers=0.1).begin()


def test_attackers_alone_train_on_flipped_labels() -> None:
    """An honest client's loss is that of the plain run in round 1, an attacker's is another."""
    given: dict[str, Any] = {"rounds": 1, "participation": 1.0}
    simulation = with_wire("label-flip", **given)
    _, rows = worlds.run(simulation)
    _, plain = worlds.run(world("fedavg", **{**PLAIN, **given}))
    attack = simulation.begin().server[UPLOAD_STATE]["attackers"]["label-flip"]
    losses, honest = (t.loc[t["split"] == "train", "value"].to_numpy() for t in (rows, plain))
    assert ((losses != honest) == attack.numpy()).all()


@pytest.mark.parametrize(
    ("method", "problem"),
    [
        ("local", "Local cannot use them, because its clients send nothing"),
        (
            "fedfm",
            "FedFM cannot use them, because its clients send in more than one phase of a round",
        ),
        ("fedamp", "FedAMP cannot use them, because its server does more than average"),
        (
            "fednova",
            "FedNova cannot use them, because its clients send a number, path, that scales",
        ),
        (
            "fedfa",
            r"FedFA\^l cannot use them, because its clients send a number, share, that scales",
        ),
        ("pfedgraph", "pFedGraph cannot use them, because its server does more than average"),
        ("fedl2p", "FedL2P cannot use them, because its server does more than average"),
    ],
)
@pytest.mark.parametrize(
    "added", [{"wire": {"clip": {"norm": 1.0}}}, {"aggregation": {"median": {}}}]
)
def test_other_methods_refuse_by_name(method: str, problem: str, added: Mapping[str, Any]) -> None:
    with pytest.raises(FedloomError, match=f"{problem}.*Try: choose a method whose"):
        world(method, "cnn" if method == "fedfa" else "mlp", **added)


NOISE = {"noise": {"multiplier": 1.0}}
CLIPPED = {"clip": {"norm": 1.0}, **NOISE}
UNIFORM = {"weighting": "uniform"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"wire": NOISE},
            r"upload_filters\.noise: noise needs clipping .*Try: put clip or adaptive-clip",
        ),
        (
            {"wire": {**NOISE, "clip": {"norm": 1.0}}},
            r"upload_filters\.noise: noise needs clipping",
        ),
        (
            {"wire": {**CLIPPED, "quantize": {"bits": 4}}},
            r"upload_filters\.quantize: follows noise",
        ),
        (
            {"wire": CLIPPED, "aggregation": {"median": {}}},
            "aggregation: is set together with noise",
        ),
        ({"wire": CLIPPED, "weighting": "samples"}, "weighting: is samples.*Allowed: uniform"),
        (
            {"wire": CLIPPED, "stragglers": 0.5, "partial_work": "dropped"},
            "partial_work: is dropped.*a fixed number of clients",
        ),
    ],
)
def test_noise_that_would_hide_nobody_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(FedloomError, match=problem):
        world("fedavg", **{**UNIFORM, **given})


def test_noise_refuses_counters_that_it_cannot_hide() -> None:
    with pytest.raises(FedloomError, match=r"counters of batch normalisation.*fedbn"):
        world("fedavg", "cnn", wire=CLIPPED, **UNIFORM)


def test_what_a_round_is_too_small_for_is_refused_before_training() -> None:
    few = world("fedavg", aggregation={"krum": {"attackers": 1}})
    with pytest.raises(
        FedloomError, match=r"aggregation: needs 5 clients in a round, but 3 take part"
    ):
        few.begin()
    strong = {"adaptive-clip": {"count_noise": 0.1}, "noise": {"multiplier": 1.0}}
    above = r"multiplier: is 1, .*Allowed: less than 0\.6. Try: set adaptive-clip.* above 0\.16"
    with pytest.raises(FedloomError, match=above):
        world("fedavg", wire=strong, **UNIFORM).begin()
    strong = {"adaptive-clip": {"count_noise": 0.0}, "noise": {"multiplier": 1.0}}
    with pytest.raises(FedloomError, match=r"alone. Try: set adaptive-clip\.count_noise above"):
        world("fedavg", wire=strong, **UNIFORM).begin()


def test_rounds_that_lose_clients_are_refused_where_their_number_counts() -> None:
    lost = {"stragglers": 0.8, "partial_work": "dropped"}
    with pytest.raises(FedloomError, match=r"is dropped, but aggregation needs 3 clients in every"):
        world("fedavg", aggregation={"krum": {"attackers": 0}}, **lost)
    world("fedavg", aggregation={"median": {}}, **lost)


@pytest.mark.parametrize("key", ["adapt", "dissimilarity"])
def test_fedprox_is_refused_by_the_key_that_is_in_the_way(key: str) -> None:
    with pytest.raises(
        FedloomError, match=rf"FedProx cannot use them, .* fedprox \(without.*{key}"
    ):
        world("fedprox", values={key: True}, wire={"clip": {"norm": 1.0}})


def test_a_number_without_dimensions_is_a_column_of_its_own() -> None:
    layout = UploadLayout((torch.tensor(0.0), torch.zeros(2)), {})
    uploads = {"path": torch.tensor([1.0, 2.0]), "w": torch.tensor([[3.0, 4.0], [5.0, 6.0]])}
    rows = layout.rows({}, uploads)
    assert rows.tolist() == [[1, 3, 4], [2, 5, 6]]
    back = layout.with_rows({}, uploads, rows + 1, torch.zeros(2, 3, dtype=torch.bool))
    assert back["path"].tolist() == [2, 3]
    assert back["w"].tolist() == [[4, 5], [6, 7]]
