"""What `auto` chooses, beside every backend: ``python -m bench.backends``, in under ten minutes.

For each workload the milliseconds of a step of all participants by each backend, the backend that
the rule gives for a run of so many rounds (`fl.runner.job`), and how many times as long
such a run
then takes as with the backend that ends first, compiling included. Backends take turns,
``--repeats`` times, on one thread; the shortest time of the processor of each counts. On a CPU
programs of convolutions are slow to compile and no faster than the stack: W3 shows it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from bench.timing import MODELS, Make, begin, simulation, steps_of
from bench.workloads import WORKLOADS, Workload
from fl.engine.simulation import Simulation
from fl.methods.ditto import Ditto
from fl.methods.fedfa import FedFA
from fl.methods.fedfm import FedFM
from fl.methods.fedsac import FedSaC
from fl.methods.scaffold import Scaffold
from fl.models.alexnet import AlexNet
from fl.models.cifar_cnn import CifarCNN
from fl.models.cnn import CNN
from fl.models.convnet import ConvNet
from fl.models.mlp import MLP
from fl.models.resnet18 import ResNet18
from fl.runner import job


@dataclass(frozen=True)
class Case:
    """A workload, and how many rounds runs of it have.

    steps: that are timed. compiled: whether the compiled backend is timed.
    """

    work: Workload
    model: Make
    rounds: tuple[int, ...]
    method: Any = None
    steps: int = 10
    compiled: bool = False
    participation: float = 1.0

    @property
    def run(self) -> Simulation:
        """One run, of no matter how many rounds."""
        settings = {"method": self.method, "participation": self.participation}
        return simulation(self.work, self.model, **settings)


def work(title: str, clients: int, samples: int, shape: tuple[int, ...], batch: int) -> Workload:
    """One of two epochs."""
    return Workload(title, clients, samples, shape, batch, 2)


CIFAR, DIGITS, LARGE = (3, 32, 32), (1, 8, 8), (3, 64, 64)
LENET = work("10 clients of 3x32x32, LeNet, batch 64", 10, 512, CIFAR, 64)
ALEXNET = work("2 clients of 3x64x64, AlexNet, batch 32", 2, 128, LARGE, 32)
SIXTY = work("60 clients x 22 of 1x8x8, CNN, batch 8", 60, 22, DIGITS, 8)
TEN = work("10 clients x 135 of 1x8x8, MLP 200-200, batch 16", 10, 135, DIGITS, 16)
MANY = work("1,000 clients x 20, 10 % a round, MLP 128", 1000, 20, (64,), 10)
WRITERS = work("340 clients x 100 of 1x28x28, 20 % a round, CNN", 340, 100, (1, 28, 28), 20)
WIDE = work("5 clients of 3x32x32, CNN 32-64-2048, batch 32", 5, 256, CIFAR, 32)
CONVNET = work("5 clients of 3x16x16, ConvNet of 32, batch 16", 5, 128, (3, 16, 16), 16)
LARGER = work("5 clients of 3x32x32, ConvNet of 128, batch 32", 5, 256, CIFAR, 32)
RESNET = work("4 clients of 3x32x32, ResNet-18, batch 8", 4, 64, CIFAR, 8)

CASES: dict[str, Case] = {
    "W1": Case(WORKLOADS["W1"], MODELS["W1"], (20, 100, 1000), steps=100, compiled=True),
    "W2": Case(WORKLOADS["W2"], MODELS["W2"], (100,), steps=4),
    "W3": Case(WORKLOADS["W3"], MODELS["W3"], (200,), compiled=True),
    "W4": Case(WORKLOADS["W4"], MODELS["W4"], (100, 10_000), steps=30, compiled=True),
    "ditto": Case(TEN, lambda: MLP((200, 200)).build(DIGITS, 10), (30, 5000), Ditto(), 30, True),
    "cnn": Case(SIXTY, lambda: CNN().build(DIGITS, 10), (30,)),
    "scaffold": Case(
        MANY, lambda: MLP((128,)).build((64,), 10), (500,), Scaffold(), participation=0.1
    ),
    "writers": Case(
        WRITERS, lambda: CNN().build(WRITERS.shape, 10), (500,), steps=3, participation=0.2
    ),
    "fedfm": Case(LENET, MODELS["W2"], (100,), FedFM(first=1), steps=3),
    "fedsac": Case(LENET, MODELS["W2"], (50,), FedSaC(), steps=3),
    "fedfa": Case(ALEXNET, lambda: AlexNet().build(LARGE, 10), (100,), FedFA(), steps=2),
    "cifar": Case(WIDE, lambda: CifarCNN().build(CIFAR, 10), (100,), steps=2),
    "convnet": Case(CONVNET, lambda: ConvNet(width=32).build(CONVNET.shape, 10), (100,), steps=4),
    "convnet-128": Case(LARGER, lambda: ConvNet().build(CIFAR, 10), (100,), steps=1),
    "resnet": Case(RESNET, lambda: ResNet18().build(CIFAR, 10), (100,), steps=1),
}


def measure(case: Case, repeats: int) -> tuple[dict[str, float], float]:
    """Seconds of a step of all participants by backend, and seconds of compiling."""
    backends = ("loop", "stacked", "compiled")[: 3 if case.compiled else 2]
    sides = {backend: steps_of(case.run, backend, case.steps) for backend in backends}
    compiling, times = 0.0, dict.fromkeys(backends, float("inf"))
    for turn in range(repeats + 1):
        for backend, (train, steps) in sides.items():
            begun, wall = time.process_time(), time.perf_counter()
            train()
            if turn:
                times[backend] = min(times[backend], (time.process_time() - begun) / steps)
            elif backend == "compiled":
                compiling = time.perf_counter() - wall
    return times, compiling


def rows(case: Case, repeats: int) -> Iterator[str]:
    """A row of the table for each length of a run."""
    times, compiling = measure(case, repeats)
    cells = [f"{1e3 * seconds:.2f}" for seconds in times.values()]
    cells.append(f"{compiling:.0f}" if case.compiled else "not tried | ")
    title = f"{type(case.method).__name__}, {case.work.title}" if case.method else case.work.title
    for rounds in case.rounds:
        run = replace(case.run, training=replace(case.run.training, rounds=rounds))
        steps = rounds * job.steps_per_round(run)
        totals = {name: steps * seconds for name, seconds in times.items()}
        if case.compiled:
            totals["compiled"] += compiling
        chosen = job.choose_backend(run).backend
        ratio = totals[chosen] / min(totals.values())
        yield f"| {title} | {' | '.join(cells)} | {rounds:,} | {chosen} | {ratio:.2f} |"


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    begin("processor milliseconds a step of all participants")
    print("| | loop | stacked | compiled | compiling, s | rounds | auto | against the best |")
    print("|---|---:|---:|---:|---:|---:|---|---:|")
    for name in asked.only:
        for row in rows(CASES[name], asked.repeats):
            print(row, flush=True)


if __name__ == "__main__":
    main()
