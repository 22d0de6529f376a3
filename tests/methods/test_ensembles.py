"""FedDF and FedGen: the server's steps by NumPy and by plain autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import worlds
from hand_model import Samples, mean_g, of, trained
from torch import nn
from worlds import ends, shared

from fl.api import keyed, trees
from fl.api.method import single_pass
from fl.base import rng
from fl.blocks.feature_generator import NOISE, diversity_loss
from fl.blocks.keyed_random import keyed_normal
from fl.methods.fedgen import STREAM

CLIENTS: list[Samples] = [[(1, 0), (2, 1), (0.5, 0)], [(3, 0)], [(1, 1), (2, 0), (1.5, 1), (-1, 0)]]
SERVED: Samples = [(0.5, 0), (-1.0, 1), (2.0, 0), (1.0, 1)]


# FedDF


def softmax(outputs: np.ndarray) -> np.ndarray:
    powers = np.exp(outputs - outputs.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def distilled(models: list[np.ndarray], steps: int) -> np.ndarray:
    """The mean after steps of Adam from .1 on KL(softmax of mean outputs || student's)."""
    x = np.array([sample for sample, _ in SERVED])[:, None]
    teacher = softmax(np.mean([x * w for w in models], axis=0))
    w = np.average(models, axis=0, weights=[len(samples) for samples in CLIENTS])
    mean, square = np.zeros(2), np.zeros(2)
    for step in range(steps):
        slope = ((softmax(x * w) - teacher) * x).mean(0)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        rate = 0.1 * (1 + np.cos(np.pi * step / steps)) / 2
        corrected = np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-8
        w = w - rate * mean / (1 - 0.9 ** (step + 1)) / corrected
    return w


@pytest.mark.parametrize("labels", [(0, 1, 0, 1), (1, 1, 1, 1)])
def test_feddf_distils_mean_outputs_and_uses_no_label_of_the_server(labels: tuple[int]) -> None:
    values = {"server_steps": 4, "server_lr": 0.1}
    served = [(x, label) for (x, _), label in zip(SERVED, labels, strict=True)]
    training = {"rounds": 2, "local_steps": 1, "batch_size": 4}
    state = trained(of("feddf", CLIENTS, values, server=served, **training), begin=0.7)
    w = np.array([0.7, -0.7])
    for _ in range(2):
        ends_ = []
        for samples in CLIENTS:
            slope = mean_g(float(w[0] - w[1]) / 2, samples)
            ends_.append(w - 0.1 * np.array([slope, -slope]))
        w = distilled(ends_, 4)
    found = state.server["params"]["weight"][:, 0].numpy()
    np.testing.assert_allclose(found, w, rtol=0, atol=1e-10)


def test_feddf_without_a_step_is_fedavg() -> None:
    average = shared(*ends("fedavg", "cnn"))
    assert worlds.distance(shared(*ends("feddf", "cnn", {"server_steps": 0})), average) == 0
    assert worlds.distance(shared(*ends("feddf", "cnn")), average) > 1e-4


# FedGen


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 2))


def test_fedgen_is_fedavg_in_round_1_and_without_a_weight() -> None:
    for values, rounds in (({"alpha": 0.0}, 2), ({}, 1)):
        average = shared(*ends("fedavg", "cnn", rounds=rounds))
        assert worlds.distance(shared(*ends("fedgen", "cnn", values, rounds=rounds)), average) == 0
    average = shared(*ends("fedavg", "cnn"))
    assert worlds.distance(shared(*ends("fedgen", "cnn")), average) > 1e-5


