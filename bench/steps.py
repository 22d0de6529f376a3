"""Local steps by each backend, beside what one would write by hand: ``python -m bench.steps``.

Every workload trains all its clients for a round of FedAvg on generated data. The bare loop is a
model, `torch.optim.SGD` and a shuffled index, client after client. All sides run on one thread, in
turn, ``--repeats`` times; the shortest time of each counts, and compiling is reported apart.
Ratios, not times, are what compares between machines.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from bench.timing import MODELS, begin, clock, seconds_a_step, simulation
from bench.workloads import LR, WORKLOADS, Workload
from fl.engine.simulation import Simulation

BACKENDS = ("loop", "stacked", "compiled")
HEAD = ("bare loop", *BACKENDS)


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
    taken, times = run.round_schedule(1).schedules[0].steps, {}
    steps, each = min(limit, int(taken.max())), taken.sum() / taken.max()

    sides: dict[str, Callable[[], float]] = {
        "bare loop": lambda: bare_loop(work, model(), run, steps),
        **{b: lambda b=b: seconds_a_step(run, b, steps, 1) / each for b in BACKENDS},
    }
    for side, call in sides.items():
        first = call()
        if side == "compiled":
            times["compiling"] = first * each * steps
    for _ in range(repeats):
        for side, call in sides.items():
            times[side] = min(call(), times.get(side, float("inf")))
    return times


def main() -> None:
    """Print the table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=200, help="steps of each client, at most")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    begin("microseconds a local step of a client", asked.device)
    heads = [*HEAD, "fastest against bare", "compiling, s"]
    print(f"| | {' | '.join(heads)} |\n|---|{'---:|' * len(heads)}")
    for name in asked.only:
        times = measure(name, asked.device, asked.steps, asked.repeats)
        cells = [f"{1e6 * times[side]:,.1f}" for side in HEAD]
        cells.append(f"{times['bare loop'] / min(times[b] for b in BACKENDS):.1f}x")
        cells.append(f"{times['compiling']:.0f}")
        print(f"| {name}: {WORKLOADS[name].title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
