"""Clients of several modalities in one run: images, texts, or both with a classifier in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import worlds
from golden import worlds as golden
from modal_worlds import world
from torch import Tensor

from fl.api import trees
from fl.api.method import PAYLOAD, declaration_of
from fl.base import registry
from fl.base.errors import FedloomError, Location
from fl.base.schema import GLOBAL, PERSONAL, UNSEEN
from fl.engine import modality_rounds, simulate
from fl.engine.modality_simulation import ModalitySimulation
from fl.engine.state import State
from fl.runner import costs
from fl.runner.stack import Stack
from fl.store import checkpoint

WHERE = Location("test")
SIZES = golden.SIZES
SHARED = [
    one.name for one in registry.components("method") if declaration_of(one.target).modalities
]
APART = ["scaffold", "pfedgraph", "mrmtl", "feddyn", "fediot"]
"""Some of those whose server does more than average."""

every_method = pytest.mark.parametrize("method", [*SHARED, *APART])
few_methods = pytest.mark.parametrize("method", ["fedavg", "fedsac"])


def foreign(simulation: ModalitySimulation, client: int) -> frozenset[str]:
    return simulation.modality_methods[simulation.modality[client]].missing_weights


@every_method
def test_stacked_is_loop_to_rounding(method: str) -> None:
    simulation = world(method, absent_clients=(4,))
    loop, rows = worlds.run(simulation, "loop")
    stacked, stacked_rows = worlds.run(simulation, "stacked")
    assert worlds.distance(worlds.tree(stacked), worlds.tree(loop)) < 1e-10
    assert worlds.rows_agree(stacked_rows, rows, 1e-10)
    assert worlds.distance(worlds.tree(loop), worlds.tree(simulation.begin())) > 1e-3
    scored = rows[(rows["split"] == "test") & (rows["metric"] == "accuracy")]
    alone = declaration_of(worlds.entry(method).target).independent
    assert set(scored["client"]) == set(range(5 if alone else 4))
    has_model = GLOBAL in simulation.method.views and bool(simulation.client_data.absent_clients)
    assert (UNSEEN in set(rows["split"])) == has_model
    other_modality_is_as_it_began(simulation, stacked)


@few_methods
def test_resumed_and_stacked_with_other_seeds_a_run_is_what_it_is_alone(method: str) -> None:
    runs = {seed: world(method, seed=seed, participation=0.4) for seed in (5, 6)}
    worlds.together(runs)
    first = next(simulate.rounds(runs[5], runs[5].begin(), 0, "stacked"))
    [second] = simulate.rounds(runs[5], first.state, 1, "stacked")
    whole, _ = worlds.run(runs[5], "stacked")
    assert worlds.same(worlds.tree(second.state), worlds.tree(whole))


@few_methods
def test_the_order_of_participants_does_not_matter(method: str) -> None:
    simulation = world(method, participation=1.0)
    plan, begun = simulation.round_schedule(1), simulation.begin()

    def after(plan: Any) -> tuple[State, Tensor]:
        [done] = simulation.run_rounds([simulation.method], [begun], [plan], "stacked")
        return done

    order = [3, 0, 4, 2, 1]
    straight, losses = after(plan)
    turned, others = after(worlds.chosen(plan, order))
    assert worlds.distance(worlds.tree(turned), worlds.tree(straight)) < 1e-12
    torch.testing.assert_close(others, losses[order], rtol=0, atol=1e-12)


def other_modality_is_as_it_began(simulation: ModalitySimulation, state: State) -> None:
    begun = simulation.begin()
    for client in range(len(SIZES)):
        lacking = foreign(simulation, client)
        for before, after in zip(
            _named(trees.take(begun.clients, client), lacking),
            _named(trees.take(state.clients, client), lacking),
            strict=True,
        ):
            assert torch.equal(before, after)


def _named(tree: Any, names: frozenset[str]) -> list[Tensor]:
    """All leaves of these names, wherever they are."""
    found: list[Tensor] = []
    for key, leaf in tree.items():
        if not isinstance(leaf, Tensor):
            found += _named(leaf, names)
        elif key in names:
            found.append(leaf)
    return found


def test_a_weight_is_averaged_over_those_who_hold_it() -> None:
    """By hand, from what each client comes to alone."""
    simulation = world("fedavg", participation=1.0, rounds=1)
    state, _ = worlds.run(simulation, "loop")
    alone = world("local", participation=1.0, rounds=1)
    own, _ = worlds.run(alone, "loop")
    for kind in ("params", "buffers"):
        for name, leaf in state.server[kind].items():
            if not leaf.is_floating_point():
                continue
            holders = [k for k in range(5) if name not in foreign(simulation, k)]
            n = torch.tensor([SIZES[k] for k in holders], dtype=torch.float64)
            each = own.clients[kind][name][holders]
            expected = torch.tensordot(n / n.sum(), each, dims=1)
            torch.testing.assert_close(leaf, expected, rtol=0, atol=1e-12)


def test_with_classifiers_of_their_own_modalities_are_two_federations() -> None:
    """FedAvg per modality: what one modality learns does not depend on the other's data."""
    simulation = world("fedavg", classifier="own", participation=1.0)
    state, _ = worlds.run(simulation, "stacked")
    for number, method in enumerate(simulation.modality_methods):
        begun = modality_rounds.modality_state(method, simulation.begin())
        *_, last = simulate.rounds(simulation.by_modality[number], begun, 0, "loop")
        assert worlds.distance(method.server_tree(state.server), last.state.server) < 1e-12


