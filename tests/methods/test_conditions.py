"""GPFL and FedCP: one step of plain autograd on the authors' modules, typed once more."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hand_model import Samples, of, trained
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import PERSONAL_PARAMS
from fl.base.schema import PERSONAL
from fl.methods.fedcp import head_context, kernel_discrepancy, selection

SAMPLES: Samples = [(1.0, 0), (2.0, 0), (0.5, 1), (-1.0, 1), (1.5, 0)]
X, Y = (torch.tensor(each) for each in zip(*SAMPLES, strict=True))


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2))


def layer_norm(x: Tensor, layer: dict[str, Tensor]) -> Tensor:
    deviation = (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    return (x - x.mean(-1, keepdim=True)) / deviation * layer["scale"] + layer["shift"]


def leaves_with_gradients(tree: dict) -> dict:  # type: ignore[type-arg]
    return trees.apply(lambda leaf: leaf.detach().clone().requires_grad_(), tree)


def test_gpfl_steps_along_its_three_losses() -> None:
    values = {"lam": 0.3, "mu": 0.2}
    simulation = of("gpfl", [SAMPLES], values, two_layers, rounds=1, batch_size=5)
    variables = simulation.network.init(1)
    begin = simulation.begin(variables)
    shared = leaves_with_gradients(begin.server["shared_params"])
    weights = leaves_with_gradients(variables["params"])
    embeddings, sent = shared["embeddings"], begin.server["shared_params"]["embeddings"]

    def conditioned(z: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (
            layer_norm(F.relu(layer["weight"] @ condition + layer["bias"]), layer)
            for layer in (shared["gamma"], shared["beta"])
        )
        return F.relu((gamma + 1) * z + beta)

    # The three losses, and the decay.
    z = X.double()[:, None] @ weights["0.weight"].T + weights["0.bias"]
    shares = torch.tensor([3 / 5, 2 / 5]).double()
    outputs = F.linear(conditioned(z, shares @ sent), weights["1.weight"], weights["1.bias"])
    generic = conditioned(z, sent.mean(0))
    cosines = F.cosine_similarity(generic[:, None], embeddings[None], dim=-1)
    distance = (generic - sent[Y]).norm(dim=1).mean()
    decay = sum(leaf.square().sum() for leaf in trees.leaves(shared))
    loss = F.cross_entropy(outputs, Y) + F.cross_entropy(cosines, Y) + 0.3 * distance + 0.1 * decay
    loss.backward()
    # What is shared has moved down them.
    state = trained(simulation, variables)
    moved = trees.apply(lambda w: (w - 0.1 * w.grad).detach(), {**shared})
    for name, tensor in trees.apply(torch.clone, moved).items():
        found = state.server["shared_params"][name]
        pairs = zip(trees.leaves({"x": tensor}), trees.leaves({"x": found}), strict=True)
        for expected, actual in pairs:
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-7)
    # So has the network, whose head stays with the client.
    client = trees.take(state.clients, 0)["params"]
    assert set(client) == {"1.weight", "1.bias"}
    for name, weight in weights.items():
        actual = client[name] if name in client else state.server["params"][name]
        assert weight.grad is not None
        torch.testing.assert_close(actual, (weight - 0.1 * weight.grad).detach(), rtol=0, atol=1e-7)


def released_discrepancy(x: Tensor, y: Tensor) -> Tensor:
    """MMD of TsingZ0/PFLlib, d832e76, `clientcp.py`, with distances of differences."""
    total = torch.zeros(()).double()
    for a in (10, 15, 20, 50):
        kernels = [
            torch.exp(-0.5 * (p[:, None] - q[None]).square().sum(-1) / a).mean()
            for p, q in ((x, x), (y, y), (x, y))
        ]
        total = total + kernels[0] + kernels[1] - 2 * kernels[2]
    return total


def test_the_discrepancy_is_the_released_one_and_ignores_padding() -> None:
    draw = torch.Generator().manual_seed(1)
    x, y = (3 * torch.randn(6, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    weight = torch.ones(6).double()
    expected = released_discrepancy(x, y)
    torch.testing.assert_close(kernel_discrepancy(x, y, weight), expected, rtol=1e-12, atol=0)
    longer = [torch.cat([each, torch.full((2, 4), 9.0).double()]) for each in (x, y)]
    weight = torch.cat([weight, torch.zeros(2).double()])
    torch.testing.assert_close(kernel_discrepancy(*longer, weight), expected, rtol=1e-12, atol=0)


def test_a_selector_without_noise_divides_features_by_a_softmax_of_two() -> None:
    draw = torch.Generator().manual_seed(2)
    z = torch.randn(5, 3, generator=draw, dtype=torch.float64)
    layer = {
        "weight": torch.randn(6, 3, generator=draw, dtype=torch.float64),
        "bias": torch.randn(6, generator=draw, dtype=torch.float64),
        "scale": torch.ones(6).double(),
        "shift": torch.zeros(6).double(),
    }
    context = head_context({"weight": torch.tensor([[1.0, 0, 2], [2, 4, 0]]).double()})
    assert context.tolist() == pytest.approx(list(np.array([3, 4, 2]) / np.sqrt(29)))
    hidden = F.relu(layer_norm((z * context) @ layer["weight"].T + layer["bias"], layer))
    expected = hidden.reshape(5, 2, 3).softmax(1)[:, 0]
    torch.testing.assert_close(selection(layer, z, context, None), expected, rtol=0, atol=1e-12)


def test_noise_of_the_selector_is_the_difference_of_two_gumbel_numbers() -> None:
    """With equal logits, a share is the logistic function of a logistic number: uniform."""
    zero = {
        "weight": torch.zeros(8, 4),
        "bias": torch.zeros(8),
        "scale": torch.ones(8),
        "shift": torch.zeros(8),
    }
    shares = selection(zero, torch.ones(20_000, 4), torch.ones(4), torch.arange(20_000))
    quantiles = torch.quantile(shares.flatten().double(), torch.tensor([0.1, 0.5, 0.9]).double())
    assert quantiles.tolist() == pytest.approx([0.1, 0.5, 0.9], abs=0.01)


def test_fedcp_sends_the_mean_of_both_heads_and_keeps_its_own() -> None:
    simulation = of("fedcp", [SAMPLES], {"lam": 0.0}, two_layers, rounds=1, batch_size=5)
    variables = simulation.network.init(1)
    state = trained(simulation, variables)
    own = trees.take(state.clients, 0)[PERSONAL_PARAMS]
    sent = state.server["params"]["1.weight"]
    first = variables["params"]["1.weight"]
    assert not torch.equal(own["weight"], first)
    torch.testing.assert_close(sent, (own["weight"] + first) / 2, rtol=0, atol=1e-15)
    view = simulation.method.views[PERSONAL]
    model = view(state.server, trees.take(state.clients, 0))
    again = [view.predict(model, {}, X.double()[:, None]) for _ in range(2)]
    assert torch.equal(*again)
