"""APFL, FedALA, FedPHP, FedDBE, IFCA, FedAS and FedPAC by arithmetic (`hand_model`)."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
import torch
import worlds
from hand_model import Samples, body_and_head, g, is_pair, mean_g, of, s, stored_two, trained

from fl.api import trees
from fl.api.method import PERSONAL_PARAMS
from fl.base.schema import PERSONAL
from fl.methods.fedpac import head_statistics, head_weights, minimise_on_simplex

ONE: list[Samples] = [[(1, 0)]]
TWO: list[Samples] = [[(1, 0), (2, 1)], [(3, 0)]]
APART: list[Samples] = [[(1, 0)], [(3, 1)]]


def personal(simulation: Any, state: Any, client: int) -> Any:
    return simulation.method.views[PERSONAL](state.server, trees.take(state.clients, client))


def pair(model: Any) -> Any:
    return model["params"]["weight"]


# APFL


@pytest.mark.parametrize("mixed", ["weights", "outputs"])
def test_apfl_adapts_alpha_at_the_first_step_of_a_round(mixed: str) -> None:
    """Rate .1 from w = v = 0, alpha .5; one step in each of two rounds."""
    values = {"mixed": mixed}
    state = trained(of("apfl", ONE, values, rounds=2, local_steps=1))
    w, v = 0.1 * 0.5, 0.1 * 0.5 * 0.5
    slope = s(-2 * (0.5 * v + 0.5 * w))
    # In a pair of weights both differences count.
    alpha = 0.5 + 0.1 * slope * 2 * (v - w)
    w, v = w + 0.1 * s(-2 * w), v + 0.1 * 0.5 * slope
    own = trees.take(state.clients, 0)[PERSONAL_PARAMS]
    assert is_pair(state.server["params"]["weight"], w)
    assert is_pair(own["v"]["weight"], v)
    assert float(own["alpha"]) == pytest.approx(alpha, abs=1e-12)


def test_apfl_leaves_alpha_in_later_steps_of_a_round() -> None:
    state = trained(of("apfl", ONE, rounds=1, local_steps=5))
    assert float(trees.take(state.clients, 0)[PERSONAL_PARAMS]["alpha"]) == 0.5


@pytest.mark.parametrize(("alpha", "other"), [(0.0, "fedavg"), (1.0, "local")])
def test_apfl_without_one_of_its_models_is_the_other(alpha: float, other: str) -> None:
    simulation = of("apfl", TWO, {"alpha": alpha, "adapt": False}, rounds=3)
    plain = of(other, TWO, rounds=3)
    state, expected = trained(simulation), trained(plain)
    [view] = plain.method.views.values()
    for client in range(2):
        model = view(expected.server, trees.take(expected.clients, client))
        assert pair(personal(simulation, state, client)).tolist() == pair(model).tolist()


# FedALA


def test_fedala_without_a_rate_is_fedavg() -> None:
    simulation = of("fedala", TWO, {"eta": 0.0}, rounds=4)
    state, average = trained(simulation), trained(of("fedavg", TWO, rounds=4))
    for client in range(2):
        model = pair(personal(simulation, state, client))
        torch.testing.assert_close(model, pair(average.server), rtol=0, atol=1e-15)


def test_fedala_moves_its_shares_before_it_trains() -> None:
    """Round 1 ends at .05 and -.15, mean -.05; round 2 takes a step of the shares, then trains."""
    simulation = of("fedala", APART, {"eta": 2.0, "start_epochs": 1}, rounds=2, local_steps=1)
    state = trained(simulation)
    own, mean, ends = (0.05, -0.15), -0.05, []
    for [(x, y)], w in zip(APART, own, strict=True):
        share = min(max(1 - 2.0 * g(mean, x, y) * (mean - w), 0), 1)
        begin = w + (mean - w) * share
        ends.append(begin - 0.1 * g(begin, x, y))
    assert is_pair(state.server["params"]["weight"], float(np.mean(ends)))
    for client, end in enumerate(ends):
        assert is_pair(trees.take(state.clients, client)["own"]["weight"], end)


# FedPHP


def test_fedphp_without_a_teacher_shares_fedavgs_model_and_keeps_a_running_mean() -> None:
    """Of four rounds, the share of the old mean is 0, .2, .4, .6 with mu .8."""
    simulation = of("fedphp", ONE, {"lam": 0.0, "mu": 0.8}, rounds=4, local_steps=1)
    state = trained(simulation)
    w, v = 0.0, 0.0
    for rounds in range(4):
        w -= 0.1 * g(w, 1, 0)
        share = 0.8 * rounds / 4
        v = share * v + (1 - share) * w
    assert is_pair(state.server["params"]["weight"], w)
    assert is_pair(pair(personal(simulation, state, 0)), v)


def test_fedphp_is_taught_from_the_second_round_on() -> None:
    """The teacher's probability of class 0 is s(2 v / 4); v is what round 1 ended with."""
    state = trained(of("fedphp", ONE, {"lam": 0.5}, rounds=2, local_steps=1))
    v = 0.1 * 0.5
    own, taught = g(v, 1, 0), s(2 * v) - s(2 * v / 4)
    assert is_pair(state.server["params"]["weight"], v - 0.1 * (0.5 * own + 0.5 * taught))


