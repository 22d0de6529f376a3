"""Each method on a model of a few numbers, against arithmetic that is done here.

The model and its gradients: `hand_model`.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hand_model import (
    Samples,
    body_and_head,
    cosine,
    cosine_slope,
    g,
    is_pair,
    mean_g,
    of,
    s,
    stored,
    stored_two,
    tensor,
    trained,
)
from torch import nn

from fl.api import trees
from fl.api.method import PAYLOAD
from fl.base.schema import PERSONAL
from fl.engine import compiled, simulate
from fl.engine.batches import balanced_class_weights

HELD: list[Samples] = [[(1, 0), (3, 0)], [(2, 1)]]
"""Two clients who want the opposite."""


@pytest.fixture(params=["loop", "stacked", "compiled"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each backend. Of a compiled step the gradients are traced; the program that a compiler makes
    of it has the same options in tests/engine/test_compiled.py.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(compiled, "STEPS_PER_PROGRAM", 1)
    return str(request.param)


def test_fedavg_is_the_mean_weighted_by_samples() -> None:
    """Two samples (2, 0), (4, 0) and one (1, 1), from w = 0 where s = 1/2.

    Client 0: g = -(2 + 4)/2 * 1/2 = -1.5, w = 0.15. Client 1: g = 1/2, w = -0.05.
    Mean: (2 * 0.15 - 1 * 0.05) / 3 = 0.25 / 3.
    """
    state = trained(of("fedavg", [[(2, 0), (4, 0)], [(1, 1)]], rounds=1))
    assert is_pair(state.server["params"]["weight"], 0.25 / 3)


def test_clients_can_count_alike() -> None:
    """As above, (0.15 - 0.05) / 2; a client without samples counts nothing."""
    held: list[Samples] = [[(2, 0), (4, 0)], [(1, 1)]]
    simulation = of("fedavg", held, rounds=1, weighting="uniform")
    assert is_pair(trained(simulation).server["params"]["weight"], 0.05)
    weights = simulation.round_schedule(1).weights(torch.tensor([5.0, 0.0, 1.0]))
    assert weights.tolist() == [1, 0, 1]


def test_fedavg_goes_on_from_the_mean_without_the_momentum_of_the_round_before() -> None:
    state = trained(of("fedavg", [[(2, 0), (4, 0)], [(1, 1)]], rounds=2, momentum=0.9))
    w = 0.25 / 3
    first = w + 0.1 * (s(-4 * w) * 2 + s(-8 * w) * 4) / 2
    second = w - 0.1 * s(2 * w)
    assert is_pair(state.server["params"]["weight"], (2 * first + second) / 3)


def test_fedavgs_clients_can_keep_their_momentum() -> None:
    """As above with momentum .9: a client's first step of round 2 adds .9 of its velocity."""
    held: list[Samples] = [[(2, 0), (4, 0)], [(1, 1)]]
    simulation = of("fedavg", held, rounds=2, momentum=0.9, keep_optimizer=True)
    w, ends = 0.25 / 3, []
    for samples in held:
        v = 0.9 * mean_g(0.0, samples) + mean_g(w, samples)
        ends.append(w - 0.1 * v)
    assert is_pair(trained(simulation).server["params"]["weight"], (2 * ends[0] + ends[1]) / 3)


def test_nesterov_looks_ahead_along_the_momentum() -> None:
    """Two steps on (2, 0) from w = 0, momentum 1/2: g = -1, v = -1, w = 0.1 (1 + 1/2)."""
    state = trained(of("fedavg", [[(2, 0)]], rounds=1, local_steps=2, momentum=0.5, nesterov=True))
    w = 0.15
    v = 0.5 * -1 + g(w, 2, 0)
    assert is_pair(state.server["params"]["weight"], w - 0.1 * (g(w, 2, 0) + 0.5 * v))


