"""FedProx's mu, which follows the training loss."""

from __future__ import annotations

import pytest
import worlds
from hand_model import of, s, tensor, trained
from worlds import world

from fl.methods.fedprox import FedProx

ADAPT = {"adapt": True, "mu": 0.5}


def after(losses: list[float], mu: float = 0.0, patience: int = 5) -> list[float]:
    kept = {**dict.fromkeys(("loss", "falls", "rounds"), tensor(0.0)), "mu": tensor(mu)}
    found = []
    for loss in losses:
        kept = FedProx(adapt=True, patience=patience).adapted(kept, tensor(loss))
        found.append(float(kept["mu"]))
    return found


def test_mu_rises_with_the_loss_and_falls_after_five_falls_in_a_row() -> None:
    assert after([3, 4, 5, 4]) == pytest.approx([0, 0.1, 0.2, 0.2])
    falling = [9.0 - i for i in range(12)]
    assert after(falling, mu=1.0) == pytest.approx([1.0] * 5 + [0.9] * 5 + [0.8] * 2)
    broken = [9, 8, 7, 6, 5, 6, 5, 4, 3, 2, 1]
    assert after([float(x) for x in broken], mu=1.0) == pytest.approx([1] * 5 + [1.1] * 5 + [1.0])


def test_mu_is_never_negative_and_an_equal_loss_is_no_fall() -> None:
    assert after([9, 8, 7, 6], patience=1) == [0, 0, 0, 0]
    assert after([2.0] * 8, mu=0.3) == pytest.approx([0.3] * 8)


def test_the_first_round_has_the_mu_that_it_begins_with() -> None:
    """One sample (1, 0), two steps, so that the term is felt by the second; the loss is log 2."""
    simulation = of("fedprox", [[(1, 0)]], ADAPT, rounds=1, local_steps=2)
    expected = 0.05 - 0.1 * (-s(-0.1) + 0.5 * 0.05)
    state = trained(simulation)
    assert float(state.server["params"]["weight"][0]) == pytest.approx(expected)
    assert float(state.server["loss"]) == pytest.approx(0.6931471805599453)


def test_adapting_fedprox_is_fedprox_while_mu_stays() -> None:
    adapted, _ = worlds.run(world("fedprox", "cnn", {**ADAPT, "patience": 9}, rounds=1))
    plain, _ = worlds.run(world("fedprox", "cnn", {"mu": 0.5}, rounds=1))
    for kind in ("params", "buffers"):
        assert worlds.distance(adapted.server[kind], plain.server[kind]) < 1e-12


def test_dissimilarity_of_two_clients_by_hand() -> None:
    """At w = 0 mean gradients are (-.5, .5) of three samples and (1, -1) of one.

    E||g||^2 = 2 (3/4 .25 + 1/4 1) = .875; the mean is (-.125, .125), squared .03125.
    """
    clients = [[(1, 0), (1, 0), (1, 0)], [(2, 1)]]
    state = trained(of("fedprox", clients, {"dissimilarity": True}, rounds=1, participation=0.5))
    assert float(state.server["variance"]) == pytest.approx(0.84375)
    assert float(state.server["dissimilarity"]) == pytest.approx(28**0.5)


def test_measuring_changes_no_number_and_is_done_in_evaluated_rounds() -> None:
    keys = {"mu": 0.5, "adapt": True}
    plain, _ = worlds.run(world("fedprox", "cnn", keys, rounds=3))
    told, _ = worlds.run(world("fedprox", "cnn", {**keys, "dissimilarity": True}, rounds=3))
    assert worlds.distance({key: told.server[key] for key in plain.server}, plain.server) < 1e-12
    # Only in the last round: the model with which it began differs from that of another round.
    every = {**keys, "dissimilarity": True}
    seldom, _ = worlds.run(world("fedprox", "cnn", every, rounds=3, evaluate_every=3))
    assert float(seldom.server["variance"]) == pytest.approx(float(told.server["variance"]))
    shorter, _ = worlds.run(world("fedprox", "cnn", every, rounds=3, evaluate_every=2))
    assert float(shorter.server["variance"]) == pytest.approx(float(told.server["variance"]))