# FedDBE


@pytest.mark.parametrize("keep", [False, True])
def test_feddbe_finds_the_mean_of_features_and_trains_a_vector_beside_them(keep: bool) -> None:
    """Features of the model of one layer are its inputs: 1 and 2, 3."""
    simulation = of("feddbe", TWO, {"kappa": 7.0}, rounds=1, local_steps=1, keep_optimizer=keep)
    state = trained(simulation, begin=0.4)
    assert state.server["feature_mean"].tolist() == pytest.approx([2.0])
    for client, samples in enumerate(TWO):
        slopes = [-2 * 0.4 * s(-0.8 * x) if y == 0 else 2 * 0.4 * s(0.8 * x) for x, y in samples]
        own = trees.take(state.clients, client)[PERSONAL_PARAMS]["bias"]
        assert own.tolist() == pytest.approx([-0.1 * float(np.mean(slopes))], abs=1e-12)
    expected = np.average([0.4 - 0.1 * mean_g(0.4, samples) for samples in TWO], weights=[2, 1])
    assert is_pair(state.server["params"]["weight"], float(expected))


def test_feddbe_holds_the_mean_of_a_batch_to_the_clients_mean() -> None:
    """One client, so that the shared mean of features is that of its first, lost training."""
    simulation = of("feddbe", ONE, {"kappa": 3.0}, body_and_head, rounds=1, local_steps=1)
    state = trained(simulation, begin=stored_two(0.5, 0.4))
    slope = 2 * 0.4 * -s(-2 * 0.4 * 0.5)
    first = 0.5 - 0.1 * slope
    assert state.server["feature_mean"].tolist() == pytest.approx([first], abs=1e-12)
    u = 0.5 - 0.1 * (slope + 3.0 * (0.5 - first))
    assert state.server["params"]["0.weight"].tolist() == [[pytest.approx(u, abs=1e-12)]]


# IFCA


def test_ifca_of_one_model_is_fedavg() -> None:
    simulation = of("ifca", TWO, {"models": 1}, rounds=3)
    state, average = trained(simulation), trained(of("fedavg", TWO, rounds=3))
    assert pair(personal(simulation, state, 1)).tolist() == pair(average.server).tolist()


