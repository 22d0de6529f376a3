"""What a constraint on features costs a local step: ``python -m bench.constraints``.

Ditto with MK-MMD (weights fitted after every step) on the Synthetic model, beside the same step
written plainly, client after client, with cvxpy for the weights; and on the CNN of CIFAR-10 the
step of Ditto with a constraint, as a multiple of Ditto's own. One thread; the shortest of some
tries counts. On the CNN a step is a round's mean: 5 epochs, as in the paper, in which the shared
model looks at every sample once.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import machine
from bench.kernels import plain_client
from fl.api.method import Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine.arrays import Arrays
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.ditto import Ditto
from fl.models.cifar_cnn import CifarCNN
from fl.models.two_layer import TwoLayer
from fl.parts.mmd import GRID
from fl.terms.mk_mmd import MKMMD
from fl.terms.mmd_d import MMDD
from fl.train import candidates

CLASSES, LAYERS = 10, ("features",)
PLAIN = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
SHAPES = {"synthetic": (60,), "cifar": (3, 32, 32)}
MODELS: dict[str, Any] = {"synthetic": TwoLayer(), "cifar": CifarCNN()}
CLIENTS, BATCHES = {"synthetic": 8, "cifar": 1}, {"synthetic": 10, "cifar": 32}
PER_CLIENT, EPOCHS = {"synthetic": 50, "cifar": 20}, 5
"""Batches that a client's samples make, and how often a round goes over them."""


def simulation(name: str, term: Any = None) -> Simulation:
    """Ditto on generated data, with a term that takes the place of its penalty."""
    draw, shape, clients = np.random.default_rng(0), SHAPES[name], CLIENTS[name]
    samples = clients * PER_CLIENT[name] * BATCHES[name]
    x = draw.standard_normal((samples, *shape), dtype=np.float32)
    training = Training(batch_size=BATCHES[name], lr=0.01, momentum=0.9, local_epochs=EPOCHS)
    network = Network(lambda: MODELS[name].build(shape, CLASSES))
    held = Held({"train": np.split(np.arange(samples), clients)})
    setting = Setting(network, training, CLASSES, clients, shape)
    terms = (term.build(setting),) if term else ()
    method = Ditto(lam=0.0 if term else 0.1).build(
        Setting(network, training, CLASSES, clients, shape, 0, terms)
    )
    arrays = Arrays(x, draw.integers(0, CLASSES, samples), PLAIN)
    return Simulation(method, network, training, arrays, held, CLASSES, seed=0)


def step(name: str, backend: str, steps: int, tries: int, term: Any = None) -> float:
    """Seconds that a step of all clients takes."""
    run = simulation(name, term)
    return candidates.seconds_a_step(
        [run.method], [run.begin()], [run.plan(1)], backend, steps, tries
    )


def plain_steps(steps: int) -> float:
    """Seconds a step of all clients of the Synthetic model, client after client.

    The two models differ from the start, as the program for the weights needs some difference.
    """
    run = simulation("synthetic")
    size, taken = BATCHES["synthetic"], 0.0
    for client in range(CLIENTS["synthetic"]):
        base, own, frozen = (MODELS["synthetic"].build((60,), CLASSES) for _ in range(3))
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in (base, own)]
        weights = torch.full((len(GRID),), 1 / len(GRID))
        index = torch.from_numpy(run.held.samples["train"][client][: steps * size])
        begun = time.perf_counter()
        for chosen in index.split(size):
            x, y = run.arrays.inputs(chosen), run.arrays.labels(chosen)
            for model, optimizer in zip((base, own), optimizers, strict=True):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                if model is own:
                    drift, features = plain_drift(own, frozen, x, weights)
                    loss = loss + drift
                loss.backward()
                optimizer.step()
            weights = plain_client(*features).float()
        taken += time.perf_counter() - begun
    return taken / steps


def plain_drift(
    own: nn.Module, frozen: nn.Module, x: Tensor, weights: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """MK-MMD^2 of the normalised features of two models, and these features."""
    first = F.normalize(own.get_submodule("features")(x), dim=-1)
    with torch.no_grad():
        second = F.normalize(frozen.get_submodule("features")(x), dim=-1)
    gammas = torch.tensor(GRID)[:, None, None]

    def kernels(a: Tensor, b: Tensor) -> Tensor:
        squares = (a[:, None] - b[None]).square().sum(-1)
        return torch.exp(-gammas * squares).mean((-2, -1))

    found = kernels(first, first) + kernels(second, second) - 2 * kernels(first, second)
    return (weights * found).sum(), (first.detach(), second)


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    machine.begin()
    mk = MKMMD(LAYERS)
    ours, plain = step("synthetic", "stacked", asked.steps, 3, mk), plain_steps(asked.steps)
    print(
        f"Synthetic, Ditto + MK-MMD after every step: {1e3 * ours:.1f} ms a step of 8 clients, "
        f"plainly {1e3 * plain:.1f} ms: {plain / ours:.1f}x"
    )
    whole = PER_CLIENT["cifar"] * EPOCHS
    ditto = step("cifar", "loop", whole, 2)
    for title, term in (("MK-MMD after every step", mk), ("MMD-D every 20 steps", MMDD(LAYERS))):
        ratio = step("cifar", "loop", whole, 2, term) / ditto
        print(f"CIFAR-10 CNN, {title}: {ratio:.2f} x Ditto ({1e3 * ditto:.0f} ms a step)")


if __name__ == "__main__":
    main()
