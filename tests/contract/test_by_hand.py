"""Each method on a model of two numbers, against arithmetic that is done here.

The model is z = (a x, b x), two logits of one feature. With s the logistic function, the gradient
of the cross-entropy of a sample (x, y) is  d/da = (s((a - b) x) - [y = 0]) x  and  d/db = -d/da,
so weights that begin as (a, -a) stay of that form and one number tells all: with w = a,

    g(w; x, 0) = -s(-2 w x) x,    g(w; x, 1) = s(2 w x) x,    loss(w; x, 0) = log(1 + exp(-2 w x)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl import fields, registry, simulate
from fl.data.batches import Arrays
from fl.engine import State
from fl.errors import Where
from fl.evaluate import Held
from fl.method import Setting
from fl.network import Network
from fl.simulate import Simulation
from fl.training import Training

IDENTITY = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
Samples = Sequence[tuple[float, int]]


def s(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def of(
    method: str, clients: Sequence[Samples], values: dict[str, Any] | None = None, **training: Any
) -> Simulation:
    """Clients that hold these (x, y) to train and to test on; a step is a client's whole data."""
    where = Where("test")
    entry = registry.find("method", method, where)
    given = {"batch_size": 2, "lr": 0.1, "precision": "float64", **training}
    settled = Training(**Training.settle(fields.parse(Training, given, where), where))
    network = Network(lambda: nn.Linear(1, 2, bias=False), torch.float64)
    flat = [sample for samples in clients for sample in samples]
    bounds = np.cumsum([0, *map(len, clients)])
    held = [np.arange(a, b) for a, b in pairwise(bounds)]
    x, y = (np.array(values) for values in zip(*flat, strict=True))
    return Simulation(
        method=entry.make(entry.parse(values, where)).build(
            Setting(network, settled, 2, len(clients))
        ),
        network=network,
        training=settled,
        arrays=Arrays(x[:, None], y, IDENTITY, dtype=torch.float64),
        held=Held({"train": held, "test": held}),
        classes=2,
        seed=0,
    )


def stored(w: float) -> dict[str, Any]:
    """Variables of the form (w, -w)."""
    return {
        "params": {"weight": torch.tensor([[w], [-w]], dtype=torch.float64)},
        "buffers": {},
    }


def trained(simulation: Simulation, begin: float = 0.0) -> State:
    state = simulation.begin(stored(begin))
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        state = done.state
    return state


def is_pair(weight: Tensor, expected: float) -> bool:
    """Whether a weight is (expected, -expected)."""
    return weight.flatten().tolist() == pytest.approx([expected, -expected], abs=1e-12)


def test_fedavg_is_the_mean_weighted_by_samples() -> None:
    """Two samples (2, 0), (4, 0) and one (1, 1), from w = 0 where s = 1/2.

    Client 0: g = -(2 + 4)/2 * 1/2 = -1.5, w = 0.15. Client 1: g = 1/2, w = -0.05.
    Mean: (2 * 0.15 - 1 * 0.05) / 3 = 0.25 / 3.
    """
    state = trained(of("fedavg", [[(2, 0), (4, 0)], [(1, 1)]], rounds=1))
    assert is_pair(state.server["params"]["weight"], 0.25 / 3)


def test_fedavg_goes_on_from_the_mean_without_the_momentum_of_the_round_before() -> None:
    state = trained(of("fedavg", [[(2, 0), (4, 0)], [(1, 1)]], rounds=2, momentum=0.9))
    w = 0.25 / 3
    first = w + 0.1 * (s(-4 * w) * 2 + s(-8 * w) * 4) / 2
    second = w - 0.1 * s(2 * w)
    assert is_pair(state.server["params"]["weight"], (2 * first + second) / 3)


def test_fedprox_pulls_towards_the_weights_of_the_round() -> None:
    """One sample (1, 0), two steps of a round, mu = 0.5, from w = 0.

    Step 1: the term is flat at its centre, g = -1/2, w = 0.05.
    Step 2: g = -s(-0.1) + 0.5 * (0.05 - 0).
    """
    simulation = of("fedprox", [[(1, 0)]], {"mu": 0.5}, rounds=1, local_steps=2)
    expected = 0.05 - 0.1 * (-s(-0.1) + 0.5 * 0.05)
    assert is_pair(trained(simulation).server["params"]["weight"], expected)


def test_fedprox_pulls_towards_the_newest_shared_weights() -> None:
    """In round 2 the centre is what round 1 ended with, so its first step feels no pull."""
    simulation = of("fedprox", [[(1, 0)]], {"mu": 0.5}, rounds=2, local_steps=1)
    assert is_pair(trained(simulation).server["params"]["weight"], 0.05 + 0.1 * s(-0.1))


@pytest.mark.parametrize(("keep", "carried"), [(True, 0.5), (False, 0.0)])
def test_local_trains_each_client_alone(keep: bool, carried: float) -> None:
    """Two rounds of a step each, momentum 1/2, clients (1, 0) and (2, 1), from w = 0.

    Client 0: v = -1/2, w = 0.05; v = carried * -1/2 - s(-0.1).
    Client 1: v = 1, w = -0.1; v = carried * 1 + 2 s(-0.4).
    """
    simulation = of("local", [[(1, 0)], [(2, 1)]], {"keep_optimizer": keep}, rounds=2, momentum=0.5)
    weights = trained(simulation).clients["params"]["weight"]
    assert is_pair(weights[0], 0.05 - 0.1 * (carried * -0.5 - s(-0.1)))
    assert is_pair(weights[1], -0.1 - 0.1 * (carried * 1.0 + 2 * s(-0.4)))


@pytest.mark.parametrize(("keep", "carried"), [(True, 0.5), (False, 0.0)])
def test_fine_tuning_goes_on_from_the_stored_weights(keep: bool, carried: float) -> None:
    """As Local, but from w = 0.1: v = -s(-0.2), and for the other client v = 2 s(0.4)."""
    simulation = of(
        "finetune", [[(1, 0)], [(2, 1)]], {"keep_optimizer": keep}, rounds=2, momentum=0.5
    )
    weights = trained(simulation, begin=0.1).clients["params"]["weight"]
    for weight, x, sign in ((weights[0], 1, -1), (weights[1], 2, 1)):
        v = sign * s(sign * 0.2 * x) * x
        w = 0.1 - 0.1 * v
        v = carried * v + sign * s(sign * 2 * w * x) * x
        assert is_pair(weight, w - 0.1 * v)


def test_round_0_of_fine_tuning_is_the_stored_model_on_every_client() -> None:
    simulation = of("finetune", [[(1, 0)], [(2, 1)]])
    rows = simulation.before(stored(0.1))
    assert set(zip(rows["round"], rows["split"], rows["stage"], strict=True)) == {
        (0, "test", "global")
    }
    value = rows.set_index(["client", "metric"])["value"]
    assert value[0, "loss"] == pytest.approx(math.log(1 + math.exp(-0.2)), abs=1e-12)
    assert value[1, "loss"] == pytest.approx(math.log(1 + math.exp(0.4)), abs=1e-12)
    assert value[0, "accuracy"] == 1.0
    assert value[1, "accuracy"] == 0.0
