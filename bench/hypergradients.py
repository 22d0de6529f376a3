"""What a hypergradient of FedL2P costs: ``python -m bench.hypergradients``.

Seconds of a client's training step, of first-order and of Hessian-free Per-FedAvg's, and of a
hypergradient with Q = 3 and the validation gradient before it, on a small residual network and
batches of 16 of the digits' shape; and of a round of FedL2P by backend. The shortest of some tries
counts; ratios are to the training step, and of the loop to the stack.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from bench import machine
from fl.api.method import COUNTS, Method, Pass, Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.backends import _differentiable, _gradients, _moved
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.fedavg import FedAvg
from fl.methods.fedl2p import FedL2P
from fl.methods.perfedavg import PerFedAvg
from fl.models.resnet_cifar import ResNetCifar

SHAPE, CLASSES, BATCH = (1, 8, 8), 10, 16


def simulation(make: Any, clients: int) -> Simulation:
    """Clients with two batches to train on and one to validate, on random images."""
    training = Training(rounds=1, local_epochs=2, batch_size=BATCH, lr=0.01)
    network = Network(lambda: ResNetCifar(width=8).build(SHAPE, CLASSES))
    draw = np.random.default_rng(0)
    each = 3 * BATCH
    x = draw.standard_normal((clients * each, *SHAPE)).astype(np.float32)
    arrays = Arrays(x, draw.integers(0, CLASSES, len(x)), None)
    rows = [np.arange(k * each, (k + 1) * each) for k in range(clients)]
    held = Held({"train": [r[: 2 * BATCH] for r in rows], "val": [r[2 * BATCH :] for r in rows]})
    method: Method = make.build(Setting(network, training, CLASSES, clients, SHAPE))
    return Simulation(method, network, training, arrays, held, CLASSES, 0)


def shortest(run: Callable[[], Any], times: int, tries: int) -> float:
    """Seconds of one of ``times`` calls in a row, in the best of some tries."""
    found = []
    for _ in range(tries):
        begun = time.perf_counter()
        for _ in range(times):
            run()
        found.append((time.perf_counter() - begun) / times)
    return min(found)


def step(run: Simulation, part: Pass, client: dict[str, Any]) -> Callable[[], Any]:
    """One step of a pass for one client."""
    server = run.begin().server
    work = _differentiable(part.begin(server, client))
    index = torch.arange(BATCH)
    batch = run.arrays.batch(index, torch.ones_like(index))

    def once() -> Any:
        loss, aux = part.loss(server, work, batch)
        return _moved(part, server, work, _gradients(work, loss), aux, 0.01)

    return once


def costs(tries: int) -> dict[str, float]:
    """Seconds of a step, by what it is."""
    found = {}
    methods = {
        "training step": FedAvg(),
        "Per-FedAvg, first order": PerFedAvg(order="first"),
        "Per-FedAvg, Hessian-free": PerFedAvg(order="free"),
    }
    for name, method in methods.items():
        run = simulation(method, 1)
        client = {**run.begin().client(0, torch.device("cpu")), COUNTS: torch.ones(CLASSES)}
        part = run.method.passes[0]
        assert isinstance(part, Pass)
        found[name] = shortest(step(run, part, client), 20, tries)
    for name, gradient in (("hypergradient, Q = 3", "implicit"), ("FOMAML+", "fomaml")):
        run = simulation(FedL2P(gradient=gradient), 1)  # type: ignore[arg-type]
        client = run.begin().client(0, torch.device("cpu"))
        judge, conclude = run.method.passes[3:5]
        assert isinstance(judge, Pass) and isinstance(conclude, Pass)
        both = [step(run, part, client) for part in (judge, conclude)]
        found[name] = sum(shortest(one, 20, tries) for one in both)
    return found


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--tries", type=int, default=5)
    asked = parser.parse_args()
    machine.begin("hypergradients, milliseconds of one client's step", "cpu")
    times = costs(asked.tries)
    print("| | ms | to a training step |\n|---|---:|---:|")
    for name, seconds in times.items():
        print(f"| {name} | {1e3 * seconds:.2f} | {seconds / times['training step']:.2f}x |")
    run = simulation(FedL2P(), asked.clients)
    state, plan = run.begin(), run.plan(1)
    rounds = {
        backend: shortest(partial(engine.run_round, run.method, state, plan, backend), 1, 3)
        for backend in ("loop", "stacked")
    }
    faster = rounds["loop"] / rounds["stacked"]
    print(f"\nA round of {asked.clients} clients: ", end="")
    print(", ".join(f"{name} {t:.2f} s" for name, t in rounds.items()), f"({faster:.1f}x)")


if __name__ == "__main__":
    main()
