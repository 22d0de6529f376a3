"""Methods whose server does more than average, on a model of a few numbers (`hand_model`)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hand_model import (
    Samples,
    body_and_head,
    is_pair,
    mean_g,
    of,
    s,
    stored,
    stored_two,
    trained,
)

from fl.api import trees
from fl.base.schema import GLOBAL, PERSONAL
from fl.blocks.path_length import start_path, step_path
from fl.engine import simulate
from fl.methods import fediot
from fl.methods.cfl import CFL, bipartition
from fl.methods.fedamp import FedAMP, softmax_of_others

ONE: list[Samples] = [[(1, 0)]]
APART: list[Samples] = [[(1, 0)], [(1, 1)]]
"""Two clients who want the opposite."""


def test_feddyn_corrects_by_what_clients_moved_so_far() -> None:
    """alpha = 1/2, one step a round at rate .1, from w = 0.

    Round 1: w_1 = .05, g_1 = -alpha .05 = -.025 = h, w = .05 - h / alpha = .1.
    Round 2: the gradient is -s(-.2) - g_1, and the proximal term is flat at its centre.
    """
    w1 = 0.1 - 0.1 * (-s(-0.2) + 0.025)
    h = -0.025 - 0.5 * (w1 - 0.1)
    state = trained(of("feddyn", ONE, {"alpha": 0.5}, rounds=2, local_steps=1))
    assert is_pair(state.server["params"]["weight"], w1 - h / 0.5)
    assert is_pair(state.server["drift"]["weight"], h)


def test_feddyns_server_shares_its_state_among_all_clients() -> None:
    """One of two takes part: h moves by half of what that one does, and w by h / alpha."""
    simulation = of(
        "feddyn", [[(1, 0)], [(1, 0)]], {"alpha": 0.5}, rounds=1, local_steps=1, participation=0.5
    )
    state = trained(simulation)
    assert is_pair(state.server["drift"]["weight"], -0.0125)
    assert is_pair(state.server["params"]["weight"], 0.05 + 0.025)


def test_feddyn_can_score_the_mean_of_the_models_that_were_sent() -> None:
    simulation = of("feddyn", ONE, {"alpha": 0.5, "scored": "mean"}, rounds=1, local_steps=1)
    state = trained(simulation)
    assert is_pair(state.server["params"]["weight"], 0.1)
    assert is_pair(simulation.method.views[GLOBAL](state.server, None)["params"]["weight"], 0.05)


def test_fednova_divides_by_how_far_each_client_went() -> None:
    """Two steps and one step at rate .1: paths .2 and .1, of which the mean is .5/3."""
    clients: list[Samples] = [[(1, 0), (1, 0)], [(1, 1)]]
    w0 = 0.05 + 0.1 * s(-0.1)
    direction = 2 / 3 * (-w0 / 0.2) + 1 / 3 * (0.05 / 0.1)
    state = trained(of("fednova", clients, rounds=1, batch_size=1))
    assert is_pair(state.server["params"]["weight"], -0.5 / 3 * direction)


def test_fednova_counts_a_gradient_as_often_as_momentum_repeats_it() -> None:
    """Momentum 1/2: steps 1 and 1 + 1/2, so that a path is .1 + .15."""
    state = trained(of("fednova", ONE, rounds=1, local_steps=2, momentum=0.5))
    fedavg = trained(of("fedavg", ONE, rounds=1, local_steps=2, momentum=0.5))
    assert worlds_agree(state.server["params"], fedavg.server["params"])


def test_fednovas_path_is_shorter_where_a_proximal_term_pulls_back() -> None:
    """mu = 1: the first of two gradients at rate .1 counts .9, so that paths are .19 and .1."""
    clients: list[Samples] = [[(1, 0), (1, 0)], [(1, 1)]]
    w0 = 0.05 + 0.1 * (s(-0.1) - 0.05)
    direction = 2 / 3 * (-w0 / 0.19) + 1 / 3 * (0.05 / 0.1)
    state = trained(of("fednova", clients, {"mu": 1.0}, rounds=1, batch_size=1))
    assert is_pair(state.server["params"]["weight"], -(2 * 0.19 + 0.1) / 3 * direction)


def test_a_path_is_what_each_gradient_alone_would_move() -> None:
    momentum, mu, lr, steps = 0.9, 0.5, 0.1, 30

    def moved(gradients: list[float]) -> float:
        w = v = 0.0
        for gradient in gradients:
            v = momentum * v + gradient + mu * w
            w -= lr * v
        return -w

    alone = [moved([float(s == t) for t in range(steps)]) for s in range(steps)]
    assert min(alone) < 0, "some gradients have come to count the other way"
    work = start_path({"params": {"w": torch.zeros((), dtype=torch.float64)}})
    for _ in range(steps):
        work = step_path(work, momentum, lr, mu)
    assert float(work["path"]) == pytest.approx(sum(map(abs, alone)))


@pytest.mark.parametrize(("method", "expected"), [("fednova", 0.05), ("scaffold", 0.025)])
def test_a_client_without_samples_went_nowhere(method: str, expected: float) -> None:
    """FedNova weighs clients by samples, SCAFFOLD alike."""
    state = trained(of(method, [*ONE, []], rounds=1))
    assert is_pair(state.server["params"]["weight"], expected)
    assert all(leaf.isfinite().all() for leaf in trees.leaves(state.server))


def worlds_agree(a: trees.Tree, b: trees.Tree) -> bool:
    pairs = zip(trees.leaves(a), trees.leaves(b), strict=True)
    return all(torch.allclose(x, y, rtol=0, atol=1e-14) for x, y in pairs)


def test_two_groups_are_cut_where_the_largest_similarity_between_them_is_least() -> None:
    alike = torch.tensor([[1.0, 0.9, -0.2, 0.1], [0.9, 1.0, 0.3, -0.5]])
    alike = torch.cat([alike, torch.tensor([[-0.2, 0.3, 1.0, 0.8], [0.1, -0.5, 0.8, 1.0]])])
    assert bipartition(alike).tolist() == [0, 0, 1, 1]
    # A chain: each is like the next, and the weakest link is the second.
    chain = torch.eye(4)
    for i, value in enumerate((0.9, 0.5, 0.7)):
        chain[i, i + 1] = chain[i + 1, i] = value
    assert bipartition(chain).tolist() == [0, 0, 1, 1]


def test_cfl_splits_a_stationary_cluster_whose_clients_still_move() -> None:
    """Updates of +.05 and -.05 cancel: the mean stays 0 until the second round, which splits."""
    whole = trained(of("cfl", APART, {"after": 1}, rounds=1))
    assert whole.server["cluster"].tolist() == [0, 0]
    split = of("cfl", APART, {"after": 1}, rounds=2)
    state = trained(split)
    assert state.server["cluster"].tolist() == [0, 1]
    for client, expected in ((0, 0.05), (1, -0.05)):
        view = split.method.views[PERSONAL](state.server, trees.take(state.clients, client))
        assert is_pair(view["params"]["weight"], expected)


@pytest.mark.parametrize(("samples", "split"), [((1, 3), False), ((3, 1), False), ((2, 2), True)])
def test_cfl_weights_the_mean_update_by_samples(samples: tuple[int, int], split: bool) -> None:
    """Updates 1 and -1: means -.5, .5 and 0, of which the bound .4 lets only the last be split."""
    method = CFL(eps1=0.4, eps2=0.6)
    update, n = torch.tensor([[1.0], [-1.0]]), torch.tensor(samples)
    assert bool(method.at_odds(update, n, torch.tensor(1.0))) == split


@pytest.mark.parametrize(("eps2", "cluster"), [(0.07, [0, 1]), (0.08, [0, 0])])
def test_cfls_bounds_can_be_absolute(eps2: float, cluster: list[int]) -> None:
    """Both clients move by (.05, -.05), which is .0707 long."""
    values = {"after": 1, "bounds": "absolute", "eps2": eps2}
    assert trained(of("cfl", APART, values, rounds=2)).server["cluster"].tolist() == cluster


def test_cfl_is_fedavg_while_nobody_is_apart() -> None:
    same: list[Samples] = [[(2, 0), (4, 0)], [(1, 0)]]
    state = trained(of("cfl", same, {"after": 1}, rounds=3))
    average = trained(of("fedavg", same, rounds=3))
    assert state.server["cluster"].tolist() == [0, 0]
    assert worlds_agree(trees.take(state.server["models"], 0), average.server)


def test_fedamps_attention_falls_with_the_distance() -> None:
    """|w_1 - w_2|^2 = .5, alpha = .5, sigma = 2: the other weighs .25 exp(-.25)."""
    models = {"w": torch.tensor([[0.5, 0.5], [0.0, 0.0]])}
    other = 0.25 * math.exp(-0.25)
    expected = torch.tensor([[1 - other, other], [other, 1 - other]], dtype=torch.float64)
    torch.testing.assert_close(FedAMP(alpha=0.5, sigma=2.0).weights(models), expected)
    # Three of one place: the others would weigh 2, and so share all.
    alike = FedAMP().weights({"w": torch.zeros(3, 2)})
    torch.testing.assert_close(alike, (1 - torch.eye(3, dtype=torch.float64)) / 2)


def test_heurfedamp_gives_the_rest_by_softmax() -> None:
    found = softmax_of_others(torch.tensor([[9.0, 1.0, 0.0]] * 3), 0.25)
    share = math.e / (math.e + 1)
    assert found[0].tolist() == pytest.approx([0.25, 0.75 * share, 0.75 * (1 - share)])


def test_fedamp_pulls_towards_what_was_mixed_for_the_client() -> None:
    """Round 1 moves to +.05 and -.05; mixed with weights .25 exp(-.02/2); round 2 pulls there."""
    values = {"lam": 2.0, "alpha": 0.5, "sigma": 2.0}
    state = trained(of("fedamp", APART, values, rounds=2))
    other = 0.25 * math.exp(-0.02 / 2)
    mixed = (1 - other) * 0.05 - other * 0.05
    expected = 0.05 - 0.1 * (-s(-0.1) + 4 * (0.05 - mixed))
    assert is_pair(trees.take(state.clients, 0)["params"]["weight"], expected)


def test_pfedhn_steps_along_the_vector_jacobian_product() -> None:
    plain = {"hyper_momentum": 0, "hyper_weight_decay": 0}
    values = {"hidden": 3, "layers": 1, "embedding": 2, "hyper_lr": 0.5, **plain}
    simulation = of("pfedhn", APART, values, rounds=1)
    begun, state = simulation.begin(stored(0.0)), trained(simulation)
    hyper = begun.server["hyper"]

    def made(hyper: trees.Tree, client: int) -> torch.Tensor:
        first, second = hyper["hidden"]["0"], hyper["hidden"]["1"]
        inner = F.relu(first["weight"] @ hyper["clients"][client] + first["bias"])
        inner = second["weight"] @ inner + second["bias"]
        return hyper["heads"]["weight"]["weight"] @ inner + hyper["heads"]["weight"]["bias"]

    total = trees.zeros_like(hyper)
    for client, (x, y) in enumerate(samples[0] for samples in APART):
        theta, pull = torch.func.vjp(lambda h, k=client: made(h, k), dict(hyper))
        logits = theta * x
        slope = (torch.softmax(logits, 0) - F.one_hot(torch.tensor(y), 2)) * x
        [gradient] = pull(0.1 * slope)  # What a step at rate .1 took away.
        total = trees.apply(torch.add, total, gradient)
    expected = trees.apply(lambda h, t: h - 0.5 * t / 2, hyper, total)
    assert worlds_agree(state.server["hyper"], expected)


def test_fediot_encodes_on_clients_and_classifies_on_the_server() -> None:
    """x = 2 comes back as c relu(a u x + b) + d; the classifier sees features u 3 and u -1.

    With r the error, u moves by -.1 times 2 r c a x on the client, and the others likewise. Then
    the server takes one step in each of two epochs, on the mean of both of its samples.
    """
    simulation = of(
        "fediot",
        [[(2, 1)]],
        {"width": 1, "server_epochs": 2},
        body_and_head,
        server=[(3, 0), (-1, 1)],
        rounds=1,
        local_steps=1,
    )
    # Positive, so that the unit is at work.
    begun = simulation.begin(stored_two(0.5, 0.2))
    decoder = begun.server["decoders"]["x"]
    for layer in decoder.values():
        for name, leaf in layer.items():
            layer[name] = leaf.abs()
    a, b = (decoder["hidden"][name].item() for name in ("weight", "bias"))
    c, d = (decoder["output"][name].item() for name in ("weight", "bias"))
    # By hand: the client's step on u, then two steps of the server on w.
    error = c * (a * 0.5 * 2 + b) + d - 2
    u = 0.5 - 0.1 * 2 * error * c * a * 2
    w = 0.2
    for _ in range(2):
        w -= 0.1 * mean_g(w, [(3 * u, 0), (-u, 1)])
    # The same in Fedloom.
    [done] = simulate.rounds(simulation, begun, 0, "stacked")
    server = done.state.server
    assert server["params"]["0.weight"].item() == pytest.approx(u, abs=1e-12)
    assert is_pair(server["params"]["1.weight"], w)
    moved = server["decoders"]["x"]
    assert moved["output"]["bias"].item() == pytest.approx(d - 0.1 * 2 * error, abs=1e-12)
    assert moved["hidden"]["weight"].item() == pytest.approx(a - 0.1 * 2 * error * c * 0.5 * 2)


def test_a_decoder_of_tokens_says_which_there_are() -> None:
    """Two of three tokens are equal: the best distribution has 2/3 and 1/3."""
    found = fediot.reconstruction_error(
        True, torch.tensor([[math.log(2), 0.0]]), torch.tensor([[0, 1, 0]])
    )
    assert found.item() == pytest.approx(-(2 * math.log(2 / 3) + math.log(1 / 3)) / 3)
    found = fediot.reconstruction_error(
        False, torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 4.0]])
    )
    assert found.item() == pytest.approx(2.5)
