"""One run on several processes beside one process: seconds a round, and memory.

Two workloads: W2 with its 10 clients, and clients as of FEMNIST, 3,400 of 100 samples of which 2 %
take part in a round. Both sides train and evaluate the same rounds of FedAvg in turn, ``--repeats``
times, each process on one thread; the shortest time of each counts. While one process computes
alone, the others wait. Ratios, not times, are what compares between machines; on a busy one that by
the processor's time of the first process, which has most to do.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bench import local_steps, machine
from bench.asked import one_of
from bench.workloads import WORKLOADS
from fl.api.method import Setting
from fl.api.training import Training
from fl.engine import simulate
from fl.engine.arrays import Arrays
from fl.engine.assembly import computing
from fl.engine.evaluate import Held
from fl.engine.simulate import Simulation
from fl.methods.fedavg import FedAvg
from fl.models.cnn import CNN
from fl.train import launch
from fl.train.team import Team

WRITERS, SAMPLES, CHARACTERS, SHAPE = 3400, 100, 62, (1, 28, 28)
BACKENDS = ("loop", "stacked")
Lockstep = Callable[..., Iterator[dict[str, Any]]]


def images() -> Simulation:
    """W2, for one round of an epoch, scored on a tenth of its samples."""
    found = local_steps.simulation(WORKLOADS["W2"], local_steps.MODELS["W2"], "cpu")
    train = found.held.samples["train"]
    return replace(
        found,
        held=Held({"train": train, "test": [own[::10] for own in train]}),
        training=replace(found.training, rounds=1),
    )


def writers() -> Simulation:
    """Generated characters of 3,400 writers, 68 of whom train for an epoch of batches of 20."""
    draw = np.random.default_rng(0)
    x = draw.integers(0, 256, (WRITERS * SAMPLES, *SHAPE), dtype=np.uint8)
    y = draw.integers(0, CHARACTERS, len(x))
    training = Training(
        **{"rounds": 1, "local_epochs": 1, "batch_size": 20, "lr": 0.01, "participation": 0.02}
    )
    network = computing(lambda: CNN().build(SHAPE, CHARACTERS), training)
    by_writer = np.split(np.arange(len(x)), WRITERS)
    held = Held({"train": [own[:90] for own in by_writer], "test": [own[90:] for own in by_writer]})
    method = FedAvg().build(Setting(network, training, CHARACTERS, WRITERS, SHAPE))
    arrays = Arrays(x, y, {"scale": 1 / 255, "mean": 0.5, "sd": 0.5})
    return Simulation(method, network, training, arrays, held, CHARACTERS, seed=0)


MADE: dict[str, Callable[[], Simulation]] = {"W2": images, "writers": writers}
TITLES = {
    "W2": WORKLOADS["W2"].title,
    "writers": "3,400 clients x 100 of 1x28x28, 2 % a round, CNN, batch 20",
}


def seconds(lockstep: Lockstep, simulation: Simulation, backend: str) -> np.ndarray:
    """Of one round with its evaluation: by the clock, and by this process's processor."""
    state = simulation.begin()
    begun = np.array([time.perf_counter(), time.process_time()])
    [done] = lockstep({"run": simulation}, {"run": state}, 0, backend)
    assert not done["run"].diverged
    return np.array([time.perf_counter(), time.process_time()]) - begun


def measure(team: Team, name: str, backends: Sequence[str], repeats: int) -> None:
    """Print a row for each backend."""
    alone = MADE[name]()
    shared = team.begin({"name": name}, {"run": alone})["run"]
    sides = {"one": (simulate.lockstep, alone), "several": (team.lockstep, shared)}
    for backend in backends:
        times = {side: np.full(2, np.inf) for side in sides}
        for _ in range(repeats):
            for side, (lockstep, simulation) in sides.items():
                times[side] = np.minimum(seconds(lockstep, simulation, backend), times[side])
        one, several = times["one"], times["several"]
        clock, processor = one / several
        print(
            f"| {TITLES[name]} | {backend} | {one[0]:.2f} | {several[0]:.2f} | {clock:.2f}x "
            f"| {processor:.2f}x | {peak():,.0f} |",
            flush=True,
        )


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(asked: Mapping[str, Any]) -> dict[str, Simulation]:
    """What the first process asks for."""
    return {"run": MADE[asked["name"]]()}


def main() -> int:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", type=one_of(MADE), default=list(MADE))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    if not launch.member():
        return launch.launch(asked.processes, ["-m", "bench.processes", *sys.argv[1:]])
    torch.set_num_threads(1)
    team = Team()
    if team.rank:
        team.serve(make)
        return 0
    machine.begin("seconds a round", "cpu")
    print(f"| | backend | one process | {asked.processes} | ratio | by processor | MiB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for name in asked.workloads:
        measure(team, name, asked.backends, asked.repeats)
    team.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
