"""Memory of a round with many clients: FedBN with ResNet-18, every client taking one step.

Batch normalisation stays with each client, everything else is uploaded. Clients come to the device
in groups and a group's uploads are averaged at once, so that the memory does not grow with them.
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np

from bench import machine
from fl.api import trees
from fl.api.method import Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.fedbn import FedBN
from fl.models.resnet18 import ResNet18

CLASSES, SHAPE, BATCH = 10, (3, 32, 32), 8
MIB = 2**20


def simulation(clients: int, device: str) -> Simulation:
    """Clients of one batch each, on generated images."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((clients * BATCH, *SHAPE), dtype=np.float32)
    y = draw.integers(0, CLASSES, len(x))
    network = Network(lambda: ResNet18("imagenet").build(SHAPE, CLASSES))
    training = Training(rounds=1, local_steps=1, batch_size=BATCH, lr=0.01, momentum=0.9)
    method = FedBN().build(Setting(network, training, CLASSES, clients, SHAPE))
    held = Held({"train": np.split(np.arange(len(x)), clients)})
    plain = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
    return Simulation(method, network, training, Arrays(x, y, plain, device), held, CLASSES, seed=0)


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print the sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    machine.begin("memory of a round", asked.device)
    run = simulation(asked.clients, asked.device)
    model = trees.nbytes(run.network.init(0)) / MIB
    before = peak()
    state = run.begin()
    begun = time.perf_counter()
    state, losses = engine.run_round(run.method, state, run.plan(1), "loop")
    seconds = time.perf_counter() - begun
    assert losses.isfinite().all()
    print(f"{asked.clients} clients, ResNet-18 of {model:.0f} MiB")
    print(f"state of all clients: {trees.nbytes(state.clients) / MIB:.0f} MiB")
    print(f"all uploads at once would be: {asked.clients * model:,.0f} MiB")
    print(f"most memory beyond what was there before round 1: {peak() - before:,.0f} MiB")
    print(f"a round of one step each: {seconds:.0f} s")


if __name__ == "__main__":
    main()