def test_ifca_separates_clients_that_contradict_each_other() -> None:
    clients: list[Samples] = [[(1, 0)], [(1, 1)], [(2, 0)], [(2, 1)]]
    simulation = of("ifca", clients, {"models": 2}, rounds=30)
    state = trained(simulation, begin=0.1)
    clusters = state.clients["cluster"].tolist()
    assert clusters[0] == clusters[2] != clusters[1] == clusters[3]
    for client, [(x, y)] in enumerate(clients):
        w = float(pair(personal(simulation, state, client))[0])
        assert (w > 0) == (y == 0)
        assert abs(w) * x > 0.3


def test_ifca_scores_every_client_with_the_model_that_fits_it_now() -> None:
    """Few clients take part in a round; the others choose when they are scored."""
    clients: list[Samples] = [[(1, 0)], [(1, 1)]] * 4
    simulation = of("ifca", clients, {"models": 2}, rounds=12, participation=0.5)
    state = trained(simulation, begin=0.1)
    view = simulation.method.views[PERSONAL]
    models = state.server["models"]["params"]["weight"][:, 0, 0]
    assert float(models.min()) < 0 < float(models.max())
    for client, [(x, y)] in enumerate(clients):
        variables = view(
            state.server, {**trees.take(state.clients, client), "cluster": torch.tensor(y)}
        )
        batch = {"x": torch.tensor([[float(x)]]).double(), "y": torch.tensor([y])}
        memory = view.build_memory(variables, {"train": view.look(variables, batch)})
        assert view.predict(variables, memory, batch["x"]).argmax().item() == y


def test_a_first_phase_of_shares_is_each_clients_own() -> None:
    """With half of the clients in a round, the start is in a client's second round, not round 2."""
    values = {"eta": 2.0, "start_epochs": 3, "epochs": 1}
    simulation = of("fedala", [*APART, *APART], values, rounds=6, participation=0.5)
    state = trained(simulation)
    rounds, shares = state.clients["rounds"], state.clients["shares"]["weight"]
    assert rounds.sum() == 12
    is_first = [bool((share == 1).all()) for share in shares]
    for count, has_no_share in zip(rounds.tolist(), is_first, strict=True):
        assert has_no_share or count >= 2
    assert not all(is_first)


# FedAS


def test_fedas_weighs_bodies_by_the_trace_of_the_fisher_information() -> None:
    """No alignment in round 1; the trace is over both layers, at the trained model."""
    simulation = of("fedas", APART, make=body_and_head, rounds=1, local_steps=1)
    state = trained(simulation, begin=stored_two(0.5, 0.4))
    bodies, traces = [], []
    for [(x, y)] in APART:
        sign = -1 if y == 0 else 1
        u = 0.5 - 0.1 * sign * 2 * 0.4 * x * s(sign * 2 * 0.4 * 0.5 * x)
        w = 0.4 - 0.1 * g(0.4, 0.5 * x, y)
        slope = sign * 2 * w * x * s(sign * 2 * w * u * x)
        bodies.append(u)
        traces.append(2 * g(w, u * x, y) ** 2 + slope**2)
    expected = float(np.average(bodies, weights=traces))
    assert state.server["params"]["0.weight"].tolist() == [[pytest.approx(expected, abs=1e-12)]]


def test_fedas_aligns_the_arrived_body_to_its_own_prototypes() -> None:
    """One client: what arrives is its own last body, so that there is nothing to align."""
    with_alignment, without = (
        trained(of("fedas", ONE, {"align_lr": rate}, body_and_head, rounds=3), stored_two(0.5, 0.4))
        for rate in (0.5, 0.0)
    )
    assert worlds.distance(with_alignment.server, without.server) < 1e-15
    apart = [
        trained(of("fedas", APART, {"align_lr": rate}, body_and_head, rounds=2, local_steps=1),
                stored_two(0.5, 0.4))
        for rate in (0.5, 0.0)
    ]  # fmt: skip
    assert worlds.distance(apart[0].server, apart[1].server) > 1e-3


# FedPAC


