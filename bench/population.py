"""Rounds and memory with very many clients, of whom few take part in a round.

Each row is measured in a process of its own: the processor's milliseconds a round (the median), the
seconds of all rounds with their evaluations, and the most memory that the process ever had. Clients
have generated samples, a byte each number, a quarter as many of them for tests.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench import machine
from bench.workloads import CLASSES
from fl.api.method import Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import simulate
from fl.engine.arrays import Arrays
from fl.engine.held import Held
from fl.engine.simulate import Simulation
from fl.methods.ditto import Ditto
from fl.methods.fedavg import FedAvg
from fl.methods.scaffold import Scaffold
from fl.models.cnn import CNN
from fl.models.mlp import MLP

METHODS: Mapping[str, Any] = {"FedAvg": FedAvg, "SCAFFOLD": Scaffold, "Ditto": Ditto}
MODELS: Mapping[str, Any] = {
    "mlp": lambda: MLP((128,)).build((64,), CLASSES),
    "cnn": lambda: CNN().build((1, 28, 28), CLASSES),
}


@dataclass(frozen=True)
class Case:
    """What is run: ``taking`` of the clients take part in each of ``rounds`` rounds.

    every: rounds from one evaluation to the next; 0: there is none.
    """

    method: str
    clients: int
    samples: int = 20
    taking: int = 100
    rounds: int = 100
    every: int = 0
    model: str = "mlp"


CASES = (
    *(Case(method, clients) for method in ("FedAvg", "SCAFFOLD") for clients in (1000, 100_000)),
    *(Case(method, 20_000, every=10) for method in METHODS),
    *(Case(method, 3400, 100, 68, 4, 4, "cnn") for method in METHODS),
)


def simulation(case: Case) -> Simulation:
    """The run of a case."""
    draw, tests = np.random.default_rng(0), case.samples // 4
    each = case.samples + tests
    flat = case.model == "mlp"
    shape = (64,) if flat else (1, 28, 28)
    total = case.clients * each
    x = draw.integers(0, 256, (total, *shape), dtype=np.uint8)
    y = draw.integers(0, CLASSES, total)
    index = np.arange(total).reshape(-1, each)
    held = Held({"train": list(index[:, tests:]), "test": list(index[:, :tests])})
    training = Training(
        rounds=10**6,
        local_epochs=1,
        batch_size=10,
        lr=0.01,
        participation=case.taking / case.clients,
        evaluate_every=case.every or 10**6,
    )
    network = Network(MODELS[case.model])
    arrays = Arrays(x, y, {"scale": 1 / 255, "mean": 0.5, "sd": 0.5})
    setting = Setting(network, training, CLASSES, case.clients, shape)
    method = METHODS[case.method]().build(setting)
    return Simulation(method, network, training, arrays, held, CLASSES, seed=0)


def measure(case: Case) -> dict[str, float]:
    """What a case costs in this process."""
    run = simulation(case)
    before, begun = time.process_time(), time.perf_counter()
    spent = []
    for done in simulate.rounds(run, run.begin(), 0, "stacked"):
        spent.append(time.process_time() - before)
        before = time.process_time()
        if done.number == case.rounds:
            break
    return {
        "round": 1e3 * float(np.median(spent)),
        "seconds": time.perf_counter() - begun,
        "took part": len(done.state.home.rows),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def apart(case: Case) -> dict[str, float]:
    """What a case costs in a process of its own."""
    command = [sys.executable, "-m", "bench.population", "--one", json.dumps(asdict(case))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="a case as JSON, measured in this process")
    asked = parser.parse_args()
    machine.begin("rounds of many clients")
    if asked.one:
        print(json.dumps(measure(Case(**json.loads(asked.one)))))
        return
    print("| method | clients x samples, model | a round | rounds | evaluated every | s | GiB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for case in CASES:
        found = apart(case)
        print(
            f"| {case.method} | {case.clients:,} x {case.samples}, {case.model} | {case.taking}: "
            f"{found['round']:.1f} ms | {case.rounds} | {case.every or 'never'} "
            f"| {found['seconds']:.1f} | {found['memory']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