@pytest.mark.parametrize("teachers", ["logits", "losses"])
def test_the_generator_takes_adams_steps_on_equation_4(teachers: str) -> None:
    values = {"teachers": teachers, "server_steps": 3, "server_batch": 6, "server_lr": 0.01}
    simulation = of("fedgen", CLIENTS, {**values, "diversity": 0.7}, two_layers, rounds=1)
    begin = simulation.begin(simulation.network.init(1))
    generator = begin.server["generator"]["params"]
    state = trained(simulation, simulation.network.init(1))
    # FedAvg's clients end with the same models, which local training alone gives.
    alone = trained(of("local", CLIENTS, None, two_layers, rounds=1), simulation.network.init(1))
    heads = [trees.take(alone.clients, row)["params"] for row in range(3)]
    counts = torch.tensor([[2, 1], [1, 0], [2, 2]]).double()
    # The generator, its optimiser and its draws.
    layers = [layer[n].clone().requires_grad_() for layer in generator.values() for n in layer]
    a, a_bias, b, b_bias = layers
    optimizer = torch.optim.Adam(layers, lr=0.01)
    draws = torch.Generator().manual_seed(rng.torch_seed(0, "fedgen", 1))
    drawn = torch.multinomial(torch.tensor([5.0, 3.0]).double(), 18, True, generator=draws)
    normal = torch.randn(3, 6, NOISE, generator=draws, dtype=torch.float64)
    for y, noise in zip(drawn.reshape(3, 6), normal, strict=True):
        # What it makes of noise and label, and what the teachers say of that.
        inputs = torch.cat([noise, torch.eye(2).double()[y]], 1)
        z = (inputs @ a.T + a_bias).relu() @ b.T + b_bias
        outputs = [z @ head["1.weight"].T + head["1.bias"] for head in heads]
        if teachers == "logits":
            loss = F.cross_entropy((outputs[0] + outputs[1] + outputs[2]) / 3, y)
        else:
            shares = counts / counts.sum(0)
            loss = torch.stack(
                [
                    sum(shares[k, label] * F.cross_entropy(outputs[k][i], label) for k in range(3))
                    for i, label in enumerate(y)
                ]
            ).mean()
        # The diversity of what it makes.
        gaps = [
            (z[i] - z[j]).abs().mean() * (noise[i] - noise[j]).square().mean()
            for i in range(6)
            for j in range(6)
        ]
        loss = loss + 0.7 * torch.exp(-torch.stack(gaps).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # The same in Fedloom.
    found = state.server["generator"]["params"]
    pairs = zip(layers, (layer[n] for layer in found.values() for n in layer), strict=True)
    for expected, actual in pairs:
        torch.testing.assert_close(actual, expected.detach(), rtol=0, atol=1e-10)
    assert state.server["label_shares"].tolist() == [5 / 8, 3 / 8]


def test_clients_add_the_cross_entropy_of_generated_features() -> None:
    simulation = of("fedgen", CLIENTS, {"alpha": 0.4, "server_steps": 2}, two_layers, rounds=1)
    state = trained(simulation, simulation.network.init(1))
    method = simulation.method
    download, pass_ = method.send(state.server), single_pass(method)
    work = pass_.begin(download, trees.take(state.clients, 0))
    x, y = torch.tensor([[1.0], [2.0], [0.5]]).double(), torch.tensor([0, 1, 0])
    weight, key = torch.tensor([1.0, 1.0, 0.0]).double(), torch.tensor([3, 14, 15])
    value, _ = pass_.loss(download, work, {"x": x, "y": y, "weight": weight, "key": key})
    params = {**work["frozen"], **work["params"]}
    keys = keyed.derive_keys(key, STREAM)
    labels = (keyed.uniform(keys, 0) >= 5 / 8).long()
    inputs = torch.cat([keyed_normal(keys, 1, (NOISE,)), torch.eye(2).double()[labels]], 1)
    first, second = download["generator"]["hidden"], download["generator"]["out"]
    features = (inputs @ first["weight"].T + first["bias"]).relu() @ second["weight"].T
    features = features + second["bias"]
    outputs = features @ params["1.weight"].T + params["1.bias"]
    own = (x @ params["0.weight"].T + params["0.bias"]) @ params["1.weight"].T + params["1.bias"]
    expected = F.cross_entropy(own[:2], y[:2]) + 0.4 * F.cross_entropy(outputs[:2], labels[:2])
    assert float(value) == pytest.approx(float(expected), abs=1e-12)


def test_labels_of_generated_features_follow_the_shares_of_classes() -> None:
    draws = keyed.uniform(keyed.derive_keys(torch.arange(4000), STREAM), 0)
    assert float((draws >= 5 / 8).double().mean()) == pytest.approx(3 / 8, abs=0.03)


def test_diversity_is_smallest_where_features_follow_noise() -> None:
    noise = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    assert float(diversity_loss(noise, torch.ones(8, 3))) == 1
    assert float(diversity_loss(noise, 2 * noise)) < float(diversity_loss(noise, noise)) < 1