def test_each_clients_gradient_is_clipped(backend: str) -> None:
    """The gradients (-1.5, 1.5) and (1/2, -1/2) at most of norm sqrt(2): (0.1 * 2 - 0.05) / 3."""
    simulation = of("fedavg", [[(2, 0), (4, 0)], [(1, 1)]], rounds=1, clip_norm=math.sqrt(2))
    [ended] = simulate.rounds(simulation, simulation.begin(stored(0.0)), 0, backend)
    assert is_pair(ended.state.server["params"]["weight"], 0.05)


def test_each_client_goes_through_a_rounds_part_of_the_schedule(backend: str) -> None:
    """exponential by 1/4 a round, two rounds of one epoch, batches of one, momentum-free, rate 0.1.

    Client 0 has two steps a round, at 0.1 (1, 1/2) and 0.1 (1/4, 1/8); client 1 has one, at 0.1 and
    0.1/4.
    """
    held: list[Samples] = [[(2, 0), (2, 0)], [(1, 1)]]
    schedule = {"schedule": "exponential", "lr_decay": 0.25, "schedule_by": "steps"}
    simulation = of("fedavg", held, rounds=2, batch_size=1, **schedule)
    *_, ended = simulate.rounds(simulation, simulation.begin(stored(0.0)), 0, backend)
    w = 0.0
    for rates in ([0.1, 0.05], [0.025, 0.0125]):
        first = w - rates[0] * g(w, 2, 0)
        first -= rates[1] * g(first, 2, 0)
        second = w - rates[0] * g(w, 1, 1)
        w = (2 * first + second) / 3
    assert is_pair(ended.state.server["params"]["weight"], w)


def test_labels_are_smoothed(backend: str) -> None:
    """With e = 1/4 the target of (1, 0) is (7/8, 1/8): the gradient at w is s(2 w) - 7/8.

    From w = 1: the loss is -7/8 log s(2) - 1/8 log s(-2).
    """
    simulation = of("fedavg", [[(1, 0)]], rounds=1, label_smoothing=0.25)
    [ended] = simulate.rounds(simulation, simulation.begin(stored(1.0)), 0, backend)
    assert is_pair(ended.state.server["params"]["weight"], 1 - 0.1 * (s(2.0) - 7 / 8))
    assert ended.loss == pytest.approx(-7 / 8 * math.log(s(2.0)) - math.log(s(-2.0)) / 8)
    rows = ended.rows.set_index(["split", "metric"])["value"]
    w = float(ended.state.server["params"]["weight"][0, 0])
    assert rows["test", "loss"] == pytest.approx(-math.log(s(2 * w))), "scored as it is"


def test_classes_of_a_client_can_weigh_alike(backend: str) -> None:
    """Client 0 has class 0 thrice and class 1 once: 4 / (2 * 3) = 2/3 and 4 / (2 * 1) = 2.

    The gradient of its only batch is sum w g / sum w, here (2/3 (3 * -1/2) + 2 * 1/2 * 3) / 4 = 1/2
    at w = 0. Client 1 has one class: its gradient is as ever, 1/2.
    """
    held: list[Samples] = [[(1, 0), (1, 0), (1, 0), (3, 1)], [(1, 1)]]
    simulation = of("fedavg", held, rounds=1, batch_size=4, class_weights="balanced")
    [ended] = simulate.rounds(simulation, simulation.begin(stored(0.0)), 0, backend)
    assert is_pair(ended.state.server["params"]["weight"], -0.05)
    assert ended.loss == pytest.approx(math.log(2))
    table = balanced_class_weights(np.array([[3, 1, 0], [0, 0, 0]]))
    assert table == pytest.approx(np.array([[2 / 3, 2, 1], [1, 1, 1]]))


