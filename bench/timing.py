"""What benchmarks share: how they begin, runs over generated data, and seconds of their steps."""

from __future__ import annotations

import gc
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.workloads import CLASSES, LR, WORKLOADS, Workload
from fl.api.method import Pass
from fl.api.training import Training
from fl.api.trees import Tree
from fl.engine import engine
from fl.engine.assembly import make_network
from fl.engine.batches import Schedule
from fl.engine.client_data import ClientData, SamplesByClient
from fl.engine.run_setup import MethodComponents, RunSetup
from fl.engine.sample_arrays import Arrays
from fl.engine.simulation import Simulation
from fl.methods.fedavg import FedAvg
from fl.models.cnn import CNN
from fl.models.lenet import LeNet
from fl.models.mlp import MLP
from fl.pytorch.memory import keep_freed_memory
from fl.runner import process_settings

Make = Callable[[], nn.Module]

PLAIN = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
PIXELS = {"scale": 1 / 255, "mean": 0.5, "sd": 0.5}
MODELS: dict[str, Make] = {
    "W1": lambda: MLP((20,)).build(WORKLOADS["W1"].shape, CLASSES),
    "W2": lambda: LeNet().build(WORKLOADS["W2"].shape, CLASSES),
    "W3": lambda: CNN().build(WORKLOADS["W3"].shape, CLASSES),
    "W3-plain": lambda: nn.Sequential(
        *(layer for layer in MODELS["W3"]().children() if not isinstance(layer, nn.BatchNorm2d))
    ),
    "W4": lambda: MLP((200, 200)).build(WORKLOADS["W4"].shape, CLASSES),
}


def begin(what: str = "", device: str = "cpu") -> str:
    """`quiet`; prints the machine and ``what`` is measured, and returns that line."""
    quiet()
    location = platform.processor() or platform.machine()
    if device == "cuda":
        location = torch.cuda.get_device_name()
        process_settings.prepare_gpu()
    line = f"torch {torch.__version__}, {location}, one thread{what and '; '}{what}"
    print(f"{line}\n", flush=True)
    return line


def quiet() -> None:
    """As in training: one thread, freed memory kept, and no garbage sought in what was loaded."""
    gc.freeze()
    torch.set_num_threads(1)
    keep_freed_memory()


def simulation(
    work: Workload,
    model: Make,
    device: str = "cpu",
    method: Any = None,
    tests: float = 0.0,
    validations: float = 0.0,
    **training: Any,
) -> Simulation:
    """The workload as a run of a method, FedAvg unless said otherwise.

    Args:
        tests: Test samples of a client, as a share of its training samples.
        validations: Validation samples, likewise.
        training: Settings beside the workload's own.
    """
    shares = {"train": 1.0, "test": tests, "val": validations}
    each = {name: (work.sizes * share).astype(int) for name, share in shares.items() if share}
    sizes = np.stack([*each.values()], 1)
    x, y = replace(work, least=None, clients=1, samples=int(sizes.sum())).draw()
    settings = {
        "rounds": 1000,
        "local_epochs": work.epochs,
        "batch_size": work.batch,
        "lr": LR,
        "momentum": work.momentum,
    }
    settled = Training(**(settings | training))
    network = make_network(model, settled)
    split = np.resize([*each], sizes.size).repeat(sizes.flatten())
    numbers = {name: np.flatnonzero(split == name) for name in each}
    held = ClientData({name: SamplesByClient(numbers[name], its) for name, its in each.items()})
    arrays = Arrays(x, y, PIXELS if work.pixels else PLAIN, device)
    # As in a run, so that the first step, whose operations are counted, does not do it.
    network.probe(arrays.inputs(torch.zeros(1, dtype=torch.int64, device=arrays.device)))
    setup = RunSetup(network, settled, arrays, held, CLASSES)
    return Simulation.of(MethodComponents(method or FedAvg()), setup, seed=0)


def clock(device: torch.device) -> float:
    """The time when everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def shortest(
    sides: Iterable[Callable[[], object]],
    tries: int,
    now: Callable[[], float] = time.process_time,
) -> list[float]:
    """Seconds of some calls, the processor's: the shortest of some tries of each, in turn, after
    one that warms up.
    """
    calls = [*sides]
    times = []
    for _ in range(tries + 1):
        taken = []
        for call in calls:
            begun = now()
            call()
            taken.append(now() - begun)
        times.append(taken)
    return np.min(times[1:], axis=0).tolist()


def seconds_a_step(
    run: Simulation, backend: str, steps: int, tries: int = 3, seeds: int = 1
) -> float:
    """Seconds that a step of all participants of round 1 takes: the shortest of some tries.

    Args:
        steps: Of the participant with most; others take fewer in proportion.
        seeds: How many runs are trained at once.
    """
    call, longest = steps_of(run, backend, steps, seeds)
    times = []
    for _ in range(tries):
        begun = clock(run.arrays.device)
        call()
        times.append(clock(run.arrays.device) - begun)
    return min(times) / longest


def steps_of(
    run: Simulation, backend: str, steps: int, seeds: int = 1
) -> tuple[Callable[[], object], int]:
    """What trains the first steps of a round, without sweeps and phases before, and how many they
    are one after another.
    """
    runs = [replace(run, seed=seed) for seed in range(seeds)]
    methods = [replace(one.method, earlier_phases=(), aggregate=_unchanged) for one in runs]
    states, plans = [one.begin() for one in runs], [one.round_schedule(1) for one in runs]
    short = [
        replace(plan, phases=plan.phases[-1:]).with_schedules(
            _first(schedule, steps, part) if schedule and isinstance(part, Pass) else None
            for schedule, part in zip(plan.schedules, run.method.passes, strict=True)
        )
        for plan in plans
    ]
    longest = sum(int(schedule.steps.max()) for schedule in short[0].schedules if schedule)

    def train() -> None:
        done = engine.run_rounds(methods, states, short, backend)
        sum(losses.sum().item() for _, losses in done)

    return train, longest


def _first(schedule: Schedule, steps: int, part: Pass) -> Schedule:
    """So many first steps of who takes most, and as large a share of everyone else's."""
    begun, longest = schedule.begin(steps, part.refreshes), int(schedule.steps.max(initial=0))
    if longest <= steps:
        return begun
    return replace(begun, steps=-(-schedule.steps * steps // longest))


def _unchanged(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
    return server, clients
