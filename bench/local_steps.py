"""Steps of local training per second, beside a bare PyTorch loop, in one run: ``make bench``.

Every workload trains all its clients for a round of FedAvg on generated data. The bare loop is what
one would write by hand: a model, `torch.optim.SGD` and a shuffled index, client after client. All
sides run on one thread, in turn, `--repeats` times; the shortest time of each counts. Compilation
is reported apart. Ratios, not times, are what compares between machines.

Where clients take different numbers of steps (W4), there is also the stack that one would write by
hand (`by_hand`), for a multi-layer perceptron alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench import machine
from bench.asked import one_of
from bench.timing import seconds_a_step
from bench.workloads import CLASSES, LR, WORKLOADS, Workload
from fl.api.method import Setting
from fl.api.training import Training
from fl.engine.arrays import Arrays
from fl.engine.assembly import computing
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.fedavg import FedAvg
from fl.models.cnn import CNN
from fl.models.lenet import LeNet
from fl.models.mlp import MLP

PLAIN = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "W1": lambda: MLP((20,)).build(WORKLOADS["W1"].shape, CLASSES),
    "W2": lambda: LeNet().build(WORKLOADS["W2"].shape, CLASSES),
    "W3": lambda: CNN().build(WORKLOADS["W3"].shape, CLASSES),
    "W3-plain": lambda: nn.Sequential(
        *(layer for layer in MODELS["W3"]().children() if not isinstance(layer, nn.BatchNorm2d))
    ),
    "W4": lambda: MLP((200, 200)).build(WORKLOADS["W4"].shape, CLASSES),
}


def simulation(
    work: Workload, model: Callable[[], nn.Module], device: str, **training: Any
) -> Simulation:
    """The workload as a run of FedAvg; ``training``: settings beside its own."""
    x, y = work.draw()
    settled = Training(
        **{"rounds": 1000, "local_epochs": work.epochs, "batch_size": work.batch},
        **{"lr": LR, "momentum": work.momentum},
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
    index = torch.arange(int(work.sizes[0]), device=device)
    x, y = run.arrays.inputs(index), run.arrays.labels(index)
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=work.momentum)
    done, begun = 0, clock(device)
    while done < steps:
        for chosen in torch.randperm(len(x), device=device).split(work.batch):
            optimizer.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    return (clock(device) - begun) / steps


def by_hand(work: Workload, model: nn.Module, run: Simulation, steps: int) -> list[Tensor]:
    """A multi-layer perceptron's weights and biases for each client after plain SGD, trained as a
    stack that is written by hand: gathered batches, `torch.baddbmm`, and an update in place.

    Clients with most steps come first, and those that have finished leave the end of the stack.
    """
    schedule = run.plan(1).schedules[0].begin(steps, ())
    order = np.argsort(-schedule.steps)
    taken, index = schedule.steps[order], torch.from_numpy(schedule.index[order])
    samples = torch.arange(run.arrays.size)
    x, y = run.arrays.inputs(samples), run.arrays.labels(samples)
    # Weights are [clients, in, out], as gradients of products with them are.
    stack = [p.detach().t().repeat(work.clients, *[1] * p.dim()) for p in model.parameters()]
    for step in range(int(taken[0])):
        chosen = index[: int((taken > step).sum()), step]
        params = [p[: len(chosen)].requires_grad_() for p in stack]
        features = x[chosen]
        for place in range(0, len(params), 2):
            features = torch.baddbmm(params[place + 1][:, None], features, params[place])
            features = features.relu() if place < len(params) - 2 else features
        labels = y[chosen].flatten()
        loss = F.cross_entropy(features.flatten(0, 1), labels, reduction="sum") / work.batch
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            torch._foreach_add_([p.detach() for p in params], grads, alpha=-LR)
    back = torch.from_numpy(np.argsort(order))
    return [p[back].transpose(1, 2) if p.dim() == 3 else p[back] for p in stack]


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


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
    backends: tuple[str, ...] = ("loop", "stacked", "compiled"),
) -> dict[str, float]:
    """Seconds a local step of one client, by side; ``compiling`` is in seconds.

    Where clients take unequal numbers of steps, the mean over all steps.
    """
    work, model = workload(name), MODELS[name]
    run = simulation(work, model, device)
    plan, times = run.plan(1), {}
    whole = int(plan.schedules[0].steps.max())
    steps = min(limit, whole)
    each = plan.schedules[0].steps.sum() / whole
    sides = {
        "bare loop": lambda: bare_loop(work, model(), run, steps),
        **{name: lambda name=name: seconds_a_step(run, name, steps, 1) / each for name in backends},
    }
    if work.least and device == "cpu":
        sides["by hand"] = lambda: (
            seconds(lambda: by_hand(work, model(), run, steps)) / (each * steps)
        )
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
    parser.add_argument("workloads", nargs="*", type=one_of(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=400, help="steps of each client, at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--uncompiled", action="store_true", help="leave the compiled backend out")
    asked = parser.parse_args()
    machine.begin("microseconds a local step of a client", asked.device)
    head = ("bare loop", "loop", "stacked", "compiled", "by hand")
    backends = ("loop", "stacked", "compiled")[: 2 if asked.uncompiled else 3]
    print(f"| | {' | '.join(head)} | fastest against bare | compiling, s |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in asked.workloads:
        times = measure(name, asked.device, asked.steps, asked.repeats, backends=backends)
        shown = " | ".join(f"{1e6 * times[side]:,.1f}" if side in times else "-" for side in head)
        ratio = times["bare loop"] / min(times[side] for side in backends)
        title, compiling = WORKLOADS[name].title, times.get("compiling", 0)
        print(f"| {name}: {title} | {shown} | {ratio:.1f}x | {compiling:.0f} |", flush=True)


if __name__ == "__main__":
    main()