@pytest.mark.parametrize(("rounds", "pull"), [(1, 0.5 * (0.05 - 0)), (2, 0.0)])
def test_fedprox_pulls_towards_the_newest_shared_weights(rounds: int, pull: float) -> None:
    """One sample (1, 0), two steps, mu = 0.5, from w = 0: in one round, or in a round each.

    Step 1: the term is flat at its centre, g = -1/2, w = 0.05.
    Step 2: g = -s(-0.1) and the pull, whose centre in a second round is what the first ended with.
    """
    simulation = of("fedprox", [[(1, 0)]], {"mu": 0.5}, rounds=rounds, local_steps=2 // rounds)
    expected = 0.05 - 0.1 * (-s(-0.1) + pull)
    assert is_pair(trained(simulation).server["params"]["weight"], expected)


@pytest.mark.parametrize(("method", "begin"), [("local", 0.0), ("finetune", 0.1)])
@pytest.mark.parametrize(("keep", "carried"), [(True, 0.5), (False, 0.0)])
def test_who_trains_alone_goes_on_from_where_all_begin(
    method: str, begin: float, keep: bool, carried: float
) -> None:
    """Two rounds of a step each, momentum 1/2, clients (1, 0) and (2, 1), from w, 0 or stored:

    v = g(w), w <- w - 0.1 v; v = carried * v + g(w).
    """
    held: list[Samples] = [[(1, 0)], [(2, 1)]]
    simulation = of(method, held, rounds=2, momentum=0.5, keep_optimizer=keep)
    weights = trained(simulation, begin).clients["params"]["weight"]
    for weight, (x, y) in zip(weights, [(1, 0), (2, 1)], strict=True):
        v = g(begin, x, y)
        w = begin - 0.1 * v
        assert is_pair(weight, w - 0.1 * (carried * v + g(w, x, y)))


def test_round_0_of_fine_tuning_is_the_stored_model_on_every_client() -> None:
    simulation = of("finetune", [[(1, 0)], [(2, 1)]])
    rows = simulation.evaluate_start(stored(0.1))
    assert set(zip(rows["round"], rows["split"], rows["stage"], strict=True)) == {
        (0, "test", "global")
    }
    value = rows.set_index(["client", "metric"])["value"]
    assert value[0, "loss"] == pytest.approx(math.log(1 + math.exp(-0.2)), abs=1e-12)
    assert value[1, "loss"] == pytest.approx(math.log(1 + math.exp(0.4)), abs=1e-12)
    assert value[0, "accuracy"] == 1.0
    assert value[1, "accuracy"] == 0.0


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffold_corrects_by_what_the_others_gradients_were(participation: float) -> None:
    """Two rounds of two steps, momentum m = 1/2, eta_g = 1/2; SCAFFOLD, algorithm 1, option II.

    Steps 1 and 2 move a client by lr ((1 + m) h_1 + h_2), with h = g + c - c_k; the weights sum to
    lr (2 + m). So c_k becomes c_k - c + ((1 + m) h_1 + h_2) / (2 + m), in which c and c_k cancel:
    the mean of the plain gradients with these weights. The server adds |S|/N of the mean change.
    """
    simulation = of(
        "scaffold",
        HELD,
        {"eta_g": 0.5},
        rounds=2,
        local_steps=2,
        momentum=0.5,
        participation=participation,
    )
    # By hand: two steps of each client that takes part, then the server.
    x, c, own = 0.2, 0.0, [0.0, 0.0]
    for number in (1, 2):
        taking = simulation.round_schedule(number).clients.tolist()
        ends, changes = [], []
        for k in taking:
            first = mean_g(x, HELD[k])
            w = x - 0.1 * (first + c - own[k])
            second = mean_g(w, HELD[k])
            v = 0.5 * (first + c - own[k]) + second + c - own[k]
            ends.append(w - 0.1 * v)
            changes.append((1.5 * first + second) / 2.5 - own[k])
            own[k] += changes[-1]
        # The server.
        x += 0.5 * (np.mean(ends) - x)
        c += len(taking) / 2 * np.mean(changes)
    # The same in Fedloom.
    state = trained(simulation, begin=0.2)
    assert is_pair(state.server["params"]["weight"], x)
    assert is_pair(state.server["control"]["weight"], c)
    for k in (0, 1):
        assert is_pair(state.clients["control"]["weight"][k], own[k])


def test_scaffold_can_divide_by_steps_times_the_rate() -> None:
    """Two steps, momentum 1/2: what was moved, .1 (1.5 h_1 + h_2), is divided by 2 * .1."""
    simulation = of(
        "scaffold", [[(1, 0)]], {"divisor": "steps"}, rounds=1, local_steps=2, momentum=0.5
    )
    first, second = g(0.0, 1, 0), g(0.05, 1, 0)
    state = trained(simulation)
    assert is_pair(state.clients["control"]["weight"][0], (1.5 * first + second) / 2)


def test_scaffold_weighs_clients_alike() -> None:
    """From w = 0 as in FedAvg's test: (0.15 - 0.05) / 2, c = (-1.5 + 0.5) / 2."""
    state = trained(of("scaffold", [[(2, 0), (4, 0)], [(1, 1)]], rounds=1))
    assert is_pair(state.server["params"]["weight"], 0.05)
    assert is_pair(state.server["control"]["weight"], -0.5)


def test_fedavgm_goes_on_along_the_change_of_the_round_before() -> None:
    """beta = 1/2, eta = 2: v <- beta v + (w - mean_k w_k), w <- w - eta v.

    Round 1: the mean is 0.25 / 3 as in FedAvg's test, v = -0.25 / 3, w = 0.5 / 3.
    """
    simulation = of("fedavgm", [[(2, 0), (4, 0)], [(1, 1)]], {"beta": 0.5, "eta": 2.0}, rounds=2)
    v, w = -0.25 / 3, 0.5 / 3
    first = w + 0.1 * (s(-4 * w) * 2 + s(-8 * w) * 4) / 2
    second = w - 0.1 * s(2 * w)
    v = 0.5 * v + (w - (2 * first + second) / 3)
    state = trained(simulation)
    assert is_pair(state.server["velocity"]["weight"], v)
    assert is_pair(state.server["params"]["weight"], w - 2 * v)


@pytest.mark.parametrize("server", ["adam", "yogi", "adagrad"])
def test_fedopts_server_steps_along_the_mean_change(server: str) -> None:
    """Two rounds; d of round 1 is 0.25 / 3 as in FedAvg's test, v begins as tau^2."""
    values = {"server": server, "eta": 0.5, "beta1": 0.5, "beta2": 0.75, "tau": 0.1}
    held: list[Samples] = [[(2, 0), (4, 0)], [(1, 1)]]
    w, m, v = 0.0, 0.0, 0.01
    for _ in range(2):
        d = -0.1 * (2 * mean_g(w, held[0]) + mean_g(w, held[1])) / 3
        m = m / 2 + d / 2
        if server == "adam":
            v = 0.75 * v + 0.25 * d**2
        elif server == "yogi":
            v -= 0.25 * d**2 * math.copysign(1, v - d**2)
        else:
            v += d**2
        w += 0.5 * m / (math.sqrt(v) + 0.1)
    state = trained(of("fedopt", held, values, rounds=2))
    assert is_pair(state.server["params"]["weight"], w)


def test_fedbn_averages_all_but_batch_normalisation() -> None:
    """z = (w n, -w n) of n = gamma h + beta, with h the normalised batch; batches of four.

    d/dw = g(w; n, y),  d/dn = 2 w/n g(w; n, y),  d/dgamma = h d/dn,  d/dbeta = d/dn. The client of
    two samples sees them twice in a batch, which is the same mean, and for the running variance the
    same sum of squares over 3.
    """
    held: list[Samples] = [[(1, 0), (5, 1)], [(0, 1), (2, 0), (6, 0), (4, 0)]]
    simulation = of(
        "fedbn",
        held,
        make=normalising,
        rounds=2,
        batch_size=4,
    )
    # By hand: a step of each client, whose gamma and beta are its own.
    w, gamma, beta = 0.5, [1.0, 1.0], [0.0, 0.0]
    for _ in range(2):
        ends = []
        for k, samples in enumerate(held):
            x, y = (np.array(values) for values in zip(*samples, strict=True))
            h = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
            n = gamma[k] * h + beta[k]
            down = np.array([g(w, a, b) for a, b in zip(n, y, strict=True)])
            ends.append(w - 0.1 * down.mean())
            gamma[k] -= 0.1 * (2 * w * down / n * h).mean()
            beta[k] -= 0.1 * (2 * w * down / n).mean()
        # The server has but w, weighted by samples.
        w = (2 * ends[0] + 4 * ends[1]) / 6
    # The same in Fedloom: w on the server, the rest with the clients.
    state = trained(simulation, stored_normalising())
    assert list(state.server["params"]) == ["1.weight"]
    assert state.server["buffers"] == {}
    assert is_pair(state.server["params"]["1.weight"], w)
    own = {**state.clients["params"], **state.clients["buffers"]}
    assert own["0.weight"].flatten().tolist() == pytest.approx(gamma, abs=1e-12)
    assert own["0.bias"].flatten().tolist() == pytest.approx(beta, abs=1e-12)
    # Two batches of means 3 and 3, and of variances (2 * 4 + 2 * 4) / 3 and 20 / 3.
    assert own["0.running_mean"].flatten().tolist() == pytest.approx([0.19 * 3] * 2)
    assert own["0.running_var"].flatten().tolist() == pytest.approx(
        [0.81 + 0.19 * 16 / 3, 0.81 + 0.19 * 20 / 3]
    )
    assert own["0.num_batches_tracked"].tolist() == [2, 2]


def mean_du(u: float, w: float, samples: Samples) -> float:
    """The gradient of the body u under a head (w, -w)."""
    return float(np.mean([2 * w / u * g(w, u * x, y) for x, y in samples]))


def mean_dw(u: float, w: float, samples: Samples) -> float:
    return mean_g(w, [(u * x, y) for x, y in samples])


def test_fedrep_trains_the_own_head_first_and_then_the_shared_body() -> None:
    """Two steps of the head, momentum 1/2, then one of the body under the new head; two rounds."""
    held: list[Samples] = [[(1, 0), (3, 1)], [(2, 1)]]
    simulation = of(
        "fedrep",
        held,
        {"head_epochs": 2},
        body_and_head,
        rounds=2,
        local_steps=1,
        momentum=0.5,
    )
    u, heads = 1.5, [0.5, 0.5]
    for _ in range(2):
        bodies = []
        for k, samples in enumerate(held):
            v = mean_dw(u, heads[k], samples)
            heads[k] -= 0.1 * v
            v = 0.5 * v + mean_dw(u, heads[k], samples)
            heads[k] -= 0.1 * v
            bodies.append(u - 0.1 * mean_du(u, heads[k], samples))
        u = (2 * bodies[0] + bodies[1]) / 3
    state = trained(simulation, stored_two(1.5, 0.5))
    assert list(state.server["params"]) == ["0.weight"]
    assert state.server["params"]["0.weight"].item() == pytest.approx(u, abs=1e-12)
    for k in (0, 1):
        assert is_pair(state.clients["params"]["1.weight"][k], heads[k])


def normalising() -> nn.Module:
    """Batch normalisation of the one feature, and (w, -w) in ``1.weight``."""
    return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2, bias=False))


