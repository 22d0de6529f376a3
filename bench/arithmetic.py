"""What mixed precision and channels-last save: ``python -m bench.arithmetic``.

FedAvg on models with convolutions, in every way that `fl.api.training.Training` has to compute
them, in turn; the shortest of some tries counts. Seconds of a step and, beside them, how many
times faster that is than float32 in PyTorch's own format.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from torch import nn

from bench import machine
from bench.asked import one_of
from bench.local_steps import MODELS, simulation
from bench.timing import seconds_a_step
from bench.workloads import CLASSES, WORKLOADS, Workload
from fl.models.cifar_cnn import CifarCNN
from fl.models.resnet18 import ResNet18

SHAPE = (3, 32, 32)
SIDES: dict[str, tuple[Workload, Callable[[], nn.Module]]] = {
    "W2": (WORKLOADS["W2"], MODELS["W2"]),
    "CIFAR": (
        Workload("5 clients, CNN 32-64-2048 of CIFAR-10, batch 32", 5, 8000, SHAPE, 32, 5),
        lambda: CifarCNN().build(SHAPE, CLASSES),
    ),
    "ResNet": (
        Workload("5 clients, ResNet-18 on 3x32x32, batch 32", 5, 8000, SHAPE, 32, 1),
        lambda: ResNet18().build(SHAPE, CLASSES),
    ),
}
WAYS: dict[str, dict[str, Any]] = {
    "float32": {},
    "channels-last": {"memory_format": "channels-last"},
    "mixed": {"precision": "mixed"},
    "mixed, channels-last": {"precision": "mixed", "memory_format": "channels-last"},
}


def measure(name: str, device: str, backend: str, steps: int, tries: int) -> dict[str, float]:
    """Seconds a step of one client, by way."""
    work, model = SIDES[name]
    times = {}
    for way, training in WAYS.items():
        run = simulation(work, model, device, **training)
        times[way] = seconds_a_step(run, backend, steps, tries) / work.clients
    return times


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sides", nargs="*", type=one_of(SIDES), default=list(SIDES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="loop")
    parser.add_argument("--steps", type=int, default=5, help="steps of each client")
    parser.add_argument("--tries", type=int, default=3)
    asked = parser.parse_args()
    machine.begin(f"{asked.backend} backend, milliseconds a local step of a client", asked.device)
    print(f"| | {' | '.join(WAYS)} |")
    print(f"|---|{'---:|' * len(WAYS)}")
    for name in asked.sides:
        times = measure(name, asked.device, asked.backend, asked.steps, asked.tries)
        first = times["float32"]
        cells = [f"{1e3 * t:,.1f} ({first / t:.2f}x)" for t in times.values()]
        print(f"| {SIDES[name][0].title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