def test_the_quadratic_program_is_that_of_a_solver() -> None:
    draw = np.random.default_rng(3)
    matrices = []
    for rank in (1, 3, 8):
        factor = draw.normal(size=(8, rank))
        matrices.append(factor @ factor.T + np.diag(draw.uniform(0, 0.1, 8)))
    found = minimise_on_simplex(torch.tensor(np.stack(matrices)))
    for matrix, a in zip(matrices, found.numpy(), strict=True):
        unknown = cvxpy.Variable(8)
        problem = cvxpy.Problem(
            cvxpy.Minimize(cvxpy.quad_form(unknown, cvxpy.psd_wrap(matrix))),
            [cvxpy.sum(unknown) == 1, unknown >= 0],
        )
        least = problem.solve(solver=cvxpy.CLARABEL)
        assert a @ matrix @ a <= least + 1e-9
        assert a.sum() == pytest.approx(1)
        assert (a >= 0).all()


def test_the_statistics_of_heads_are_the_papers() -> None:
    draw = np.random.default_rng(4)
    z, y = draw.normal(size=(12, 3)), np.array([0] * 5 + [2] * 7)
    totals = {
        "sums": torch.tensor(np.stack([z[y == c].sum(0) for c in range(3)])),
        "counts": torch.tensor([5.0, 0.0, 7.0]).double(),
        "squares": torch.tensor([(z[y == c] ** 2).sum() for c in range(3)]),
    }
    found = head_statistics(totals)
    v = sum(
        (y == c).mean() * (z[y == c] ** 2).sum(1).mean()
        - (y == c).mean() ** 2 * (z[y == c].mean(0) ** 2).sum()
        for c in (0, 2)
    )
    assert float(found["variance"]) == pytest.approx(v / 12)
    assert found["means"][1].tolist() == [0, 0, 0]
    assert found["means"][2].tolist() == pytest.approx(list(7 / 12 * z[y == 2].mean(0)))


def test_clients_alike_share_a_head_and_others_do_not() -> None:
    """Two clients with equal means and one far away: a head by its variance alone, or its own."""
    statistics = {
        "variance": torch.tensor([0.1, 0.3, 0.1]).double(),
        "means": torch.tensor([[[1.0]], [[1.0]], [[9.0]]]).double(),
        "samples": torch.tensor([4.0, 4.0, 4.0]).double(),
    }
    weights = head_weights(statistics)
    assert weights[0].tolist() == pytest.approx([0.75, 0.25, 0], abs=2e-3)
    assert weights[2].tolist() == pytest.approx([0, 0, 1], abs=2e-3)


def test_the_head_of_a_client_without_samples_is_in_no_mixture() -> None:
    """Its estimate, 0, would seem to be one without variance."""
    statistics = {
        "variance": torch.tensor([0.1, 0.3, 0.0]).double(),
        "means": torch.tensor([[[1.0]], [[1.0]], [[0.0]]]).double(),
        "samples": torch.tensor([4.0, 4.0, 0.0]).double(),
    }
    weights = head_weights(statistics)
    assert weights[:, 2].tolist() == [0, 0, 0]
    assert weights[0].tolist() == pytest.approx([0.75, 0.25, 0], abs=2e-3)


def test_fedpac_of_one_client_is_fedrep_with_its_own_head() -> None:
    """Without prototypes and with the run's rate, both train the head, then the body."""
    values = {"lam": 0.0, "head_epochs": 1, "head_lr": None}
    simulation = of("fedpac", TWO[:1], values, body_and_head, rounds=3, local_epochs=1)
    state = trained(simulation, stored_two(0.5, 0.4))
    repeated = of("fedrep", TWO[:1], {"head_epochs": 1}, body_and_head, rounds=3, local_epochs=1)
    expected = personal(repeated, trained(repeated, stored_two(0.5, 0.4)), 0)
    found = personal(simulation, state, 0)
    for name, weight in expected["params"].items():
        torch.testing.assert_close(found["params"][name], weight, rtol=0, atol=1e-14)