def stored_normalising() -> dict[str, Any]:
    """Statistics of nothing: mean 0, variance 1."""
    return {
        "params": {
            "0.weight": tensor([1.0]),
            "0.bias": tensor([0.0]),
            "1.weight": tensor([[0.5], [-0.5]]),
        },
        "buffers": {
            "0.running_mean": tensor([0.0]),
            "0.running_var": tensor([1.0]),
            "0.num_batches_tracked": torch.tensor(0),
        },
    }


def test_fedbabu_trains_the_body_under_the_head_that_it_began_with() -> None:
    held: list[Samples] = [[(1, 0), (3, 1)], [(2, 1)]]
    u = 1.5
    for _ in range(2):
        ends = [u - 0.1 * mean_du(u, 0.5, samples) for samples in held]
        u = (2 * ends[0] + ends[1]) / 3
    simulation = of("fedbabu", held, make=body_and_head, rounds=2)
    state = trained(simulation, stored_two(1.5, 0.5))
    assert state.server["params"]["0.weight"].item() == pytest.approx(u, abs=1e-12)
    assert state.server["params"]["1.weight"].tolist() == [[0.5], [-0.5]]


@pytest.mark.parametrize("order", ["second", "first", "free"])
def test_perfedavg_judges_a_step_on_one_half_by_the_other(order: str) -> None:
    """F(w) = f(w - alpha f'(w; D); D'), equation 3, with D every other sample of the batch.

    With w' = w - alpha g(w; D) the gradient is g(w'; D') (1 - alpha g'(w; D)), and first order
    leaves the bracket out; without the Hessian, g' times what follows is a difference of g. Here
    g'(w; x, y) = 2 x^2 s(2 w x) s(-2 w x). It is (half) the slope of F over (w, -w). The client of
    three samples has one to judge by: what fills the batch does not count.
    """
    held: list[Samples] = [[(1, 0), (2, 1), (3, 0), (-1, 1)], [(2, 0), (1, 1), (3, 1)]]
    alpha, w = 0.3, 0.2
    values = {"alpha": alpha, "order": order, "delta": 0.01}
    simulation = of("perfedavg", held, values, rounds=1, batch_size=4)
    flat = [sample for samples in held for sample in samples]
    ends = []
    for row, samples in enumerate(held):
        drawn = [flat[i] for i in simulation.round_schedule(1).schedules[0].index[row, 0]][
            : len(samples)
        ]
        inner, outer = drawn[0::2], drawn[1::2]
        down = mean_g(w - alpha * mean_g(w, inner), outer)
        if order == "second":
            bend = np.mean([2 * x * x * s(2 * w * x) * s(-2 * w * x) for x, _ in inner])
            down *= 1 - alpha * float(bend)
            assert down == pytest.approx(slope(w, alpha, inner, outer) / 2, abs=1e-8)
        if order == "free":
            ahead, behind = (mean_g(w + far * down, inner) for far in (0.01, -0.01))
            down -= alpha * (ahead - behind) / 0.02
        ends.append(w - 0.1 * down)
    weight = trained(simulation, begin=w).server["params"]["weight"]
    assert is_pair(weight, (4 * ends[0] + 3 * ends[1]) / 7)