def test_costs_are_those_of_what_each_client_holds() -> None:
    simulation = world("fedavg")
    state, _ = worlds.run(simulation, "stacked")
    sizes = [
        sum(trees.nbytes(kind) for kind in part.server_tree(state.server).values())
        for part in simulation.modality_methods
    ]
    mean = (2 * sizes[0] + 2 * sizes[1] + sizes[2]) / 5
    assert sizes[2] == trees.nbytes(state.server)
    found = costs.measure(simulation, state)
    assert (found.bytes_down, found.bytes_up) == pytest.approx((mean, mean))
    assert found.traffic == [[2, round(mean), round(mean)]]
    assert mean < trees.nbytes(state.server)
    assert found.flops > 0


def test_a_modality_without_participants_stays_as_it_is() -> None:
    simulation = world("fedavg", classifier="own", participation=0.2, rounds=1)
    begun, (state, _) = simulation.begin(), worlds.run(simulation, "stacked")
    [own] = [n for n, plan in enumerate(simulation.round_schedule(1).by_modality) if plan]
    other = simulation.modality_methods[own].missing_weights
    assert other
    before, after = (_named(one.server, other) for one in (begun, state))
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_server_that_does_more_than_average_shares_no_classifier() -> None:
    message = r"server does more than average.*share the weights .*classifier\.weight"
    with pytest.raises(FedloomError, match=message):
        world("scaffold", classifier="shared")


def test_stored_models_are_of_all_modalities_and_can_be_started_from() -> None:
    simulation = world("fedavg")
    state, rows = worlds.run(simulation, "stacked")
    weights = simulation.final_weights(state)[GLOBAL]
    tuning = world("finetune")
    first = tuning.evaluate_start(weights)
    last = rows[(rows["round"] == 2) & (rows["split"] != "train")]
    key = ["client", "split", "metric"]
    values = [one.set_index(key)["value"].sort_index() for one in (first, last)]
    pd.testing.assert_series_equal(*values)
    begun = tuning.begin(weights)
    [tuned, *_] = simulate.rounds(tuning, begun, 0, "stacked")
    assert set(tuning.final_weights(tuned.state)) == {PERSONAL}


def test_a_sample_of_clients_is_drawn_over_all_modalities() -> None:
    few, whole = world("fedavg", evaluate_clients=3), world("fedavg")
    state = whole.begin()
    rows, all_rows = few.evaluate(state, 1), whole.evaluate(state, 1)
    drawn = set(rows["client"])
    assert len(drawn) == 3 < len(set(all_rows["client"]))
    expected = all_rows[all_rows["client"].isin(drawn)].reset_index(drop=True)
    assert worlds.rows_agree(rows, expected, 1e-12)


