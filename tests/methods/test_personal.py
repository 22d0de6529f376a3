"""Methods that predict for a client in a way of their own (`hand_model`)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hand_model import Samples, is_pair, of, s, stored, trained

from fl.api import trees
from fl.api.method import PERSONAL_PARAMS
from fl.base.schema import PERSONAL
from fl.engine.client_data import ClientData
from fl.methods.knn_per import KNNPer, best_share

ONE: list[Samples] = [[(1, 0)]]


def test_pfedme_moves_w_after_every_k_steps_of_theta() -> None:
    """K = 2 steps at .1 on one batch, lambda 3, then w by eta lambda (w - theta), eta .05."""
    values = {"lam": 3.0, "steps": 2, "inner_lr": 0.1}
    simulation = of("pfedme", ONE, values, rounds=1, local_steps=1, lr=0.05)
    state = trained(simulation)
    theta = 0.05 - 0.1 * (-s(-0.1) + 3 * 0.05)
    assert is_pair(state.server["params"]["weight"], 0.05 * 3 * theta)
    personal = simulation.method.views[PERSONAL](state.server, trees.take(state.clients, 0))
    assert is_pair(personal["params"]["weight"], theta)


def test_pfedmes_server_moves_by_beta() -> None:
    values = {"lam": 3.0, "steps": 1, "inner_lr": 0.1, "beta": 0.5}
    state = trained(of("pfedme", ONE, values, rounds=1, local_steps=1, lr=0.05))
    assert is_pair(state.server["params"]["weight"], 0.5 * 0.05 * 3 * 0.05)


def test_fedrods_shared_model_sees_balanced_classes_and_the_own_head_does_not() -> None:
    """Two of class 0, one of class 1: outputs plus log 2 and log 1, so that p_0 = 2/3 at z = 0."""
    simulation = of("fedrod", [[(1, 0), (2, 0), (1, 1)]], rounds=1, batch_size=3)
    state = trained(simulation)
    assert is_pair(state.server["params"]["weight"], 0.1 / 9)
    own = state.clients[PERSONAL_PARAMS]["weight"][0]
    assert is_pair(own, 0.1 / 3)
    view = simulation.method.views[PERSONAL]
    variables = view(state.server, trees.take(state.clients, 0))
    outputs = view.predict(variables, {}, torch.tensor([[3.0]], dtype=torch.float64))
    assert is_pair(outputs, 3 * (0.1 / 9 + 0.1 / 3))


def test_fedrods_shared_model_learns_nothing_of_a_client_with_one_class() -> None:
    state = trained(of("fedrod", ONE, rounds=1))
    assert is_pair(state.server["params"]["weight"], 0)
    assert is_pair(state.clients[PERSONAL_PARAMS]["weight"][0], 0.05)


def test_knn_per_votes_by_distance() -> None:
    """Samples at 0, 1 and 4; the two nearest of 0 are at squared distances 0 and 1."""
    memory = {"features": torch.tensor([[0.0], [1.0], [4.0]]), "y": torch.tensor([0, 1, 1])}
    near = KNNPer(k=2, scale=0.5).neighbours(memory, torch.tensor([[0.0]]), 2)
    assert near[0].tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.exp(2))])


def test_knn_per_takes_the_smallest_of_the_best_shares() -> None:
    """The model says 0 by .9 and the neighbours say 1: they win from a share of .5 on."""
    near, model = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.9, 0.1]])
    assert float(best_share(near, model, torch.tensor([1]))) == pytest.approx(0.5)
    assert float(best_share(near, model, torch.tensor([0]))) == 0


def test_knn_per_serves_a_client_without_training_samples_by_the_stored_model() -> None:
    simulation = of("knn-per", [[(1, 0)], [(1, 1)]], {"lam": 0.5}, rounds=1)
    held = ClientData(
        {**simulation.client_data.samples, "train": [np.array([0]), np.zeros(0, np.int64)]}
    )
    simulation = replace(simulation, client_data=held)
    rows = simulation.evaluate(simulation.begin(stored(1.0)), 1)
    chosen = (rows["metric"] == "loss") & (rows["split"] == "test") & (rows["client"] == 1)
    assert rows.loc[chosen, "value"].item() == pytest.approx(-math.log(s(-2)))


def test_knn_per_mixes_what_the_stored_model_says() -> None:
    """lambda = 1/2; client 0 holds class 1 at 1, where the model w = 1 says class 0."""
    simulation = of("knn-per", [[(1, 1)]], {"lam": 0.5}, rounds=1)
    state = trained(simulation, 1.0)
    rows = simulation.evaluate(state, 1)
    loss = rows.loc[(rows["metric"] == "loss") & (rows["split"] == "test"), "value"].item()
    assert loss == pytest.approx(-math.log(0.5 * 1 + 0.5 * s(-2)))
    assert is_pair(state.server["params"]["weight"], 1)
