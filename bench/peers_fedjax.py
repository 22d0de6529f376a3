"""The workloads with fedjax: its federated averaging over compiled steps, networks in Haiku.

Its models are functions of parameters alone, and batch normalisation has a state beside them: so
there is no W3 but the plain one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fedjax
import haiku as hk
import jax
import numpy as np

from bench.workloads import CLASSES, LR, MOMENTUM, Workload

jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 uses the name that jax has since dropped

COMPILATIONS: list[float] = []


def mlp() -> list[Any]:
    """60-20-10."""
    return [hk.Linear(20), jax.nn.relu, hk.Linear(CLASSES)]


def lenet() -> list[Any]:
    """As in `fl.models.lenet`."""
    layers: list[Any] = []
    for channels in (6, 16):
        layers += [hk.Conv2D(channels, 5, padding="VALID"), jax.nn.relu, hk.MaxPool(2, 2, "VALID")]
    layers.append(hk.Flatten())
    for width in (120, 84):
        layers += [hk.Linear(width), jax.nn.relu]
    return [*layers, hk.Linear(CLASSES)]


def cnn() -> list[Any]:
    """As in `fl.models.cnn`, without batch normalisation."""
    layers: list[Any] = []
    for channels in (16, 32):
        layers += [hk.Conv2D(channels, 3, with_bias=False), jax.nn.relu, hk.MaxPool(2, 2, "VALID")]
    return [*layers, hk.Flatten(), hk.Linear(CLASSES)]


def count(event: str, seconds: float, **_: object) -> None:
    """Keep what jax reports of a compilation: tracing, lowering, XLA."""
    if event.startswith("/jax/core/compile/"):
        COMPILATIONS.append(seconds)


jax.monitoring.register_event_duration_secs_listener(count)


def compiling() -> float:
    """Seconds spent on compilation so far."""
    return sum(COMPILATIONS)


NETS = {"W1": mlp, "W2": lenet, "W3-plain": cnn}


def begin(name: str, work: Workload, steps: int) -> Callable[[], list[np.ndarray]]:
    """What trains a round, of ``steps`` for each client, and returns the weights after it."""
    x, y = work.draw()
    if x.ndim > 2:
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))  # Haiku wants the channels last
    model = fedjax.create_model_from_haiku(
        hk.transform(lambda batch: hk.Sequential(NETS[name]())(batch["x"])),
        {"x": x[:1], "y": y[:1]},
        lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], outputs),
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(LR, MOMENTUM),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(work.batch, work.epochs, steps, seed=0),
    )
    keys = jax.random.split(jax.random.PRNGKey(0), work.clients)
    parts = zip(np.split(x, work.clients), np.split(y, work.clients), keys, strict=True)
    clients = [(i, fedjax.ClientDataset({"x": x, "y": y}), k) for i, (x, y, k) in enumerate(parts)]
    state = algorithm.init(model.init(keys[0]))

    def train() -> list[np.ndarray]:
        nonlocal state
        state, _ = algorithm.apply(state, clients)
        return [np.asarray(weights) for weights in jax.tree_util.tree_leaves(state.params)]

    return train
