"""What methods that work on features cost a round: ``python -m bench.feature_methods``.

A round of each beside one of FedAvg on the same generated data, phases and sweeps included, as a
multiple. The two take turns, on one thread; the shortest of some tries counts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from bench import machine
from bench.asked import one_of
from bench.workloads import CLASSES, LR, MOMENTUM, Workload
from fl.api.method import Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.fedavg import FedAvg
from fl.methods.fedfa import FedFA
from fl.methods.fedfa_plus import FedFAPlus
from fl.methods.fedfm import FedFM
from fl.models.alexnet import AlexNet
from fl.models.lenet import LeNet

PLAIN = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
LARGE = Workload("AlexNet, 2 clients x 160 of 3x64x64, batch 32", 2, 160, (3, 64, 64), 32, 1)
SMALL = Workload("LeNet, 10 clients x 640 of 3x32x32, batch 64", 10, 640, (3, 32, 32), 64, 5)
SIDES: dict[str, tuple[Any, Workload, Any]] = {
    "FedFA^l": (FedFA(), LARGE, AlexNet()),
    "FedFA+": (FedFAPlus(), LARGE, AlexNet()),
    "FedFM": (FedFM(first=1), SMALL, LeNet()),
}
"""By title: the method, what it trains on, and the model."""


def simulation(method: Any, work: Workload, model: Any) -> Simulation:
    """The workload as a run of a method, for as many epochs a round as it says."""
    x, y = work.draw()
    training = Training(batch_size=work.batch, local_epochs=work.epochs, lr=LR, momentum=MOMENTUM)
    network = Network(lambda: model.build(work.shape, CLASSES))
    setting = Setting(network, training, CLASSES, work.clients, work.shape)
    held = Held({"train": np.split(np.arange(len(x)), work.clients)})
    made = method.build(setting)
    return Simulation(made, network, training, Arrays(x, y, PLAIN), held, CLASSES, seed=0)


def measure(title: str, backend: str, tries: int) -> tuple[float, float]:
    """Seconds a round of FedAvg, and of the method."""
    method, work, model = SIDES[title]
    runs = [simulation(one, work, model) for one in (FedAvg(), method)]
    begun = [(run.method, run.begin(), run.plan(1)) for run in runs]
    times = [float("inf")] * len(runs)
    for _ in range(tries):
        for place, given in enumerate(begun):
            before = time.perf_counter()
            engine.run_round(*given, backend)
            times[place] = min(times[place], time.perf_counter() - before)
    return times[0], times[1]


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sides", nargs="*", type=one_of(SIDES), default=list(SIDES))
    parser.add_argument("--backends", nargs="*", default=["loop", "stacked"])
    parser.add_argument("--tries", type=int, default=3)
    asked = parser.parse_args()
    machine.begin("seconds a round, and as a multiple of FedAvg's", "cpu")
    print("| | backend | FedAvg | the method | ratio |\n|---|---|---:|---:|---:|")
    for title in asked.sides:
        for backend in asked.backends:
            plain, own = measure(title, backend, asked.tries)
            name = f"{title}: {SIDES[title][1].title}"
            print(
                f"| {name} | {backend} | {plain:.2f} | {own:.2f} | {own / plain:.2f}x |", flush=True
            )


if __name__ == "__main__":
    main()
