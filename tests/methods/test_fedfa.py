"""FedFA on numbers that can be done by hand: what clients tell each other, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import COUNTS, BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.blocks.reweighting import reweighted_mean, unweighted_upload
from fl.engine import engine
from fl.engine.client_data import ClientData
from fl.engine.run_setup import MethodComponents, RunSetup
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.methods.fedfa import SHARE_EPS, FedFA, histogram_sums, soft_bins, symmetric_kl

IDENTITY = {"scale": 1.0, "mean": 0.0, "sd": 1.0}


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def flat() -> nn.Module:
    return nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(8, 2))


def context(batch_size: int = 2, clients: int = 2, make: Any = flat) -> BuildContext:
    training = Training(batch_size=batch_size, lr=1e-3, precision="float64")
    return BuildContext(Network(make, torch.float64), training, 2, clients, (2, 2, 2))


def simulation(method: Any, clients: Sequence[np.ndarray]) -> Simulation:
    """Clients that hold these images, [n, 2, 2, 2] each; a step is a client's whole data."""
    given = context(batch_size=max(map(len, clients)), clients=len(clients))
    x = np.concatenate(clients)
    positions = np.split(np.arange(len(x)), np.cumsum([len(images) for images in clients])[:-1])
    arrays = Arrays(x, np.arange(len(x)) % 2, IDENTITY, dtype=torch.float64)
    data = ClientData({"train": positions, "test": positions})
    setup = RunSetup(given.network, given.training, arrays, data, 2)
    return Simulation.of(MethodComponents(method), setup, seed=0)


aligned = partial(FedFA, augment="none", histograms=True)


def one_round(run: Simulation) -> dict[str, Any]:
    state, _ = engine.run_round(run.method, run.begin(), run.round_schedule(1), "stacked")
    return state.server


def test_the_server_knows_how_channels_vary_over_clients() -> None:
    """Layer "0" is the input. With p = 1 and momentum 3/4 a client's running mean goes from 0 to a
    quarter of its batch's mean; clients of two and of four samples count alike.
    """
    draw = np.random.default_rng(0)
    clients = [draw.normal(k, 1 + k, (2 + 2 * k, 2, 2, 2)) for k in range(2)]
    method = FedFA(layers=("0",), p=1.0, statistics_momentum=0.75)
    known = one_round(simulation(method, clients))["statistics"]["0"]
    means = [x.mean((2, 3)).mean(0) / 4 for x in clients]
    sds = [0.75 + np.sqrt(x.var((2, 3), ddof=1) + 1e-6).mean(0) / 4 for x in clients]
    for key, told in (("mean", means), ("sd", sds)):
        np.testing.assert_allclose(known[key], np.mean(told, 0), rtol=0, atol=1e-12)
        variance = known[f"{key}_variance"]
        np.testing.assert_allclose(variance, np.var(told, 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("fusion", ["adaptive", "direct"])
def test_what_clients_begin_with_follows_the_fusion(fusion: Any) -> None:
    method = FedFA(layers=("0",), fusion=fusion).build(context())
    server, client = method.init(context().network.init(0))
    known = {**server["statistics"]["0"], "mean_variance": tensor([0.0, 1.0])}
    part: Any = method.passes[0]
    work = part.begin({**server, "statistics": {"0": known}}, {**client, COUNTS: torch.ones(2)})
    gamma = work["alterations"]["fedfa"]["0"]["gamma_mean"]
    expected = [0.0, 2.0] if fusion == "adaptive" else [0.0, 1.0]
    torch.testing.assert_close(gamma, tensor(expected), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("weighting", "weights"), [("samples", [1, 3, 0]), ("uniform", [1, 1, 0])])
def test_a_plain_mean_comes_out_of_a_weighted_one(weighting: str, weights: list[int]) -> None:
    """Clients of 1 and 3 samples, values 10 and 20; a third without samples does not count."""
    training = Training(rounds=1, weighting=weighting)
    sent = [
        unweighted_upload({"a": tensor(v)}, torch.tensor(n), training)
        for v, n in ((10.0, 1), (20.0, 3), (9.0, 0))
    ]
    mean = trees.mean(trees.stack(sent), torch.tensor(weights))
    assert float(reweighted_mean(mean)["a"]) == pytest.approx(15)


def test_soft_bins_are_sharp_at_low_temperatures() -> None:
    """Four bins of (0, 1): a logit of u = .1, .3, .6 and .9 lies in the first to the fourth."""
    values = torch.logit(tensor([0.1, 0.3, 0.6, 0.9]))
    torch.testing.assert_close(soft_bins(values, 4, 1e-3), torch.eye(4).double())
    # At u = 1/4, the first edge, both neighbours hold half; softer, all add up to 1.
    edge = soft_bins(torch.logit(tensor(0.25)), 4, 1e-3)
    torch.testing.assert_close(edge, tensor([0.5, 0.5, 0, 0]))
    soft = soft_bins(values, 4, 1.0)
    torch.testing.assert_close(soft.sum(-1), torch.ones(4).double())
    assert (soft > 0.05).all()


def test_histograms_count_samples_that_weigh_something_and_pixels_alike() -> None:
    low, high = (float(torch.logit(tensor(u))) for u in (0.1, 0.9))
    weight = tensor([1.0, 1.0, 0.0])
    total, count = histogram_sums(tensor([[low], [high], [high]]), weight, 2, 1e-3)
    torch.testing.assert_close(total, tensor([[1.0, 1.0]]))
    assert count == 2
    maps = tensor([[[[low, high]]], [[[high, high]]], [[[low, low]]]])
    torch.testing.assert_close(histogram_sums(maps, weight, 2, 1e-3)[0], tensor([[0.5, 1.5]]))


def test_symmetric_kl_by_hand() -> None:
    """Of (3/4, 1/4) and (1/4, 3/4): 1/2 log 3, both ways."""
    p, q = tensor([0.75, 0.25]), tensor([0.25, 0.75])
    assert float(symmetric_kl(p, q)) == pytest.approx(math.log(3) / 2, abs=1e-5)
    assert float(symmetric_kl(p, p)) == 0
    empty = symmetric_kl(tensor([1.0, 0]), tensor([0.0, 1]))
    assert float(empty) == pytest.approx(math.log((1 + SHARE_EPS) / SHARE_EPS)), (
        "an empty bin is finite"
    )


def test_the_histogram_of_all_clients_is_their_plain_mean() -> None:
    """Features are the flattened input; one client's all lie low, the other's all high."""
    low, high = (float(torch.logit(tensor(u))) for u in (0.1, 0.9))
    clients = [np.full((2, 2, 2, 2), low), np.full((4, 2, 2, 2), high)]
    server = one_round(simulation(aligned(bins=2, tau=1e-3), clients))
    torch.testing.assert_close(server["histogram"], tensor([[0.5, 0.5]] * 8))


def test_before_there_is_a_histogram_nothing_is_aligned() -> None:
    draw = np.random.default_rng(0)
    clients = [draw.normal(size=(4, 2, 2, 2)) for _ in range(2)]
    ends = [one_round(simulation(aligned(lam=lam), clients))["params"] for lam in (0.0, 5.0)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    losses = []
    for lam in (0.0, 5.0):
        run = simulation(aligned(lam=lam), clients)
        state, _ = engine.run_round(run.method, run.begin(), run.round_schedule(1), "loop")
        losses.append(engine.run_round(run.method, state, run.round_schedule(2), "loop")[1])
    assert (losses[1] > losses[0]).all()
