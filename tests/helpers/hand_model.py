"""A model of a few numbers, whose training can be done by hand.

The model is z = (a x, b x), two logits of one feature. With s the logistic function, the gradient
of the cross-entropy of a sample (x, y) is  d/da = (s((a - b) x) - [y = 0]) x  and  d/db = -d/da,
so weights that begin as (a, -a) stay of that form and one number tells all: with w = a,

    g(w; x, 0) = -s(-2 w x) x,    g(w; x, 1) = s(2 w x) x,    loss(w; x, 0) = log(1 + exp(-2 w x)).

Methods that tell a body from a head get one number u before it, z = (w u x, -w u x), whose gradient
is  d/du = 2 w/u g(w; u x, y).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl.api.network import Network
from fl.api.training import Training
from fl.base import fields, registry
from fl.base.errors import Location
from fl.engine import simulate
from fl.engine.client_data import ClientData
from fl.engine.run_setup import MethodComponents, RunSetup
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.engine.state import State

IDENTITY = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
Samples = Sequence[tuple[float, int]]


def s(z: float) -> float:
    return 1 / (1 + math.exp(-z))


def g(w: float, x: float, y: int) -> float:
    """The first component of the gradient at (w, -w); the second is its opposite."""
    return s(2 * w * x) * x if y else -s(-2 * w * x) * x


def mean_g(w: float, samples: Samples) -> float:
    return float(np.mean([g(w, x, y) for x, y in samples]))


def two_numbers() -> nn.Module:
    return nn.Linear(1, 2, bias=False)


def body_and_head() -> nn.Module:
    """u in ``0.weight``, (w, -w) in ``1.weight``."""
    return nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))


def of(
    method: str,
    clients: Sequence[Samples],
    values: dict[str, Any] | None = None,
    make: Callable[[], nn.Module] = two_numbers,
    classes: int = 2,
    server: Samples = (),
    **training: Any,
) -> Simulation:
    """Clients that hold these (x, y) to train and to test on; a step is a client's whole data.

    server: what it holds itself.
    """
    location = Location("test")
    entry = registry.find("method", method, location)
    given = {"batch_size": 2, "lr": 0.1, "precision": "float64", **training}
    settled = Training(**Training.settle(fields.parse(Training, given, location), location))
    network = Network(make, torch.float64)
    flat = [sample for samples in (*clients, server) for sample in samples]
    bounds = np.cumsum([0, *map(len, clients)])
    own = [np.arange(a, b) for a, b in pairwise(bounds)]
    held = ClientData({"train": own, "test": own}, server=np.arange(bounds[-1], len(flat)))
    x, y = (np.array(values) for values in zip(*flat, strict=True))
    arrays = Arrays(x[:, None], y, IDENTITY, dtype=torch.float64)
    components = MethodComponents(entry.instantiate(entry.parse(values, location)))
    return Simulation.of(components, RunSetup(network, settled, arrays, held, classes), seed=0)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def stored(w: float) -> dict[str, Any]:
    """Variables of the form (w, -w)."""
    return {"params": {"weight": tensor([[w], [-w]])}, "buffers": {}}


def stored_two(u: float, w: float) -> dict[str, Any]:
    """Variables of a body u and a head (w, -w)."""
    return {"params": {"0.weight": tensor([[u]]), "1.weight": tensor([[w], [-w]])}, "buffers": {}}


def trained(simulation: Simulation, begin: float | dict[str, Any] = 0.0) -> State:
    variables = begin if isinstance(begin, dict) else stored(begin)
    state = simulation.begin(variables)
    for done in simulate.rounds(simulation, state, 0, "stacked"):
        state = done.state
    return state


def is_pair(weight: Tensor, expected: float) -> bool:
    """Whether a weight is (expected, -expected)."""
    return weight.flatten().tolist() == pytest.approx([expected, -expected], abs=1e-12)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt(a @ a * (b @ b)))


def cosine_slope(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """d cos(a, b)/da = (b/|b| - cos(a, b) a/|a|) / |a|."""
    length = np.sqrt(a @ a)
    return np.asarray((b / np.sqrt(b @ b) - cosine(a, b) * a / length) / length)
