"""Time of every method beside FedAvg's, and how much of it operations explain.

    OMP_NUM_THREADS=1 python -m bench.methods [--model cnn] [METHOD ...]
    OMP_NUM_THREADS=1 python -m bench.methods --operators [METHOD ...]

Ten clients of 100 samples train an MLP, stacked, for an epoch a round; or, with ``--model cnn``, a
small convolutional network, whose steps are mostly arithmetic. Times are the processor's,
of rounds without evaluation. FedAvg and the method take turns of a round, because other programs
slow both down; the median of some tries counts. Operations are matrix products and convolutions,
those of the server included. ``--operators`` counts calls of PyTorch's operators a step, which no
other program disturbs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import islice
from statistics import median

from torch import nn
from torch.profiler import ProfilerActivity, profile

from bench import timing
from bench.workloads import CLASSES, Workload
from fl.base import registry
from fl.base.errors import FedloomError, Location
from fl.engine import simulate
from fl.engine.simulation import Simulation
from fl.models.cnn import CNN
from fl.models.mlp import MLP
from fl.runner import costs

REFERENCE = "fedavg"
WORKS: dict[str, tuple[Workload, Callable[[], nn.Module]]] = {
    "mlp": (
        Workload("10 clients x 100, 64-64-10 ReLU net, batch 10", 10, 100, (64,), 10, 1),
        lambda: MLP((64,)).build((64,), CLASSES),
    ),
    "cnn": (
        Workload("10 clients x 100, CNN 16-32, batch 10", 10, 100, (1, 8, 8), 10, 1),
        lambda: CNN().build((1, 8, 8), CLASSES),
    ),
}
"""Workload and network by model."""
FIRST, MORE, TRIES = 4, 10, 3
"""Rounds before the clock starts, rounds that it measures, and how often it does."""
KEYS = {
    "fedlgd": {"images": 1, "global_images": 2, "warmup": 2, "real": 8},
    "warm-up": {"images": 1, "steps": 10, "real": 8},
    "vhl": {"images": 4, "batch": 8},
}


def main() -> None:
    """Print a row for each method."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="METHOD", help="all, if none is named")
    parser.add_argument("--model", choices=WORKS, default="mlp")
    parser.add_argument("--operators", action="store_true", help="calls of operators a step")
    asked = parser.parse_args()
    timing.begin("processor time")
    names, model = asked.names or registry.names("method"), asked.model
    if asked.operators:
        for name in names:
            print(f"| {name} | {_operators(name, model):,.0f} |", flush=True)
        return
    reference, missing = _operations(REFERENCE, model), []
    print("| method | time | operations | time by operations |\n|---|---:|---:|---:|")
    for name in names:
        try:
            ratio = _time_by_reference(name, model)
            work = _operations(name, model) / reference
        except (FedloomError, AssertionError, KeyError, RuntimeError, ValueError) as error:
            missing.append(f"{name} ({' '.join(str(error).split())[:80]})")
            continue
        share = f"{ratio / work:.2f}" if work else "none"
        print(f"| {name} | {ratio:.2f} | {work:.2f} | {share} |", flush=True)
    print(f"\nNot measured: {'; '.join(missing) or 'none'}")


def _time_by_reference(name: str, model: str) -> float:
    """Return the seconds of rounds of a method, by those of the reference."""
    ratios = []
    for _ in range(TRIES):
        sides = [(_rounds(side, model), []) for side in (REFERENCE, name)]
        for _ in range(MORE):
            for rounds, seconds in sides:
                begun = time.process_time()
                next(rounds)
                seconds.append(time.process_time() - begun)
        reference, method = (sum(seconds) for _, seconds in sides)
        ratios.append(method / reference)
    return median(ratios)


def _operations(name: str, model: str) -> float:
    """Return the operations of a round, of all clients and the server."""
    run = _simulation(name, model)
    total = costs.measure(run, run.begin())
    return (total.flops or 0) * (total.participants or 0) + (total.flops_server or 0)


def _rounds(name: str, model: str) -> Iterator[object]:
    """Return the rounds of a run after the first ones."""
    run = _simulation(name, model)
    return islice(simulate.rounds(run, run.begin(), 0, "stacked"), FIRST, None)


def _operators(name: str, model: str) -> float:
    """Return calls of operators in a round, by its steps in an epoch."""
    rounds = _rounds(name, model)
    next(rounds)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        next(rounds)
    work, _ = WORKS[model]
    calls = sum(e.count for e in found.key_averages() if e.key.startswith("aten::"))
    return calls / (work.samples // work.batch)


def _simulation(name: str, model: str) -> Simulation:
    entry = registry.find("method", name, Location("bench"))
    method = entry.instantiate(entry.parse(KEYS.get(name), Location("bench")))
    return timing.simulation(
        *WORKS[model],
        method=method,
        tests=0.2,
        validations=0.2,
        rounds=FIRST + MORE + 1,
        evaluate_every=FIRST + MORE + 1,
    )


if __name__ == "__main__":
    main()
