"""Steps of local training per second, beside a bare PyTorch loop, in one run: ``make bench``.

Every workload trains all its clients for a round of FedAvg on generated data. The bare loop is what
one would write by hand: a model, `torch.optim.SGD` and a shuffled index, client after client. All
sides run on one thread, in turn, `--repeats` times; the shortest time of each counts. Compilation
is reported apart. Ratios, not times, are what compares between machines.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from bench import machine
from bench.workloads import CLASSES, LR, MOMENTUM, WORKLOADS, Workload
from fl.data.batches import Arrays
from fl.method import Setting
from fl.methods.fedavg import FedAvg
from fl.models.cnn import CNN
from fl.models.lenet import LeNet
from fl.models.mlp import MLP
from fl.simulation.assembly import computing
from fl.simulation.evaluate import Held
from fl.simulation.simulate import Simulation
from fl.train import trial
from fl.training import Training

PLAIN = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "W1": lambda: MLP((20,)).build(WORKLOADS["W1"].shape, CLASSES),
    "W2": lambda: LeNet().build(WORKLOADS["W2"].shape, CLASSES),
    "W3": lambda: CNN().build(WORKLOADS["W3"].shape, CLASSES),
    "W4": lambda: MLP((200, 200)).build(WORKLOADS["W4"].shape, CLASSES),
}


def simulation(
    work: Workload, model: Callable[[], nn.Module], device: str, **training: Any
) -> Simulation:
    """The workload as a run of FedAvg; ``training``: settings beside its own."""
    x, y = work.draw()
    settled = Training(
        **{"rounds": 1000, "local_epochs": work.epochs, "batch_size": work.batch},
        **{"lr": LR, "momentum": MOMENTUM},
        **training,
    )
    network = computing(model, settled)
    held = Held({"train": np.split(np.arange(len(x)), work.sizes.cumsum()[:-1])})
    setting = Setting(network, settled, CLASSES, work.clients)
    arrays = Arrays(x, y, PLAIN, device)
    return Simulation(FedAvg().build(setting), network, settled, arrays, held, CLASSES, seed=0)


def bare_loop(work: Workload, model: nn.Module, run: Simulation, steps: int) -> float:
    """Seconds a local step of the loop that one would write by hand, over ``steps`` of them."""
    device = run.arrays.device
    index = torch.arange(work.samples, device=device)
    x, y = run.arrays.inputs(index), run.arrays.labels(index)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    done, begun = 0, clock(device)
    while done < steps:
        for chosen in torch.randperm(work.samples, device=device).split(work.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return (clock(device) - begun) / steps


def clock(device: torch.device) -> float:
    """The time when everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(
    name: str,
    device: str,
    limit: int,
    repeats: int,
    workload: Callable[[str], Workload] = WORKLOADS.__getitem__,
) -> dict[str, float]:
    """Seconds a local step of one client, by side; ``compiling`` is in seconds.

    Where clients take unequal numbers of steps, the mean over all steps.
    """
    work, model = workload(name), MODELS[name]
    run = simulation(work, model, device)
    plan, state, times = run.plan(1), run.begin(), {}
    whole = int(plan.schedules[0].steps.max())
    steps = min(limit, whole)
    each = plan.schedules[0].steps.clip(max=steps).sum() / steps
    sides = {
        "bare loop": lambda: bare_loop(work, model(), run, steps),
        **{
            name: lambda name=name: (
                trial.seconds_a_step([run.method], [state], [plan], name, steps, 1) / each
            )
            for name in ("loop", "stacked", "compiled")
        },
    }
    for name, side in sides.items():
        first = side()
        if name == "compiled":
            times["compiling"] = first * each * steps
    for _ in range(repeats):
        for name, side in sides.items():
            times[name] = min(side(), times.get(name, float("inf")))
    return times


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400, help="steps of each client, at most")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    machine.begin("microseconds a local step of a client", asked.device)
    print("| | bare loop | loop | stacked | compiled | fastest against bare | compiling, s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in asked.workloads:
        times = measure(name, asked.device, asked.steps, asked.repeats)
        sides = [times[side] for side in ("bare loop", "loop", "stacked", "compiled")]
        shown = " | ".join(f"{1e6 * t:,.1f}" for t in sides)
        ratio = sides[0] / min(sides[1:])
        print(
            f"| {name}: {WORKLOADS[name].title} | {shown} | {ratio:.1f}x "
            f"| {times['compiling']:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
