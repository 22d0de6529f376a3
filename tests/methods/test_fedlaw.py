"""FedLAW beside its released optimisation, with PyTorch's Adam and plain autograd."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
import worlds
from hand_model import Samples, mean_g, of, stored
from worlds import ends, shared

from fl.engine import simulate

CLIENTS: list[Samples] = [[(1, 0), (0.5, 1)], [(3, 1), (1, 1), (2, 0)], [(2, 0)]]
SERVER: Samples = [(1, 0), (-2, 1), (0.5, 0)]


def learned_model(models: list[float], shares: list[float]) -> tuple[float, float]:
    """The next weight and gamma: `fedlaw_optimization` of ZexiLee/ICML-2023-FedLAW, 47f7a72."""
    x, y = (torch.tensor(values) for values in zip(*SERVER, strict=True))
    stack = torch.tensor([[[w], [-w]] for w in models], dtype=torch.float64)
    numbers = torch.tensor([*np.log(shares), 0.0], requires_grad=True)
    adam = torch.optim.Adam([numbers], lr=0.05, betas=(0.5, 0.999))

    def model() -> torch.Tensor:
        weights = numbers[-1].exp() * numbers[:-1].softmax(0)
        return (weights[:, None, None] * stack).sum(0)

    for _ in range(7):
        adam.zero_grad()
        F.cross_entropy(F.linear(x[:, None].double(), model()), y).backward()
        adam.step()
    return float(model().detach()[0]), float(numbers[-1].detach().exp())


def test_fedlaw_learns_gamma_and_the_weights_of_every_round() -> None:
    simulation = of(
        *("fedlaw", CLIENTS, {"server_epochs": 7, "server_lr": 0.05}),
        **{"server": SERVER, "rounds": 3, "local_steps": 1, "batch_size": 3},
    )
    w, gammas = 0.3, []
    state = simulation.begin(stored(w))
    for finished in simulate.rounds(simulation, state, 0, "stacked"):
        state = finished.state
        w, gamma = learned_model([w - 0.1 * mean_g(w, s) for s in CLIENTS], [2 / 6, 3 / 6, 1 / 6])
        gammas.append(gamma)
        np.testing.assert_allclose(
            state.server["params"]["weight"].flatten(), [w, -w], rtol=0, atol=1e-12
        )
        np.testing.assert_allclose(state.server["gamma"], gamma, rtol=0, atol=1e-12)
    assert len(set(gammas)) == 3


def test_fedlaw_whose_server_does_not_learn_is_fedavg() -> None:
    still = shared(*ends("fedlaw", "mlp", {"server_lr": 0.0}))
    average = shared(*ends("fedavg", "mlp"))
    assert worlds.distance(still, average) < 1e-14
    assert worlds.distance(shared(*ends("fedlaw", "mlp")), average) > 1e-3


def test_a_client_without_samples_has_no_weight_in_fedlaw() -> None:
    rounds = {"server": SERVER, "rounds": 2, "local_steps": 1, "batch_size": 3}
    servers = []
    for clients in (CLIENTS, [*CLIENTS, []]):
        simulation = of("fedlaw", clients, {"server_epochs": 3}, **rounds)
        state = simulation.begin(stored(0.3))
        for finished in simulate.rounds(simulation, state, 0, "loop"):
            state = finished.state
        servers.append(state.server)
    assert worlds.distance(*servers) < 1e-14
