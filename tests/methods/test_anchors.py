"""Methods that share class means, on a model of a few numbers (`hand_model`).

The body is u, so that the feature of a sample is u x; with w = 0 the loss says nothing of u, and
only the guiding term moves it.
"""

from __future__ import annotations

import math

import pytest
import torch
from hand_model import Samples, body_and_head, g, of, stored_two, trained

from fl.api import trees
from fl.blocks.anchors import (
    anchor_scores,
    class_means,
    contrastive_guiding,
    guiding_losses,
    uniform_anchors,
    weighted_anchors,
)

CLIENTS: list[Samples] = [[(1, 0), (3, 0)], [(8, 0)]]
ROUND = {"rounds": 1, "batch_size": 2}


def double(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_class_means_leave_out_what_weighs_nothing_and_absent_classes_are_zero() -> None:
    features = double([[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]])
    labels, weight = torch.tensor([1, 1, 0]), double([1.0, 1.0, 0.0])
    means, counts = class_means(features, labels, weight, 3)
    assert means.tolist() == [[0, 0], [2, 3], [0, 0]]
    assert counts.tolist() == [0, 2, 0]


def test_anchors_are_means_over_the_clients_that_hold_a_class() -> None:
    means, counts = double([[[2.0], [0.0]], [[8.0], [5.0]]]), double([[2.0, 0.0], [1.0, 1.0]])
    assert weighted_anchors(means, counts).tolist() == [[4.0], [5.0]]
    assert uniform_anchors(means, counts).tolist() == [[5.0], [5.0]]


def test_contrastive_guiding_is_the_cross_entropy_of_cosines() -> None:
    """A feature along the first of two anchors at a right angle: cos 1 and 0, tau 1/2."""
    features, anchors = double([[3.0, 0.0], [0.0, 2.0]]), double([[5.0, 0.0], [0.0, 0.1]])
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    labels = torch.tensor([0, 0])
    assert guiding_losses(features, labels, anchors, 0.5).tolist() == pytest.approx([right, wrong])
    assert float(contrastive_guiding(features, labels, anchors, 0.5)) == pytest.approx(
        (right + wrong) / 2
    )


def test_a_class_without_an_anchor_is_left_out_and_its_samples_are_not_guided() -> None:
    anchors = double([[5.0, 0.0], [0.0, 0.1], [0.0, 0.0]])
    features = double([[3.0, 0.0], [1.0, 1.0]]).requires_grad_()
    losses = guiding_losses(features, torch.tensor([0, 2]), anchors, 0.5)
    assert losses.tolist() == pytest.approx([math.log(1 + math.exp(-2)), 0])
    [gradient] = torch.autograd.grad(losses.sum(), features)
    assert gradient.isfinite().all()
    assert gradient[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("anchors", "anchor", "moves"),
    # Mean of 2 (x - a) x over each client's samples, a = 4 or 5.
    [("weighted", 4, (-6, 64)), ("uniform", 5, (-10, 48))],
)
def test_fedfm_pulls_features_to_the_anchors_of_the_model_that_was_sent(
    anchors: str, anchor: float, moves: tuple[float, float]
) -> None:
    values = {"lam": 0.5, "first": 1, "loss": "squared", "anchors": anchors}
    state = trained(of("fedfm", CLIENTS, values, body_and_head, 1, **ROUND), stored_two(1, 0))
    first, second = (1 - 0.1 * 0.5 * move for move in moves)
    assert state.server["anchors"].tolist() == [[anchor]]
    assert float(state.server["params"]["0.weight"]) == pytest.approx((2 * first + second) / 3)


def test_fedfm_guides_nothing_before_its_first_round() -> None:
    values = {"lam": 0.5, "first": 2, "loss": "squared"}
    state = trained(of("fedfm", CLIENTS, values, body_and_head, 1, **ROUND), stored_two(1, 0))
    assert float(state.server["params"]["0.weight"]) == 1
    assert state.server["anchors"].tolist() == [[0]]


@pytest.mark.parametrize("first", [2, 3])
def test_fedfm_lite_guides_by_anchors_of_the_round_before(first: int) -> None:
    """Round 1 leaves u and moves w to .1; anchors are of that model: 2. Round 2 uses them."""
    values = {"lam": 0.5, "first": first, "loss": "squared", "lite": True}
    simulation = of("fedfm", CLIENTS[:1], values, body_and_head, 1, rounds=2)
    guided = 0.5 * 2 if first == 2 else 0
    own = sum(2 * 0.1 * g(0.1, x, 0) for x, _ in CLIENTS[0]) / 2
    state = trained(simulation, stored_two(1, 0))
    assert float(state.server["params"]["0.weight"]) == pytest.approx(1 - 0.1 * (own + guided))


def test_fedproto_holds_own_features_to_the_mean_of_all() -> None:
    """Round 1 leaves the bodies; prototypes (1 + 3 + 8) / 3 = 4 pull in round 2."""
    simulation = of("fedproto", CLIENTS, {"lam": 0.5}, body_and_head, 1, rounds=2)
    state = trained(simulation, stored_two(1, 0))
    w = 0.1 * 8 / 2
    moved = 2 * w * g(w, 8, 0) + 0.5 * 2 * (8 - 4) * 8
    bodies = trees.take(state.clients, 1)["params"]["0.weight"]
    assert float(bodies) == pytest.approx(1 - 0.1 * moved)
    assert not state.server["params"], "models stay with the clients"


def test_fedproto_predicts_by_the_nearest_prototype() -> None:
    found = anchor_scores(double([[4.0]]), double([[2.0], [8.0], [0.0]]))
    assert found.tolist() == [[-4.0, -16.0, -17.0]]


def test_moon_with_squared_distances_pulls_features_to_those_of_the_shared_model() -> None:
    """One sample (2, 0), two steps, from u = 1 and w = .5; the second step feels the pull.

    Step 1: u = 1 - .1 * 2 w g(w, 2, 0), w = .5 - .1 * u g at u = 1.
    Step 2: the pull is mu d/du (2 u - 2)^2 = mu 8 (u - 1).
    """
    values = {"second": "squared", "mu": 0.25}
    simulation = of("moon", [[(2, 0)]], values, body_and_head, rounds=1, local_steps=2)
    state = trained(simulation, stored_two(1, 0.5))
    u, w = 1 - 0.1 * 2 * 0.5 * g(0.5, 2, 0), 0.5 - 0.1 * g(0.5, 2, 0)
    moved = 2 * w / u * g(w, 2 * u, 0) + 0.25 * 8 * (u - 1)
    assert float(state.server["params"]["0.weight"]) == pytest.approx(u - 0.1 * moved)