def test_final_weights_of_a_client_lack_those_of_the_other_modality(tmp_path: Path) -> None:
    """And a run goes on from a checkpoint to the same bits."""
    simulation = world("ditto", rounds=2)
    stack = Stack.begin({"run": simulation}, {"run": None}, "stacked")
    stack.add(next(simulate.lockstep(stack.simulations, stack.states, 0, "stacked")))
    stack.save(tmp_path)
    saved = checkpoint.load_latest(tmp_path)
    assert saved is not None
    resumed = Stack.resume(saved, {"run": simulation})
    [second] = simulate.rounds(simulation, resumed.states["run"], resumed.round, "stacked")
    whole, _ = worlds.run(simulation, "stacked")
    assert worlds.same(worlds.tree(second.state), worlds.tree(whole))
    own = simulation.final_weights(whole)[PERSONAL]
    assert {len(leaf) for leaf in _beginning(own, "text")} == {3}
    view, last = simulation.method.views[PERSONAL], whole.client(4, torch.device("cpu"))
    bias = view(whole.server, last)["params"]["text.features.bias"]
    assert torch.equal(own["params"]["text.features.bias"][2], bias)


def _beginning(tree: Any, name: str) -> list[Tensor]:
    """All leaves of the weights of a module, wherever they are."""
    found: list[Tensor] = []
    for key, leaf in tree.items():
        if key.startswith(f"{name}."):
            found += trees.leaves({key: leaf})
        elif not isinstance(leaf, Tensor):
            found += _beginning(leaf, name)
    return found


def projected(v: Any) -> Any:
    """The nearest point of the simplex, by bisection."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def moved(state: State, client: int, names: list[str]) -> Any:
    """How far a client's weights are from where all began, in one row."""
    own, origin = state.clients["trained"]["params"], state.server["origin"]
    return np.concatenate([(own[n][client] - origin[n]).flatten().numpy() for n in names])


@pytest.mark.parametrize("classifier", ["shared", "own"])
def test_fedsac_mixes_extractors_within_and_the_classifier_over_modalities(classifier: str) -> None:
    """By hand from what clients trained: appendix B.2."""
    simulation = world("fedsac", classifier=classifier, participation=1.0, rounds=2)
    state = next(simulate.rounds(simulation, simulation.begin(), 0, "loop")).state
    alpha, beta, names = 0.9, 1.4, list(state.server["origin"])
    alike = state.server["complementarity"].numpy()

    def network(clients: list[int], held: list[str], alpha: float) -> Any:
        moves = np.stack([moved(state, k, held) for k in clients])
        unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
        similar = np.where(unit @ unit.T > 0.9, 1.0, unit @ unit.T)
        shares = np.array([SIZES[k] for k in clients]) / sum(SIZES[k] for k in clients)
        features = alike[np.ix_(clients, clients)]
        return np.stack([projected(v) for v in shares - alpha * features / 2 + beta * similar / 2])

    # Extractors: among clients of one network.
    expected, given = np.zeros((5, 5)), state.clients[PAYLOAD]["params"]
    for clients in [[0, 1], [2, 3], [4]] if classifier == "shared" else [[0, 1], [2, 3, 4]]:
        held = [name for name in names if name not in foreign(simulation, clients[0])]
        expected[np.ix_(clients, clients)] = network(clients, held, alpha)
    assert 0 < expected[0, 1] < 1
    np.testing.assert_allclose(state.server["cooperation"], expected, atol=1e-9)
    assert not alike[:2, 2:].any()
    # The classifier: among all clients, where it is shared.
    common = [name for name in names if not any(name in foreign(simulation, k) for k in (0, 2))]
    assert common == (["classifier.weight", "classifier.bias"] if classifier == "shared" else [])
    assert ("classifier" in state.server) == (classifier == "shared")
    over_all = network([0, 1, 2, 3, 4], common, 0.0) if common else expected
    assert (over_all[:2, 2:].sum() > 0) == bool(common)
    # What clients receive is mixed by these matrices.
    trained = state.clients["trained"]["params"]
    for name in names:
        matrix = torch.from_numpy(over_all if name in common else expected)
        mixed = torch.tensordot(matrix.to(trained[name]), trained[name], dims=1)
        torch.testing.assert_close(given[name], mixed, rtol=0, atol=1e-6)
    received = simulation.modality_methods[0].restrict(state.clients[PAYLOAD])["params"]
    begun = (
        simulation.by_modality[0]
        .method.passes[0]
        .begin(  # type: ignore[union-attr]
            state.server,
            dict(trees.take(simulation.modality_methods[0].restrict(state.clients), 0)),
        )
    )
    assert all(torch.equal(begun["params"][name], received[name][0]) for name in received)
