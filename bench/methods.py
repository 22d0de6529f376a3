"""Time of every method beside FedAvg's, and how much of it operations explain.

    OMP_NUM_THREADS=1 python -m bench.methods [METHOD ...]
    OMP_NUM_THREADS=1 python -m bench.methods --operators [METHOD ...]

Ten clients of 100 samples train an MLP, stacked, for an epoch a round. Times are the processor's,
of a round without evaluation. Operations are matrix products and convolutions, those of the server
included. ``--operators`` counts calls of PyTorch's operators a step, which no other program
disturbs.
"""

from __future__ import annotations

import sys
import time

from torch.profiler import ProfilerActivity, profile

from bench import timing
from bench.workloads import CLASSES, Workload
from fl.base import registry
from fl.base.errors import FedloomError, Location
from fl.engine import simulate
from fl.engine.simulation import Simulation
from fl.extra import costs
from fl.models.mlp import MLP

REFERENCE = "fedavg"
WORK = Workload("10 clients x 100, 64-64-10 ReLU net, batch 10", 10, 100, (64,), 10, 1)
SHORT, LONG = 4, 14
"""Rounds of two runs, whose difference leaves out what happens once."""
KEYS = {
    "fedlgd": {"images": 1, "global_images": 2, "warmup": 2, "real": 8},
    "warm-up": {"images": 1, "steps": 10, "real": 8},
    "vhl": {"images": 4, "batch": 8},
}


def main() -> None:
    """Print a row for each method."""
    timing.begin("processor time")
    if "--operators" in sys.argv:
        names = [name for name in sys.argv[1:] if name != "--operators"]
        for name in names or registry.names("method"):
            print(f"| {name} | {_operators(name):,.0f} |", flush=True)
        return
    names = sys.argv[1:] or registry.names("method")
    reference, missing = _measured(REFERENCE), []
    print("| method | time | operations | time by operations |\n|---|---:|---:|---:|")
    for name in names:
        try:
            seconds, operations = _measured(name)
        except (FedloomError, AssertionError, KeyError, RuntimeError, ValueError) as error:
            missing.append(f"{name} ({' '.join(str(error).split())[:80]})")
            continue
        ratio, work = seconds / reference[0], operations / reference[1]
        share = f"{ratio / work:.2f}" if work else "none"
        print(f"| {name} | {ratio:.2f} | {work:.2f} | {share} |", flush=True)
    print(f"\nNot measured: {'; '.join(missing) or 'none'}")


def _measured(name: str) -> tuple[float, float]:
    """Return seconds and operations of a round, of all clients and the server."""
    run = _simulation(name, LONG)
    state = run.begin()
    total = costs.measure(run, state)
    operations = (total.flops or 0) * (total.participants or 0) + (total.flops_server or 0)
    seconds = min(_seconds(name, LONG) - _seconds(name, SHORT) for _ in range(2))
    return seconds / (LONG - SHORT), operations


def _operators(name: str) -> float:
    """Return calls of operators in round 3, by its steps in an epoch."""
    run = _simulation(name, SHORT)
    rounds = simulate.rounds(run, run.begin(), 0, "stacked")
    next(rounds), next(rounds)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        next(rounds)
    calls = sum(e.count for e in found.key_averages() if e.key.startswith("aten::"))
    return calls / (WORK.samples // WORK.batch)


def _seconds(name: str, rounds: int) -> float:
    run = _simulation(name, rounds)
    begun = time.process_time()
    for _ in simulate.rounds(run, run.begin(), 0, "stacked"):
        pass
    return time.process_time() - begun


def _simulation(name: str, rounds: int) -> Simulation:
    entry = registry.find("method", name, Location("bench"))
    method = entry.instantiate(entry.parse(KEYS.get(name), Location("bench")))
    return timing.simulation(
        *(WORK, lambda: MLP((64,)).build(WORK.shape, CLASSES)),
        method=method,
        tests=0.2,
        rounds=rounds,
        evaluate_every=LONG,
    )


if __name__ == "__main__":
    main()
