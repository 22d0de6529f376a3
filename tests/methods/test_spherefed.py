"""SphereFed and its calibration by plain autograd and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_model import Samples, of, trained
from torch import nn

from fl.base.schema import GLOBAL

CLIENTS: list[Samples] = [[(1.0, 0), (2.0, 0), (0.5, 1)], [(-1.0, 1), (0.25, 1), (1.5, 0)]]


def two_layers(width: int) -> Any:
    return lambda: nn.Sequential(nn.Linear(1, width), nn.Linear(width, 2))


def test_spherefed_steps_along_angles_and_shares_the_body_alone() -> None:
    """With as many features as classes, the loss is 2 - 2 cos(z, w_y)."""
    simulation = of("spherefed", CLIENTS, None, two_layers(2), rounds=1, batch_size=3)
    variables = simulation.network.init(1)
    state = trained(simulation, variables)
    head = state.server["fixed_head"]["1.weight"]
    torch.testing.assert_close(head @ head.T, torch.eye(2).double(), rtol=0, atol=1e-14)
    assert state.server["fixed_head"]["1.bias"].tolist() == [0, 0]
    assert set(state.server["params"]) == {"0.weight", "0.bias"}
    weights, biases = [], []
    for samples in CLIENTS:
        x, y = (torch.from_numpy(np.array(each)) for each in zip(*samples, strict=True))
        w, b = (variables["params"][f"0.{n}"].clone().requires_grad_() for n in ("weight", "bias"))
        z = x[:, None] @ w.T + b
        (2 - 2 * F.cosine_similarity(z, head[y])).mean().backward()
        weights.append((w - 0.1 * w.grad).detach())
        biases.append((b - 0.1 * b.grad).detach())
    found = state.server["params"]
    torch.testing.assert_close(found["0.weight"], sum(weights) / 2, rtol=0, atol=1e-12)
    torch.testing.assert_close(found["0.bias"], sum(biases) / 2, rtol=0, atol=1e-12)
    view = simulation.method.views[GLOBAL]
    model = view(state.server, None)
    outputs = view.predict(model, {}, torch.tensor([[0.75]]).double())
    z = 0.75 * found["0.weight"][:, 0] + found["0.bias"]
    torch.testing.assert_close(outputs[0], head @ z / z.norm(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ridge", [1e-3, 2.0])
def test_the_calibrated_head_is_ridge_regression_on_all_samples(ridge: float) -> None:
    """By least squares with one more row for each feature; half of the clients train in a round."""
    values = {"ridge": ridge}
    make = two_layers(3)
    simulation = of("spherefed-head", CLIENTS, values, make, rounds=1, participation=0.5)
    variables = simulation.network.init(1)
    state = trained(simulation, variables)
    params = {name: leaf.numpy() for name, leaf in variables["params"].items()}
    x, y = (np.array(each) for each in zip(*CLIENTS[0], *CLIENTS[1], strict=True))
    z = x[:, None] * params["0.weight"][:, 0] + params["0.bias"]
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    rows = np.concatenate([z, ridge**0.5 * np.eye(3)])
    targets = np.concatenate([np.eye(2)[y], np.zeros((3, 2))])
    expected = np.linalg.lstsq(rows, targets)[0].T
    view = simulation.method.views[GLOBAL]
    model = view(state.server, None)
    np.testing.assert_allclose(model["params"]["1.weight"].numpy(), expected, rtol=0, atol=1e-9)
    assert torch.equal(model["params"]["0.weight"], variables["params"]["0.weight"])
    outputs = view.predict(model, {}, torch.from_numpy(x)[:, None])
    np.testing.assert_allclose(outputs.numpy(), z @ expected.T, rtol=0, atol=1e-9)