def slope(w: float, alpha: float, inner: Samples, outer: Samples, h: float = 1e-5) -> float:
    """dF/dw by central differences of the objective itself."""

    def objective(at: float) -> float:
        z = [2 * (at - alpha * mean_g(at, inner)) * x * (1 - 2 * y) for x, y in outer]
        return float(np.mean(np.log1p(np.exp(-np.array(z)))))

    return (objective(w + h) - objective(w - h)) / (2 * h)


def test_moon_pulls_features_to_the_shared_and_away_from_the_last_model() -> None:
    """Features u x of two numbers u, logits V u x; two steps a round, so that both pulls are felt.

    For x > 0 the cosines are those of u: the contrast (equation 3) is log(1 + exp(d)) with
    d = (cos(u, u_last) - cos(u, u_shared)) / tau, and its gradient s(d) dd/du.
    """
    held: list[Samples] = [[(1, 0), (3, 1)], [(2, 1)]]
    mu, tau = 2.0, 0.5
    simulation = of(
        "moon",
        held,
        {"mu": mu, "tau": tau},
        lambda: nn.Sequential(nn.Linear(1, 2, bias=False), nn.Linear(2, 2, bias=False)),
        rounds=3,
        local_steps=2,
    )
    # By hand, three rounds.
    u, v = np.array([0.5, 1.0]), np.array([[1.0, -0.5], [0.25, 0.75]])
    begun = {"params": {"0.weight": tensor(u[:, None]), "1.weight": tensor(v)}, "buffers": {}}
    last, felt = [u, u], 0.0
    for _ in range(3):
        ends = []
        for k, samples in enumerate(held):
            uk, vk = u, v
            for _ in range(2):
                du, dv = np.zeros(2), np.zeros((2, 2))
                # Cross-entropy.
                for x, y in samples:
                    odds = np.exp(vk @ uk * x)
                    down = odds / odds.sum() - np.eye(2)[y]
                    du += vk.T @ down * x / len(samples)
                    dv += np.outer(down, uk * x) / len(samples)
                # The contrast.
                d = (cosine(uk, last[k]) - cosine(uk, u)) / tau
                pull = s(d) * (cosine_slope(uk, last[k]) - cosine_slope(uk, u)) / tau
                uk, vk = uk - 0.1 * (du + mu * pull), vk - 0.1 * dv
                felt = max(felt, abs(pull).max())
            ends.append((uk, vk))
            last[k] = uk
        # The mean, weighted by samples.
        u, v = ((2 * a + b) / 3 for a, b in zip(*ends, strict=True))
    assert felt > 0.01
    # The same in Fedloom.
    state = trained(simulation, begun)
    found = state.server["params"]
    np.testing.assert_allclose(found["0.weight"][:, 0], u, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["1.weight"], v, rtol=0, atol=1e-12)
    previous = state.clients["previous"]["params"]["0.weight"][..., 0]
    np.testing.assert_allclose(previous, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", ["ditto", "mrmtl"])
@pytest.mark.parametrize(("keep", "carried"), [(True, 0.5), (False, 0.0)])
def test_ditto_and_mrmtl_hold_each_model_near_what_is_shared(
    method: str, keep: bool, carried: float
) -> None:
    """Two rounds of a step each, momentum 1/2, lambda = 2, from w = 0.2.

    Round 1: all begin where the shared model is, and take FedAvg's step. Round 2: the own model's
    gradient is g(v) + lambda (v - w), with w what round 1 ended with: in Ditto FedAvg's model, of
    which the server goes on; in MR-MTL (equation 4) the plain mean of the own ones.
    """
    simulation = of(method, HELD, {"lam": 2.0}, rounds=2, momentum=0.5, keep_optimizer=keep)
    first = [mean_g(0.2, samples) for samples in HELD]
    before = [0.2 - 0.1 * v for v in first]
    share = (2 / 3, 1 / 3) if method == "ditto" else (1 / 2, 1 / 2)
    w = float(np.dot(share, before))
    after = [
        at - 0.1 * (carried * v + mean_g(at, samples) + 2.0 * (at - w))
        for at, v, samples in zip(before, first, HELD, strict=True)
    ]
    sent = after
    if method == "ditto":
        moves = [v * carried + mean_g(w, samples) for v, samples in zip(first, HELD, strict=True)]
        sent = [w - 0.1 * move for move in moves]
    state = trained(simulation, begin=0.2)
    assert is_pair(state.server["params"]["weight"], float(np.dot(share, sent)))
    for k, expected in enumerate(after):
        seen = simulation.method.views[PERSONAL](state.server, trees.take(state.clients, k))
        assert is_pair(seen["params"]["weight"], expected)


def line() -> nn.Module:
    return nn.Linear(1, 2)


def stored_line(w: float, b: float) -> dict[str, Any]:
    """Variables (w, -w) and biases (b, -b)."""
    params = {"weight": tensor([[w], [-w]]), "bias": tensor([b, -b])}
    return {"params": params, "buffers": {}}


def line_step(theta: np.ndarray, samples: Samples) -> np.ndarray:
    """The gradient at theta = (w, -w, b, -b): s(2 (w x + b)) - [y = 0], times x and times 1."""
    down = [
        (s(2 * (theta[0] * x + theta[2])) - (y == 0)) * np.array([x, -x, 1, -1]) for x, y in samples
    ]
    return np.mean(down, axis=0)


def numbers(variables: Any) -> np.ndarray:
    return np.concatenate([variables["params"][name].flatten() for name in ("weight", "bias")])


def inclination_slope(a: np.ndarray, v: np.ndarray) -> np.ndarray:
    """d (v a)/|a| / da."""
    length = np.sqrt(a @ a)
    return np.asarray((v - (v @ a) * a / length**2) / length)


@pytest.mark.parametrize("regulariser", ["mixture", "models", "released"])
def test_pfedgraph_mixes_by_samples_and_by_likeness(regulariser: str) -> None:
    """Two rounds of two steps, so that the client's term - mu cos(theta, received) is felt, or
    that of all models, - mu sum_j W_ij cos(theta, theta_j), which the released code adds.

    Row i is the projection of p_j + cos_ij / (2 lambda), which for two clients takes half of what
    is over 1 from both, and cuts at 0 and 1. Cosines are of what was moved since the beginning.
    """
    held: list[Samples] = [[(1, 0), (2, 0)], [(-0.5, 0)]]
    lam, mu = 2.0, 0.5
    simulation = of(
        "pfedgraph",
        held,
        {"lam": lam, "mu": mu, "regulariser": regulariser},
        line,
        rounds=2,
        local_steps=2,
    )
    # By hand, two rounds: first what clients train.
    pulled = [np.zeros(4), np.zeros(4)]
    origin = np.array([0.5, -0.5, 0.25, -0.25])
    starts, share, seen = [origin, origin], np.array([2, 1]) / 3, []
    for _ in range(2):
        ends = []
        for samples, received, pull in zip(held, starts, pulled, strict=True):
            theta = received
            for _ in range(2):
                toward = inclination_slope(theta, pull)
                if regulariser == "mixture":
                    toward = cosine_slope(theta, received)
                if regulariser == "released":
                    toward = -toward
                theta = theta - 0.1 * (line_step(theta, samples) - mu * toward)
            ends.append(theta)
        # Then how alike their moves are, and the mixtures which that gives.
        likeness = cosine(ends[0] - origin, ends[1] - origin)
        seen.append(likeness)
        starts, units = [], [end / np.sqrt(end @ end) for end in ends]
        pulled = []
        for i in (0, 1):
            v = share + np.array([1 if i == j else likeness for j in (0, 1)]) / (2 * lam)
            first = min(max(v[0] - (v.sum() - 1) / 2, 0), 1)
            assert 0 < first < 1
            starts.append(first * ends[0] + (1 - first) * ends[1])
            pulled.append(first * units[0] + (1 - first) * units[1])
    # The example is one in which likeness is felt.
    assert all(0.01 < abs(likeness) < 0.9 for likeness in seen)
    # The same in Fedloom.
    state = trained(simulation, stored_line(0.5, 0.25))
    for k in (0, 1):
        client = trees.take(state.clients, k)
        view = simulation.method.views[PERSONAL](state.server, client)
        np.testing.assert_allclose(numbers(client[PAYLOAD]), starts[k], rtol=0, atol=1e-12)
        np.testing.assert_allclose(numbers(view), ends[k], rtol=0, atol=1e-12)


def test_pfedgraph_takes_models_that_moved_alike_as_one() -> None:
    """A cosine above 0.9 counts as 1; then a row is the shares of samples, whatever lambda."""
    held: list[Samples] = [[(1, 0), (3, 0)], [(1, 0)]]
    simulation = of("pfedgraph", held, {"lam": 0.01}, line, rounds=1)
    origin = np.array([0.5, -0.5, 0.25, -0.25])
    ends = [origin - 0.1 * line_step(origin, samples) for samples in held]
    assert 0.9 < cosine(ends[0] - origin, ends[1] - origin) < 0.995
    state = trained(simulation, stored_line(0.5, 0.25))
    for k in (0, 1):
        started = numbers(trees.take(state.clients, k)[PAYLOAD])
        np.testing.assert_allclose(started, (2 * ends[0] + ends[1]) / 3, rtol=0, atol=1e-12)
