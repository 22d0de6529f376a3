"""What FedSaC's cooperation costs beside training: ``python -m bench.cooperation``.

Rounds of LeNet on images of CIFAR's size, clients one after another: 10 clients of 4,000 samples
(CIFAR-10's 50,000 less a fifth for validation), 200 steps of 64 each, and 100 clients of 400. By
phase, as the paper's table 6 has it: local training; features of up to 2,048 samples of
each, their second moments and directions; similarity of models; angles between subspaces; weights;
the mixture. Steps are timed on a few of them, everything else in full. One thread, its processor's
time; the shortest of some tries counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench import machine
from fl.api import trees
from fl.api.method import Setting, Sweep
from fl.api.network import Network
from fl.api.training import Training
from fl.api.trees import Tree
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.backends import Cohort
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.engine.sweeps import sweep
from fl.methods.fedsac import FedSaC
from fl.models.lenet import LeNet
from fl.parts.mixing import alike_above, cosines, fedsac_weights, mix
from fl.parts.subspaces import complementarity

CLASSES, SHAPE, STEPS, BATCH = 10, (3, 32, 32), 200, 64
SAMPLES = 40_000
FEW = 4
"""Steps that are timed."""
SIZES = (10, 100)
"""Clients, among whom the samples are shared."""

ALLOWED = {10: 0.10, 100: 0.25}
"""The share of a round that cooperation may take, by clients."""


def simulation(clients: int) -> Simulation:
    """FedSaC on generated data."""
    draw = np.random.default_rng(0)
    x = draw.standard_normal((SAMPLES, *SHAPE), dtype=np.float32)
    training = Training(batch_size=BATCH, lr=0.01, momentum=0.9, local_epochs=None, local_steps=FEW)
    network = Network(lambda: LeNet().build(SHAPE, CLASSES))
    method = FedSaC().build(Setting(network, training, CLASSES, clients, SHAPE))
    held = Held({"train": np.split(np.arange(SAMPLES), clients)})
    arrays = Arrays(x, draw.integers(0, CLASSES, SAMPLES), {"scale": 1.0, "mean": 0.0, "sd": 1.0})
    return Simulation(method, network, training, arrays, held, CLASSES, seed=0)


def seconds(work: Callable[[], Any], tries: int) -> float:
    """Of the processor, the shortest of some tries."""
    found = []
    for _ in range(tries):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


def nothing(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> Any:
    """A server that learns nothing."""
    return dict(server), dict(clients)


def phases(clients: int, tries: int) -> dict[str, float]:
    """Seconds of each phase of a round, of all clients together."""
    run = simulation(clients)
    state, plan = run.begin(), run.plan(1)
    training, looking = run.method.passes
    assert isinstance(looking, Sweep)
    alone = replace(run.method, passes=(training,), aggregate=nothing)
    first = plan.take(list(range(min(clients, 10))))
    first = first.with_schedules(first.schedules[:1])
    few = seconds(lambda: engine.run_round(alone, state, first, "loop"), tries)
    step = few / (FEW * len(first.clients))
    kept = trees.apply(
        lambda leaf: leaf + 0.01 * torch.randn_like(leaf),
        {"params": state.clients["trained"]["params"]},
    )
    sent = {**kept, "buffers": state.clients["trained"]["buffers"]}
    assert run.method.send
    schedule = plan.schedules[1]
    assert schedule
    cohort = Cohort(
        clients=state.clients,
        ids=torch.arange(clients),
        server=run.method.send(state.server),
        several=False,
        schedule=schedule,
        arrays=run.arrays,
        round=1,
        lr=0.01,
    )
    _, uploads = sweep(looking, cohort, sent, "loop")
    moved = trees.apply(torch.sub, uploads["params"], state.server["origin"])
    similar = alike_above(cosines(moved), 0.9)
    alike = complementarity(uploads["basis"])
    fractions = plan.n / plan.n.sum()
    weights = fedsac_weights(fractions, similar, alike, 0.9, 1.4)
    return {
        "local training": step * STEPS * clients,
        "features and directions": seconds(lambda: sweep(looking, cohort, sent, "loop"), tries),
        "similarity": seconds(lambda: alike_above(cosines(moved), 0.9), tries),
        "angles": seconds(lambda: complementarity(uploads["basis"]), tries),
        "weights": seconds(lambda: fedsac_weights(fractions, similar, alike, 0.9, 1.4), tries),
        "mixture": seconds(lambda: mix(weights, uploads["params"]), tries),
    }


def share(found: dict[str, float]) -> float:
    """Of a round, what is not training."""
    return 1 - found["local training"] / sum(found.values())


def main() -> None:
    """Print the phases and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=3)
    asked = parser.parse_args()
    machine.begin()
    for clients in SIZES:
        found = phases(clients, asked.tries)
        told = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in found.items())
        print(f"{clients} clients: {told}")
        print(
            f"{clients} clients: cooperation {100 * share(found):.1f} % of a round "
            f"(at most {100 * ALLOWED[clients]:.0f} %)",
            flush=True,
        )


if __name__ == "__main__":
    main()
